// Draws the law view. All meaning (what is known of a bit, the matches, the panel of a field) comes from Python as text
// and numbers; this script paints it, moves the cursor, and sends what was asked.

const BITS = 32;
const PAGE = 8;
const SIZE = [400, 220], EDGE = [10, 8, 34, 46]; // of the picture: width, height; right, top, bottom, left
const TICKS = 5;  // at most, of an axis
const NEAR = 14;  // units of the picture: a point nearer to the pointer is shown
const LABEL = 3;  // bits: a field of at least so many has its law written on it
const SVG = "http://www.w3.org/2000/svg";
const MARKS = ["M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z", "M-3-3H3V3H-3Z", "M0-3.5L3.5 3H-3.5Z", "M0-4L4 0L0 4L-4 0Z",
  "M-3.5-3H3.5L0 3.5Z"];
const CROSS = "M-3-3L3 3M3-3L-3 3", DOT = "M-1.5 0a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0Z";

const KEYS = [
  { keys: { Enter: view => view.open(true), " ": view => view.open(true) }, help: "or a click opens a field" },
  { keys: { Escape: view => view.open(false) }, help: "closes it" },
  { keys: bitMoves(PAGE, BITS), help: "move" },
  { keys: { "]": view => view.step(1), "[": view => view.step(-1) }, help: "go to the next and previous field" },
  { keys: { "/": view => view.search.focus() }, help: "searches" },
  { keys: { g: view => view.follow_(1), b: view => view.follow_(-1) }, help: "go to the field that the law reads, and back" },
  { keys: { n: view => view.seek(1), p: view => view.seek(-1) }, help: "go through the matches" },
];

// Round numbers from low to high.
function ticks(low, high) {
  if (!(high > low)) return [low];
  const rough = (high - low) / TICKS, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(factor => factor * power >= rough) * power, out = [];
  for (let at = Math.ceil(low / step); at * step <= high + step / 1e6; at++) out.push(at * step);
  return out;
}

