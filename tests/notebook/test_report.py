"""Reports: the whole story in one file, the same bytes each time, and nobody's note is ever
markup.
"""

from __future__ import annotations

import ast
import hashlib
import html.parser
import io
import re
import shlex
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import mistune
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import CAPTURES
from hypothesis import given, strategies as st

import npulab
import npulab.analysis.laws
import npulab.notebook.pictures
import npulab.notebook.sessions
from npulab.cli import main
from npulab.notebook.sessions.markdown import Block, plain, read_markdown, to_html, to_markdown

VENDOR, MESA, SIM, SWEEP = (
    "captures/vivante/update4-vendor",
    "captures/vivante/update4-mesa",
    "captures/vivante/sim-1x1",
    "captures/vivante/sweep-layers.npz",
)
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<!-- --><script>alert(1)</script>",
    "--><b>",
    "]]><x>",
    "</p></div></main><iframe src=javascript:alert(1)>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    '[a](https://x/"onmouseover=alert(1))',
    "[a](https://x'onclick='alert(1)')",
    '[a](https://x"><script>alert(1)</script>)',
    "![x](https://evil/x.png)",
    "`<b>`",
    "**<b>**",
    "```\n<script>alert(1)</script>\n```",
    "````\n```\n<b>\n```\n````",
    "~~~\n</code></pre><script>alert(1)</script>",
    "```html\n<b>\n",
    "# <b>h</b>",
    "- <b>\n- <i>",
    "1. <b>",
    "| <b> | a |\n| - | - |\n| <script> | `<i>` |",
    "a | b\n- | -\n<b>",
    "&lt;b&gt; &amp; &#60;script&#62;",
    "\0<b>\0",
    "<b\n>",
    "<a href=x>",
    "\u202e<b>",
    "<https://x>",
    '[a]: https://x "t"\n[a]',
    "*a* _b_ ~~c~~ $x$ <u>d</u>",
    "\\<b>\\",
    "    <b>",
    "\t<b>",
    "> <b>",
    "---\n<b>\n===",
    "<meta http-equiv=refresh content=0>",
    "<style>*{display:none}</style>",
    "<form action=x><input autofocus onfocus=alert(1)>",
    "[" * 1000,
    "`" * 1001,
    "**" * 999,
    "|" * 999 + "\n" + "|-" * 999,
    "[a](#b) [b](http://a.b) [c](https://a.b/?q=1&x=%3C)",
    "{{7*7}} ${x} <%= 1 %>",
]
TAGS = {"p", "pre", "code", "strong", "a", "ul", "ol", "li", "table", "tr", "th", "td", "h4"}


