"""Hostile texts stay texts in every format, and hostile files are refused in a sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from hostile_maps import EVIL, harmless, nasty_table
from pace import limit

import npulab


def test_hostile_texts_are_drawn_as_texts(tmp_path: Path) -> None:
    for to in ("svg", "md", "json", "hexpat"):
        npulab.write_map(nasty_table(), tmp_path / f"n.{to}")
    ET.parse(tmp_path / "n.svg")
    harmless((tmp_path / "n.svg").read_text())
    assert any(EVIL in (one.text or "") for one in ET.parse(tmp_path / "n.svg").iter())
    markdown = (tmp_path / "n.md").read_text()
    harmless(markdown)
    assert not re.search(r"(?<!\\)\]\(javascript", markdown)
    assert {
        field["name"]
        for one in json.loads((tmp_path / "n.json").read_text())
        for field in one["reg"]
        if "name" in field
    } == {row["field"] for row in nasty_table().rows if "field" in row}
    pattern = re.sub(r"//.*", "", (tmp_path / "n.hexpat").read_text())
    assert not re.search(
        r"script|evil|onerror",
        re.sub(
            r"\w*(script|evil|onerror)\w*",
            lambda found: "" if found[0].isidentifier() else found[0],
            pattern,
        ),
    )
    assert pattern.count("{") == pattern.count("}")


BOMB = (
    "<!DOCTYPE d [<!ENTITY a 'aaaaaaaaaa'>"
    + "".join(f"<!ENTITY {chr(97 + n)} '{('&' + chr(96 + n) + ';') * 10}'>" for n in range(1, 12))
    + "]>"
)


SVD = (
    "<device><name>d</name><width>32</width><peripherals><peripheral><name>P</name><baseAddress>0</baseAddress><registers>"
    "<register>{}</register></registers></peripheral></peripherals></device>"
)


DOMAIN = "<database><domain name='D' width='8'>{}</domain></database>"


REFUSED = {
    "entities.svd": BOMB + "<device><name>&l;</name></device>",
    "entities.xml": BOMB + "<database><domain name='&l;'/></database>",
    "outside.svd": "<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"
    + SVD.format("<name>&x;</name><addressOffset>0</addressOffset>"),
    "outside.xml": "<database><import file='../../../../../../../etc/passwd'/></database>",
    "absolute.xml": "<database><import file='/etc/passwd'/></database>",
    "long.svd": SVD.format(
        "<dim>4000000000</dim><dimIncrement>4</dimIncrement><name>R%s</name><addressOffset>0</addressOffset>"
    ),
    "long.xml": DOMAIN.format("<reg32 name='R' offset='0' length='4000000000' stride='4'/>"),
    "product.xml": DOMAIN.format(
        "<array name='B' offset='0' length='1000' stride='4'>" * 4
        + "<reg32 name='R' offset='0'/>"
        + "</array>" * 4
    ),
    "deep.xml": DOMAIN.format("<group>" * 100_000 + "</group>" * 100_000),
    "deep.svd": "<device>" + "<a>" * 100_000 + "</a>" * 100_000 + "</device>",
    "around.svd": "<device><peripherals><peripheral derivedFrom='B'><name>A</name><baseAddress>0</baseAddress></peripheral>"
    "<peripheral derivedFrom='A'><name>B</name><baseAddress>0</baseAddress></peripheral></peripherals></device>",
    "long.rdl": "addrmap a { reg { field {} f[32]; } rr[4000000000]; };",
    "perl.rdl": "addrmap a { reg { field {} f[32]; } rr; };\n<% system('touch ran'); %>\n",
    "outside.rdl": '`include "../../../../../../../etc/passwd"\naddrmap a { reg { field {} f[32]; } rr; };',
    "itself.rdl": '`include "itself.rdl"\naddrmap a { reg { field {} f[32]; } rr; };',
    "long.h": "#include <stdint.h>\nstruct s { uint32_t a[4000000000]; uint32_t b : 3; };",
    "wide.h": "#define X (1 << 4000000000)\nstruct s { unsigned a : X; };",
    "macros.h": "#define A0 1+1+1+1+1+1+1+1+1+1\n"
    + "".join(f"#define A{n} {'+'.join([f'A{n - 1}'] * 10)}\n" for n in range(1, 15))
    + "struct s { unsigned a : A14; };\n",
    "around.h": "#define A B\n#define B A\nstruct s { unsigned a : A; };\n",
    "deep.h": "struct s {" + "struct {" * 5000 + "unsigned a : 1;" + "} a;" * 5000 + "};",
    "brackets.h": "struct s { unsigned a : " + "(" * 20_000 + "1" + ")" * 20_000 + "; };",
    "itself.h": "struct s { unsigned a : 3; struct s b[2]; };",
    "digits.csv": "register,offset,field,lsb,width\nR,0,f,0," + "9" * 5000 + "\n",
    "nul.csv": "register,offset,field,lsb,width\nR,0,f\0,0,1\n",
}


# In a process of its own, which may not take more than this beyond what Python and npulab take.
LIMITED = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import npulab
from npulab.registers.formats import c_reading, formats, rnndb, svd, systemrdl, tables
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for path in sys.argv[1:]:
    try:
        npulab.read_map(path)
        print("took it")
    except ValueError as error:
        print(str(error).replace("\\n", "<newline>"))
    print((peak() - before) // 1024, int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])))
"""


def test_hostile_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for name, text in REFUSED.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "large.xml").open("wb") as file:
        file.write(b"<database>")
        for _ in range(100):
            file.write(b"<!-- xxxxxxx -->" * 2**16)
        file.write(b"</database>")
    with (tmp_path / "large.svd").open("wb") as file:
        file.write(b"<device>")
        file.truncate(100 * 2**20)
    names = [*REFUSED, "large.xml", "large.svd"]
    environment = {**os.environ, "PYTHONPATH": str(Path(npulab.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(names), done.stderr[-500:]
    for name, said, used in zip(names, lines[::2], lines[1::2], strict=True):
        assert name in said, (name, said[:200])
        assert "allowed" in said, (name, said[:200])
        assert len(said) < 600, (name, len(said))
        assert "root:" not in said, "nothing of the file outside"
        mebibytes, seconds = map(int, used.split())
        assert mebibytes <= 64, name
        assert seconds < limit(20), name
    assert not (tmp_path / "ran").exists()