function short(number) {
  return String(Number(number.toPrecision(6)));
}

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.runs = model.get("runs").map(([name, word, lsb, width, status, about], index) =>
      ({ index, name, word, lsb, width, status, about }));
    const parameters = model.get("parameters");
    this.byName = new Map(this.runs.filter(({ name }) => !parameters.includes(name)).map(run => [run.name, run]));
    this.trail = []; // the bits from which links were followed
    this.names = Object.fromEntries(model.get("letters").map(([letter, name]) => [letter, name]));
    this.pointed = null;
    this.lit = [];
    this.build(el);
    this.listen();
  }

  get keys() {
    return KEYS;
  }

  get place() {
    return this.model.get("place");
  }

  // ---- building, once ----

  build(el) {
    const grid = this.model.get("grid");
    this.owners = grid.map(() => new Array(BITS));
    this.cells = grid.map(() => new Array(BITS));
    for (const run of this.runs) {
      for (let bit = run.lsb; bit < run.lsb + run.width; bit++) this.owners[run.word][bit] = run;
    }
    this.root = make("div", "npulab-laws", "", { role: "group", "aria-label": `laws of ${this.model.get("title")}` });
    this.status = make("div", "status", "", { role: "status" });
    this.grid = make("div", "grid", "", { role: "grid", "aria-label": `${this.model.get("title")}: bits` });
    this.grid.append(this.header(), ...grid.map((letters, word) => this.row(letters, word)));
    this.panel = make("section", "panel", "", { "aria-label": "field" });
    const columns = make("div", "columns");
    columns.append(this.grid, this.panel);
    this.root.append(this.heading(make("span", "npulab-summary", this.model.get("summary"))), this.tools(), this.status, columns, this.legend(), this.scale,
      this.help());
    this.label();
    this.paint();
    this.showMatches();
    this.showCursor();
    this.showPanel();
    el.append(this.root);
  }

  tools() {
    const line = make("div", "tools"), search = make("label", "", "search "), colour = make("label", "", "colours ");
    this.search = make("input", "search", "", { type: "search", placeholder: "field, parameter, law", spellcheck: "false" });
    this.search.value = this.model.get("query");
    this.found = make("span", "found");
    this.colour = make("select", "colour");
    this.colour.append(make("option", "", "what is known", { value: "status" }),
      make("option", "", "how often a bit flips", { value: "flips" }));
    const group = make("optgroup", "", "", { label: "relation to" });
    group.append(...this.model.get("parameters").map(name => make("option", "", name, { value: `relation ${name}` })));
    this.colour.append(group);
    search.append(this.search);
    colour.append(this.colour);
    line.append(search, this.found, colour);
    return line;
  }

  legend() {
    const line = make("div", "legend");
    this.letters = line;
    this.scale = make("div", "legend");
    for (const [letter, name, count] of this.model.get("letters")) {
      if (!count) continue;
      const item = make("span", "item");
      item.append(make("span", "swatch bit", letter, { "data-status": name, "aria-hidden": "true" }), ` ${name} ${count}`);
      line.append(item);
    }
    return line;
  }

  header() {
    const row = make("div", "row head", "", { role: "row" });
    row.append(make("span", "name", "word", { role: "columnheader" }));
    for (let bit = BITS - 1; bit >= 0; bit--) {
      row.append(make("span", bit % 4 === 3 ? "nibble" : "", bit, { role: "columnheader" }));
    }
    return row;
  }

  row(letters, word) {
    const row = make("div", "row", "", { role: "row" });
    row.append(make("span", "name", this.model.get("names")[word], { role: "rowheader" }));
    for (let bit = BITS - 1; bit >= 0; bit--) {
      const run = this.owners[word][bit], cell = make("span", "bit", "", { role: "gridcell", tabindex: -1 });
      const kinds = { nibble: bit % 4 === 3, first: bit === run.lsb + run.width - 1, last: bit === run.lsb };
      for (const [kind, holds] of Object.entries(kinds)) cell.classList.toggle(kind, holds);
      [cell.dataset.word, cell.dataset.bit] = [word, bit];
      cell.dataset.status = this.names[letters[BITS - 1 - bit]];
      this.cells[word][bit] = cell;
      row.append(cell);
    }
    return row;
  }

  // The law on its field, over the letters, which its bits keep as what is read out.
  label() {
    for (const run of this.runs) {
      if (run.width < LABEL || !["law", "rivals"].includes(run.status)) continue;
      const label = make("span", "label", run.about, { "aria-hidden": "true", "data-status": run.status });
      label.style.gridColumn = `${BITS + 2 - run.lsb - run.width} / ${BITS + 2 - run.lsb}`;
      this.cells[run.word][run.lsb].parentNode.append(label);
      for (const cell of this.cellsOf(run)) cell.dataset.labelled = "";
    }
  }

  // ---- painting ----

  // Letters of what is known; or how much, in tenths, where there is a share of each bit.
  paint() {
    const shades = this.model.get("shades"), grid = this.model.get("grid"), colour = this.model.get("colour");
    const relation = colour === "relation", parameter = this.model.get("parameter");
    this.colour.value = relation ? `relation ${parameter}` : colour;
    this.grid.classList.toggle("shaded", shades.length > 0);
    const unit = relation ? `of 100 of a bit told by ${parameter}` : "% flips";
    this.letters.hidden = shades.length > 0;
    this.scale.hidden = !shades.length;
    this.scale.textContent = "0 to 9: tenths " +
      (relation ? `of a bit that ${parameter} tells of this one` : "of the captures in which a bit is not as in the one before");
    this.cells.forEach((cells, word) => cells.forEach((cell, bit) => {
      const share = shades.length ? shades[word][bit] : null, letter = grid[word][BITS - 1 - bit];
      const written = cell.dataset.labelled !== undefined;
      cell.textContent = share === null ? written ? "" : letter : share ? Math.min(9, Math.floor(share / 10)) : "";
      cell.style.setProperty("--share", share === null ? "" : `${0.6 * share}%`);
      const run = this.owners[word][bit];
      cell.setAttribute("aria-label", `${cell.textContent || share === null && letter} bit ${bit}, ${this.names[letter]}, ${run.name}` +
        (share === null ? "" : `, ${share} ${unit}`));
    }));
    this.tell();
  }

  showMatches() {
    const matches = this.model.get("matches"), query = this.model.get("query").trim();
    if (document.activeElement !== this.search) this.search.value = this.model.get("query");
    for (const cell of this.grid.querySelectorAll(".match")) cell.classList.remove("match");
    for (const index of matches) for (const cell of this.cellsOf(this.runs[index])) cell.classList.add("match");
    this.found.textContent = !query ? "" : matches.length === 1 ? "1 field" : `${matches.length || "no"} fields`;
  }

  cellsOf(run) {
    return this.cells[run.word].slice(run.lsb, run.lsb + run.width);
  }

  showCursor() {
    const [word, bit] = this.place;
    this.stopAt(this.cells[word][bit], this.grid.contains(document.activeElement));
    this.tell();
  }

  // The bit under the pointer, else under the cursor, in a line; its field is lit.
  tell() {
    const [word, bit] = this.pointed || this.place, run = this.owners[word][bit], shades = this.model.get("shades");
    const letter = this.model.get("grid")[word][BITS - 1 - bit];
    for (const cell of this.lit) cell.classList.remove("here");
    this.lit = this.cellsOf(run);
    for (const cell of this.lit) cell.classList.add("here");
    const share = !shades.length ? "" : this.model.get("colour") === "flips" ?
      ` · flips in ${shades[word][bit]} %` : ` · ${(shades[word][bit] / 100).toFixed(2)} bits of ${this.model.get("parameter")}`;
    this.status.replaceChildren(`${this.model.get("names")[word]} bit ${bit} · ${this.names[letter]} · `, make("b", "", run.name),
      " ", ...this.links(run.about, run), share);
  }

  showPanel() {
    const panel = this.model.get("panel"), open = this.model.get("opened") && panel.name !== undefined;
    this.panel.hidden = !open;
    const held = this.panel.contains(document.activeElement) && document.activeElement.dataset.parameter;
    if (!open) return void (held && this.stop.focus());
    this.panel.setAttribute("aria-label", `field ${panel.name}`);
    const head = make("div", "title"), close = this.button("close", "Close");
    head.append(make("h4", "", panel.name), make("span", "quiet", `${panel.bits} · ${panel.status}`), close);
    this.panel.replaceChildren(head, panel.law ? this.steps(panel.steps) : make("p", "about", panel.about),
      ...this.list("rivals", panel.rivals), ...this.list("read by the laws of", panel.read_by ?? []), ...this.open_(panel.open), this.scatter(panel.scatter), this.related(panel));
    if (held) this.panel.querySelector(`[data-parameter="${CSS.escape(held)}"]`)?.focus();
  }

  steps(steps) {
    const table = make("table", "steps", "", { "aria-label": "law, step by step" }), body = make("tbody", "");
    const head = make("thead", ""), names = make("tr", "");
    names.append(...["", "when", "law", "captures"].map(name => make(name ? "th" : "td", "", name, name ? { scope: "col" } : {})));
    head.append(names);
    steps.forEach(({ when, law, support, extrapolated }, index) => {
      const row = make("tr", ""), mark = make("td", "mark");
      mark.append(this.mark(index));
      const text = make("td", "law");
      text.append(...this.links(law));
      if (extrapolated) text.append(make("span", "quiet", " beyond what was captured"));
      row.append(mark, make("td", "when", when), text, make("td", "support", support));
      body.append(row);
    });
    table.append(head, body);
    return table;
  }

  mark(step) {
    const svg = draw("svg", { width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" });
    svg.append(draw("path", { d: MARKS[step % MARKS.length], class: `step s${step % MARKS.length}` }));
    return svg;
  }

  // A law with the fields that it reads as links.
  links(text, own) {
    const find = name => this.byName.get(name) !== own && this.byName.get(name);
    return linked(text, find, run => this.follow_(1, run));
  }

  list(title, texts) {
    if (!texts.length) return [];
    const list = make("ul", title === "rivals" ? title : "readers");
    list.append(...texts.map(text => {
      const item = make("li", "");
      item.append(...this.links(text));
      return item;
    }));
    return [make("h5", "", title), list];
  }

  // Open bits: their numbers, the reason, and what to capture, with all parameters to unfold if the line leaves some out.
  open_(rows) {
    if (!rows.length) return [];
    const table = make("table", "open", "", { "aria-label": "open bits" }), head = make("thead", ""), body = make("tbody", "");
    const names = make("tr", "");
    names.append(...["bits", "why it is open", "what to capture"].map(name => make("th", "", name, { scope: "col" })));
    head.append(names);
    for (const [bits, why, line, full] of rows) {
      const row = make("tr", ""), capture = make("td", "", full ? "" : line);
      if (full) {
        const details = make("details", "");
        details.append(make("summary", "", line), full);
        capture.append(details);
      }
      row.append(make("td", "bits", bits), make("td", "", why), capture);
      body.append(row);
    }
    table.append(head, body);
    return [make("h5", "", "open bits"), table];
  }

  // Values of the field over a parameter, with curves of the law and of its rivals; a capture that contradicts the law is
  // a cross.
  scatter({ points, curves, names, parameter, text }) {
    const [width, height] = SIZE, [right, top, bottom, left] = EDGE, figure = make("figure", "");
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text });
    const xs = points.map(point => point[0]), ys = points.map(point => point[1]);
    const laws = curves.filter(curve => curve.kind === "law").flatMap(curve => curve.points.map(point => point[1]));
    const scale = (values, from, to) => {
      const low = Math.min(...values), span = Math.max(...values) - low;
      return [value => span ? from + (value - low) / span * (to - from) : (from + to) / 2, low, low + span];
    };
    const [x, ...across] = scale(xs, left + 4, width - right - 4), [y, ...up] = scale([...ys, ...laws], height - bottom - 4, top + 4);
    const label = (at, down, anchor, said) => {
      const element = draw("text", { x: at, y: down, "text-anchor": anchor });
      element.textContent = said;
      svg.append(element);
    };
    for (const at of names.length ? names.keys() : ticks(...across)) {
      if (names.length > TICKS && at % Math.ceil(names.length / TICKS)) continue;
      svg.append(draw("path", { class: "rule", d: `M${x(at)} ${top}V${height - bottom}` }));
      label(x(at), height - bottom + 13, "middle", names[at] ?? short(at));
    }
    for (const at of ticks(...up)) {
      svg.append(draw("path", { class: "rule", d: `M${left} ${y(at)}H${width - right}` }));
      label(left - 4, y(at) + 4, "end", short(at));
    }
    label((left + width - right) / 2, height - 3, "middle", parameter);
    svg.append(draw("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
    const inside = value => clamp(y(value) - top, height - bottom - top + 1) + top;
    for (const { kind, step, points: along } of [...curves].reverse()) {
      const path = along.map(([at, value]) => `${x(at).toFixed(1)} ${inside(value).toFixed(1)}`).join("L");
      svg.append(draw("path", { class: kind === "rival" ? "curve rival" : `curve step s${step % MARKS.length}`, d: `M${path}` }));
    }
    const spots = points.map(([at, value, step, good]) => {
      const mark = draw("path", { transform: `translate(${x(at).toFixed(1)} ${y(value).toFixed(1)})`,
        class: step < 0 ? "none" : good ? `point step s${step % MARKS.length}` : "wrong",
        d: step < 0 ? DOT : good ? MARKS[step % MARKS.length] : CROSS });
      svg.append(mark);
      return mark;
    });
    const hovered = make("div", "hovered", "a point under the pointer says its capture");
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect(), unit = width / box.width;
      const [px, py] = [(event.clientX - box.left) * unit, (event.clientY - box.top) * unit];
      const far = points.map(([at, value]) => Math.hypot(x(at) - px, y(value) - py)), near = Math.min(...far);
      const index = near <= NEAR ? far.indexOf(near) : -1;
      spots.forEach((spot, at) => spot.classList.toggle("pointed", at === index));
      if (index >= 0) hovered.textContent = points[index][5];
    });
    figure.append(svg, hovered, make("figcaption", "quiet", text), ...this.curves(curves));
    return figure;
  }

  // What the curves are.
  curves(curves) {
    const said = new Map(curves.map(({ kind, text }) => [`${kind} ${text}`, [kind, text]]));
    if (!said.size) return [];
    const list = make("div", "keys quiet"), held = [...said.values()].filter(([kind, text]) => kind === "law" && text);
    const item = (kind, text) => {
      const element = make("span", "key"), svg = draw("svg", { width: 22, height: 8, viewBox: "0 0 22 8", "aria-hidden": "true" });
      svg.append(draw("path", { class: kind === "law" ? "curve step s0" : "curve rival", d: "M0 4H22" }));
      element.append(svg, ` ${text}`);
      return element;
    };
    list.append(item("law", held.length ? `law, drawn for ${held.map(each => each[1]).join("; ")}` : "law"));
    for (const [kind, text] of said.values()) if (kind === "rival") list.append(item("rival", `rival ${text}`));
    return [list];
  }

  related({ related, bit, scatter }) {
    const box = make("div", "related");
    box.append(make("h5", "", "goes with (bits of mutual information)"));
    const row = make("div", "choices");
    row.append(...related.map(([name, share]) => {
      const button = make("button", "", share ? `${name} ${share.toFixed(2)}` : name, { type: "button",
        "aria-pressed": String(name === scatter.parameter) });
      button.dataset.parameter = name;
      return button;
    }));
    if (!related.length) row.append(make("span", "quiet", "no parameter"));
    box.append(row, make("div", "quiet", bit));
    return box;
  }

  // ---- acting ----

  go(word, bit, traits = {}) {
    this.pointed = null;
    this.ask({ place: [clamp(word, this.cells.length), clamp(bit, BITS)], ...traits });
    this.stop.focus();
    this.tell();
  }

  move(words, bits) {
    this.go(this.place[0] + words, this.place[1] + bits);
  }

  open(opened) {
    this.ask({ opened });
    this.stop.focus();
  }

  // Go to the top bit of the next (1) or previous (-1) field in reading order, of all fields or of the matches.
  step(step, among = this.runs) {
    const order = run => run.word * BITS + BITS - run.lsb - run.width, here = order(this.owners[this.place[0]][this.place[1]]);
    const sorted = [...among].sort((a, b) => order(a) - order(b));
    if (!sorted.length) return void (this.status.textContent = "nothing matches");
    const next = step > 0 ? sorted.find(run => order(run) > here) ?? sorted[0] :
      sorted.findLast(run => order(run) < here) ?? sorted.at(-1);
    this.go(next.word, next.lsb + next.width - 1);
  }

  // Go to a field that the law of this one reads, or back to where that was asked.
  follow_(step, run) {
    const [word, bit] = this.place, here = this.owners[word][bit];
    if (step < 0) return this.trail.length ? this.go(...this.trail.pop()) : void (this.status.textContent = "no link was followed");
    const read = ["law", "rivals"].includes(here.status) ? here.about.match(/[A-Za-z_][\w.]*/g) ?? [] : [];
    const to = run ?? read.map(name => this.byName.get(name)).find(other => other && other !== here);
    if (!to) return void (this.status.textContent = `the law of ${here.name} reads no field`);
    this.trail.push([word, bit]);
    this.go(to.word, to.lsb + to.width - 1);
  }

  seek(step) {
    this.step(step, this.model.get("matches").map(index => this.runs[index]));
  }

  choose() {
    const [colour, ...name] = this.colour.value.split(" ");
    this.ask(name.length ? { parameter: name.join(" "), colour } : { colour });
  }

  // ---- listening ----

  listen() {
    this.events = {
      place: () => this.showCursor(),
      matches: () => this.showMatches(),
      query: () => this.showMatches(),
      shades: () => this.paint(),
      panel: () => this.showPanel(),
      opened: () => this.showPanel(),
    };
    this.grid.addEventListener("click", event => this.at(event, ([word, bit]) => this.go(word, bit, { opened: true })));
    this.grid.addEventListener("pointerover", event => this.hover(event));
    this.grid.addEventListener("pointerleave", () => this.point(null));
    this.search.addEventListener("input", () => this.ask({ query: this.search.value }));
    this.colour.addEventListener("change", () => this.choose());
    this.panel.addEventListener("click", event => this.click(event));
    this.root.addEventListener("keydown", event => this.press(event));
  }

  hover(event) {
    if (this.pointerMoved(event)) this.at(event, place => this.point(place));
  }

  point(place) {
    this.pointed = place;
    this.tell();
  }

  click(event) {
    const button = event.target.closest("button");
    if (button?.classList.contains("close")) this.open(false);
    else if (button?.dataset.parameter) this.ask({ against: button.dataset.parameter });
  }

  press(event) {
    const { key, target } = event, letter = key.length === 1;
    if (passes(event) || event.shiftKey && !letter) return;
    const inside = this.grid.contains(target), escape = key === "Escape";
    if (inside && escape && !this.model.get("opened")) return; // leaves the view
    event.stopPropagation();
    if (inside) {
      const act = this.acts.get(key);
      if (!act) return;
      event.preventDefault();
      act(this, event);
    } else if (escape) {
      event.preventDefault(); // it would empty the search
      this.panel.contains(target) ? this.open(false) : this.stop.focus();
    } else if (target === this.search && key === "Enter") {
      event.preventDefault();
      if (!event.isComposing && this.model.get("matches").length) this.first();
    }
  }

  first() {
    const here = this.owners[this.place[0]][this.place[1]].index;
    if (this.model.get("matches").includes(here)) this.stop.focus();
    else this.seek(1);
  }
}

export default mount(View);