class Seen(html.parser.HTMLParser):
    """The tags, attributes and text of a page, as a browser tells them apart."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.others = "", 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " " * (tag in ("td", "th"))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.others += 1

    def unknown_decl(self, data: str) -> None:
        self.others += 1

    def handle_pi(self, data: str) -> None:
        self.others += 1


def assert_harmless(page: str) -> None:
    seen = Seen(page)
    assert {tag for tag, _ in seen.tags} <= TAGS
    assert not seen.others
    for tag, attributes in seen.tags:
        allowed = {"a": {"href", "rel"}, "th": {"scope"}}.get(tag, set())
        assert {*attributes} <= allowed
        if tag == "a":
            assert re.match(r"https?://|#", attributes["href"] or "")
            assert f"({attributes['href']})" in seen.text


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:30]))
def test_no_note_is_markup(text: str) -> None:
    blocks = read_markdown(text)
    page = to_html(blocks)
    assert_harmless(page)
    assert_same(blocks)
    # nothing is left out either: every word is there as text, but the language of a fence and the
    # numbers of lists
    told = re.sub(r"(?m)^[0-9]+\.|^```\w+", "", plain(text))
    assert {*re.findall(r"\w+", told)} <= {*re.findall(r"\w+", Seen(page).text)}


PIECES = st.sampled_from(
    [
        *"<>&\"'`*_[](){}#|-!\\/=:;~$. \n\tab1",
        "https://a",
        "```",
        "\0",
        "\u202e",
        "<b>",
        "](",
        "\n- ",
        "\n|-|\n",
    ]
)


@given(st.lists(PIECES, max_size=60))
def test_no_text_at_all_is_markup(pieces: list[str]) -> None:
    blocks = read_markdown("".join(pieces))
    assert_harmless(to_html(blocks))
    assert_same(blocks)


def assert_same(blocks: list[Block]) -> None:
    """What is written as Markdown reads as nothing more: no HTML, and no link that was none."""
    page = Seen(
        mistune.create_markdown(
            escape=False, plugins=["table", "strikethrough", "math", "task_lists", "url"]
        )(to_markdown(blocks))
    )
    assert {tag for tag, _ in page.tags} <= TAGS | {"thead", "tbody", "br"}
    assert not page.others
    for tag, attributes in page.tags:
        assert tag != "a" or re.match(r"https?://|#", attributes["href"] or "")
        assert {*attributes} <= {"href", "style", "class"}


def test_the_markdown_that_is_known() -> None:
    told = (
        "# Head #\n\nOne **bold** and `code`\nsecond line\n\n- a\n  more\n- [b](https://x.y/z?a=1)\n\n1. one\n2) two\n\n"
        "```c\nint a = 1 < 2;\n```\n\n| a | b |\n|---|:-:|\n| 1 | `2` |\n| 3 |\n\n[up](#notes)"
    )
    assert to_html(read_markdown(told)) == (
        "<h4>Head</h4>\n<p>One <strong>bold</strong> and <code>code</code>\nsecond line</p>\n"
        '<ul><li>a more</li><li><a href="https://x.y/z?a=1" rel="noopener noreferrer nofollow">b</a> (https://x.y/z?a=1)</li></ul>\n'
        "<ol><li>one</li><li>two</li></ol>\n<pre><code>int a = 1 &lt; 2;</code></pre>\n"
        '<table><tr><th scope="col">a</th><th scope="col">b</th></tr><tr><td>1</td><td><code>2</code></td></tr>'
        '<tr><td>3</td><td></td></tr></table>\n<p><a href="#notes" rel="noopener noreferrer nofollow">up</a> (#notes)</p>'
    )
    assert to_markdown(read_markdown(told)) == (
        "#### Head\n\nOne **bold** and `code`\nsecond line\n\n- a more\n- [b](<https://x.y/z?a=1>) (https://x.y/z?a=1)\n\n"
        "1. one\n1. two\n\n```\nint a = 1 < 2;\n```\n\n| a | b |\n| --- | --- |\n| 1 | `2` |\n| 3 |   |\n\n[up](<#notes>) (#notes)"
    )


LARGE = [
    "[",
    "`",
    "**a",
    "[a](https://a",
    "|",
    "<",
    "- ",
    "a\n",
    "\n",
    "```\n",
    "# a\n",
    "|a|\n|-|\n",
    "[a",
    "1. a\n",
    "\0",
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("unit", LARGE)
def test_a_large_note_is_read_too(unit: str) -> None:
    """What grew with the square of the length would not end here."""
    read_and_written(unit * (50_000 // len(unit)))


@pytest.mark.long
@pytest.mark.parametrize("unit", LARGE)
def test_a_note_of_a_megabyte_is_read_too(unit: str) -> None:
    read_and_written(unit * (2**20 // len(unit)))


def read_and_written(text: str) -> None:
    blocks = read_markdown(text)
    assert to_html(blocks).count("<script") == 0
    assert to_markdown(blocks) is not None


# The whole report


def find_relu(sweep: npulab.Sweep) -> npulab.analysis.laws.FieldLaw:
    mask = np.zeros(sweep.words.shape[1], np.uint32)
    mask[2] = 2**24
    return npulab.find_laws(
        sweep.words[:40] & mask, sweep.parameters[["relu", "stride"]][:40]
    ).fields[0]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> npulab.notebook.sessions.Session:
    """A session with everything in it."""
    folder = tmp_path_factory.mktemp("told")
    for path in (VENDOR, MESA, SIM):
        shutil.copytree(CAPTURES.parent / path, folder / path)
    shutil.copy(CAPTURES.parent / SWEEP, folder / SWEEP)
    session = npulab.session(folder / "x.json", author="ada <a@b>", autosave=False)
    session.title = "Where is <relu>?"
    vendor, good, sweep = session.attach(VENDOR), session.attach(SIM), session.attach(SWEEP)
    session.attach(MESA)
    npulab.save(good.with_fields(relu=1), folder / "captures/bad")
    bad = session.attach("captures/bad")
    session.note("It **clamps** below.\n\n- see `relu`", field="relu", date="2026-01-02")
    session.note("A word of many fields", register="w2")
    session.note("Of everything <script>alert('note')</script>")
    session.note("Nobody has it", field="no_such_field")
    session.note("Simulated, mind", capture=SIM)
    session.note("The first row", capture=vendor, buffer="output", offset=0, size=9)
    for number, text in enumerate(HOSTILE):
        session.note(text, field=f"hostile <b>{number}", author="<script>alert('author')</script>")
    session.bookmark("", field="relu")
    session.bookmark("its <i>head</i>", capture=vendor, buffer="coefficients", offset=16, size=33)
    session.bookmark("all of it", capture=vendor)
    session.bookmark("past the end", capture=vendor, buffer="output", offset=10**9, size=1)
    session.accept(find_relu(sweep), sweep=sweep, date="2026-02-03")
    session.accept("input_w * 2", "w3_6_13", sweep=SWEEP, by="bob")
    found = npulab.bisect_fields(good, bad, npulab.Simulated(), journal=folder / "j.jsonl")
    session.journal(found, device="simulated")
    session.figure(
        npulab.notebook.pictures.flip_map(sweep.words[:50]),
        "What <b>varies</b>, simulated",
        code=f"npulab.notebook.pictures.flip_map(npulab.load_sweep({SWEEP!r}).words[:50])",
    )
    session.save()
    session.report(folder / "out.html")
    session.report(folder / "out.md")
    return session


def test_the_story_is_told(told: npulab.notebook.sessions.Session) -> None:
    page = Seen((told.folder / "out.html").read_text(encoding="utf-8"))
    text = re.sub(r"\s+", " ", page.text)
    for words in (
        "Where is <relu>?",
        "It clamps below.",
        "2[24]",
        "Vivante kernel driver galcore",
        "2026-01-02",
        "ada <a@b>",
        "no field of this name now",
        f"bytes 0x0 to 0x8 of output of {VENDOR}",
        "vendor driver",
        "Etnaviv NPU update 4",
        "w2_24_1",
        "input_w * 2",
        "contradicted in",
        "found: agrees in 850 of 850",
        "relu = 1 (good 0) breaks it",
        "on a simulated device",
        "its buffers are",
        "What <b>varies</b>, simulated",
    ):
        assert words in text, words
    assert f"Of capture {SIM} (simulated)" in text
    assert "simulated, changed" in text
    assert f"{SWEEP} (simulated)" in text
    digest = hashlib.sha256((told.folder / VENDOR / "capture.json").read_bytes()).hexdigest()
    assert f" {digest[:12]} " in text
    assert digest[:13] not in text
    data = npulab.load(told.folder / VENDOR).buffers["coefficients"]
    assert data[16:32].hex(" ") in text
    shown = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert len(shown) == 2  # the block and the figure
    assert "1088 bits in 34 words: 61 % explained" in str(shown[0])


def test_the_page_needs_nothing_and_runs_nothing(told: npulab.notebook.sessions.Session) -> None:
    page = (told.folder / "out.html").read_text(encoding="utf-8")
    seen = Seen(page)
    assert {tag for tag, _ in seen.tags} <= TAGS | {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "h1",
        "h2",
        "h3",
        "div",
        "caption",
        "figure",
        "picture",
        "source",
        "img",
        "figcaption",
    }
    assert not seen.others
    for tag, attributes in seen.tags:
        assert not [
            name
            for name in attributes
            if name.startswith("on") or name in ("style", "srcdoc", "action", "background")
        ]
        assert "src" not in attributes or (
            tag == "img" and (attributes["src"] or "").startswith("data:image/png;base64,")
        )
        assert "srcset" not in attributes or (
            tag == "source" and (attributes["srcset"] or "").startswith("data:image/png;base64,")
        )
        assert "href" not in attributes or re.match(r"https?://|#", attributes["href"] or "")
    policy = next(
        one["content"]
        for tag, one in seen.tags
        if tag == "meta" and one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert "prefers-color-scheme: dark" in page
    assert "url(" not in page
    places = [one["id"] for _, one in seen.tags if "id" in one]
    assert len(places) == len({*places})


def test_as_markdown_with_its_figures_beside_it(told: npulab.notebook.sessions.Session) -> None:
    text = (told.folder / "out.md").read_text(encoding="utf-8")
    picture = re.search(r"!\[[^\]]*\]\(<(out-figures/[0-9a-f]{16}\.png)>\)", text)
    assert picture
    assert (told.folder / picture[1]).read_bytes().startswith(b"\x89PNG")
    assert "# Where is &lt;relu&gt;?" in text
    assert "| NN | w2 | relu | 2\\[24\\] | raw |" in text
    assert (
        ", for coefficient_bytes in groups of 64, largest_core_stream_bytes in groups of 64"
        in text.replace("\\", "")
    )
    outside = re.sub(
        r"(?ms)^(`{3,})\w*\n.*?\n\1$|`[^`\n]+`|\]\(<[^\s<>]+>\)",
        "",
        text.removeprefix("<!-- npulab report -->"),
    )
    assert "<" not in outside
    assert not re.search(r"(?<!\\)\]\((?!<)", outside)


def test_the_same_session_gives_the_same_report(
    told: npulab.notebook.sessions.Session, tmp_path: Path
) -> None:
    shutil.copytree(told.folder, tmp_path / "elsewhere")
    session = npulab.session(tmp_path / "elsewhere/x.json")
    for name in ("out.html", "out.md"):
        again = session.report(tmp_path / name)
        assert again.read_bytes() == (told.folder / name).read_bytes()


def again(told: npulab.notebook.sessions.Session, kind: str) -> list[str]:
    """The commands of a kind that the report gives for real claims."""
    text = (told.folder / "out.md").read_text(encoding="utf-8")
    return [found for _, found in re.findall(rf"(?ms)^(`{{3,}}){kind}\n(.*?)\n\1$", text)]


def test_every_command_of_the_report_runs(
    told: npulab.notebook.sessions.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(told.folder)
    lines = sorted({line for block in again(told, "sh") for line in block.split("\n")})
    kinds = {shlex.split(line)[1] for line in lines}
    assert kinds == {"check", "show", "laws", "bisect"}
    for line in lines:
        command = shlex.split(line)
        assert command[0] == "npulab"
        if command[1] in ("check", "laws"):  # slow, and tested where they belong
            assert all(Path(one).exists() for one in command[2:])
            continue
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main(command[1:])
        assert (status, err.getvalue()) == (0, ""), line
        assert out.getvalue().strip(), line


def test_every_line_of_python_of_the_report_runs(
    told: npulab.notebook.sessions.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(told.folder)
    values = {}
    for block in again(told, "python"):
        names: dict[str, object] = {}
        for node in ast.parse(block).body:
            if isinstance(node, ast.Expr):
                code = ast.unparse(node)
                values[code] = eval(code, names)
                assert values[code] is not None
                assert not hasattr(values[code], "__len__") or len(values[code]), code
            else:
                exec(ast.unparse(node), names)
    shown = {repr(one) for one in values.values()}
    assert repr("found: agrees in 850 of 850") in shown
    assert any("contradicted in " in one for one in shown)
    assert any("relu = 1 (good 0) breaks it" in one for one in shown)
    assert repr(npulab.load(VENDOR).buffers["output"].hex(" ")) in shown


def test_what_is_refused(told: npulab.notebook.sessions.Session, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    for name, words in (("x.pdf", "got .pdf, allowed is .html or .md"), ("x", "got no suffix")):
        with pytest.raises(ValueError, match=words):
            told.report(tmp_path / name)
    with pytest.raises(ValueError, match="figure: got int"):
        told.report(tmp_path / "x.html", pictures=[3])
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "mine.md").write_text("my own words")
    with pytest.raises(FileExistsError, match=r"mine\.md: is there already and is no report"):
        told.report(tmp_path / "mine.md")
    assert (tmp_path / "mine.md").read_text() == "my own words"


def test_what_cannot_be_read_is_said_in_its_place(
    told: npulab.notebook.sessions.Session, tmp_path: Path
) -> None:
    shutil.copytree(told.folder, tmp_path / "x")
    folder = tmp_path / "x"
    shutil.rmtree(folder / VENDOR)
    (folder / "captures/bad/capture.json").write_text("{")
    (folder / "j.jsonl").write_text("[]\n")
    figure = next((folder / "x-figures").iterdir())
    figure.write_bytes(b"<script>")
    with pytest.warns(UserWarning, match=r"is missing|has changed"):
        session = npulab.session(folder / "x.json")
    text = Seen(session.report(folder / "o.html").read_text(encoding="utf-8")).text
    for words in (
        f"{VENDOR} is missing",
        "captures/bad has changed",
        "cannot be read",
        "the journal cannot be read",
        "is missing or has changed",
        "the capture cannot be read",
    ):
        assert words in text
    assert "It clamps below." in text


def test_pictures_of_the_caller(tmp_path: Path) -> None:
    session = npulab.session(tmp_path / "x.json")
    picture = npulab.notebook.pictures.flip_map(np.arange(8, dtype=np.uint32)[:, None])
    session.report(
        tmp_path / "o.html", pictures=[picture, (picture.figure, "mine <b>"), picture._repr_png_()]
    )
    seen = Seen((tmp_path / "o.html").read_text())
    assert [one["alt"] for tag, one in seen.tags if tag == "img"] == [
        picture.text,
        "mine <b>",
        "a picture",
    ]
    assert session.figures == ()


def test_a_map_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CAPTURES / "vivante/sim-1x1", tmp_path / "a")
    (tmp_path / "map.csv").write_text(
        "block,offset,register,field,lsb,width,evidence\n"
        + "".join(f"NN,{4 * word:#x},w{word},mine{word},0,32,guess\n" for word in range(34))
    )
    session = npulab.session(tmp_path / "x.json")
    session.attach("a")
    session.use_map("map.csv")
    session.note("all of it", field="mine2")
    session.bookmark("", field="mine2")
    text = Seen(session.report(tmp_path / "o.html").read_text()).text
    assert "2[31:0]" in text
    assert f"{npulab.load(tmp_path / 'a').words[2]:#x}" in text
    assert "34 words, 34 fields, 1088 bits named" in text
    monkeypatch.chdir(tmp_path)
    line = (
        "npulab.session('x.json').decoded('a').fields.query(\"block == 'NN' and field == 'mine2'\")"
    )
    assert line in text
    assert list(eval(line, {"npulab": npulab}).raw) == [npulab.load("a").words[2]]
    assert "npulab show a --field" not in text


def test_bits_are_counted_over_captures_that_the_map_reads(tmp_path: Path) -> None:
    shutil.copytree(CAPTURES / "vivante/sim-1x1", tmp_path / "a")
    session = npulab.session(tmp_path / "x.json")
    session.attach("a")
    for last, told in (
        ("NN,0x84,last,0,32", "the map's bits over 1 capture (1 simulated); "),
        ("A,0x40,a,0,32\nB,0x40,b,0,32", "the map's bits; "),
    ):  # as many words, of other blocks
        (tmp_path / "map.csv").write_text(f"block,offset,field,lsb,width\n{last}\n")
        session.use_map("map.csv")
        assert len(session.registers) == 34
        assert told in Seen(session.report(tmp_path / "o.html").read_text()).text


@pytest.mark.sample(1)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_a_browser_nothing_runs_and_everything_is_readable(
    told: npulab.notebook.sessions.Session, chrome: object, theme: str
) -> None:
    page = chrome.new_page(viewport={"width": 900, "height": 900}, color_scheme=theme)
    heard: list[str] = []
    page.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda said: heard.append(said.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on(
        "request",
        lambda request: heard.append(request.url) if request.url.startswith("http") else None,
    )
    page.goto((told.folder / "out.html").as_uri())
    colours = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert colours == (
        ["rgb(27, 27, 27)", "rgb(255, 255, 255)"]
        if theme == "light"
        else ["rgb(232, 232, 232)", "rgb(22, 24, 28)"]
    )
    assert page.evaluate(
        "document.images.length && [...document.images].every(one => one.naturalWidth > 50)"
    )
    assert (
        page.evaluate(
            "document.scripts.length + document.querySelectorAll('iframe, form, svg, link, base').length"
        )
        == 0
    )
    dark = page.evaluate(
        "document.images[0].currentSrc === document.querySelector('source').srcset"
    )
    assert dark == (theme == "dark")  # the block
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert heard == []
    # the page forbids scripts: axe, which is one, looks at the same page without that rule
    page.set_content(
        (told.folder / "out.html")
        .read_text(encoding="utf-8")
        .replace("Content-Security-Policy", "x-none")
    )
    found = Axe().run(page).response["violations"]
    assert [f"{one['id']}: {node['html'][:100]}" for one in found for node in one["nodes"]] == []
    page.close()
