// Draws the map editor. All meaning (names of fields, values of a capture, verdicts on an edit) comes from Python as text;
// this script shows the rows in sight, moves the cursor, filters, and asks. Below the rows stand the bits of the fields, as
// in every view of registers.

const HEIGHT = 22; // pixels of a row
const SPARE = 8; // rows drawn above and below those in sight
const LEAP = 12; // rows
const STEPS = 12; // at most so many are shown
const WIDEST = { register: 20, bits: 20, field: 30, capture: 20, value: 20, evidence: 16 };
const CELL_HELP = {
  bits: "highest and lowest bit as 12:4, one bit as 7, of another word as 8[12:4]",
  value: "blank as stored, signed or f32, then raw, *64, +1, >>2; names as enum:mode 0=off 1=on",
  evidence: "a code of the map's sources, C:case for what a capture shows, guess or unknown",
  field: "a name; empty takes it away",
};
const READ_ONLY = ["capture"];

const KEYS = [
  {
    keys: {
      ArrowLeft: view => view.move(0, -1),
      ArrowRight: view => view.move(0, 1),
      ArrowUp: view => view.move(-1, 0),
      ArrowDown: view => view.move(1, 0),
      PageUp: view => view.move(-LEAP, 0),
      PageDown: view => view.move(LEAP, 0),
      Home: view => view.move(0, -100),
      End: view => view.move(0, 100),
    },
    help: "move",
  },
  { keys: { Enter: view => view.edit() }, help: "edits the cell, bits as 12:4" },
  { keys: { a: view => view.ask("add") }, help: "adds a field" },
  { keys: { s: view => view.ask("split") }, help: "splits" },
  { keys: { j: view => view.ask("join") }, help: "joins" },
  { keys: { x: view => view.send("remove") }, help: "takes the name away" },
  { keys: { u: view => view.send("undo") }, help: "undoes" },
  { keys: { U: view => view.send("redo") }, help: "redoes" },
  { keys: { "/": view => view.search.focus() }, help: "filters" },
  { keys: { "Ctrl+s": (view, { shiftKey }) => view.save(shiftKey) }, help: "saves, with Shift to another file" },
  { help: "Escape leaves" },
];

// In the bits; other keys are those of every view of registers.
const BIT_KEYS = [
  { keys: { a: view => view.editor.name(), Enter: view => view.editor.name() }, help: "make the selected bits a field" },
  { keys: { m: view => view.editor.carry() }, help: "picks the field up and puts it down" },
  { keys: { Escape: view => view.editor.letGo() }, help: "lets go" },
  { keys: {
    s: view => view.editor.ask("split"),
    j: view => view.editor.ask("join"),
    x: view => view.editor.send("remove"),
    u: view => view.editor.send("undo"),
    U: view => view.editor.send("redo"),
  } }, // as in the table
];

// The bits of the fields. The table follows the field under the cursor, unless a field is carried or bits are being
// selected.
class Bits extends BitsFrame {
  constructor(model, el, editor) {
    super(model, el);
    this.editor = editor;
    const { words, reference, selection, places, values, letters, shares } = this.events;
    this.events = { words, reference, cursor: () => this.moved(), selection, places, values, letters, shares };
  }

  get name() {
    return "npulab-map-bits";
  }

  get keys() {
    return [...BIT_KEYS, ...super.keys.filter(row => row !== SEARCH)];
  }

  get listKeys() {
    return [];
  }

  heading() {
    return "";
  }

  parts() {
    return [];
  }

  showSummary() {} // the editor's summary stands above the table and follows its steps

  list() {
    this.items = [];
    for (const index of this.places.keys()) this.showValue(index);
    return "";
  }

  tools() {
    const line = super.tools();
    line.replaceChildren(this.colour.parentNode, this.legend);
    return line;
  }

  moved() {
    this.showCursor();
    if (this.held === undefined && !this.model.get("selection").length && !this.editor.carried) this.editor.showRow(this.here);
  }

  wire() {
    super.wire();
    this.status.removeAttribute("role"); // the editor has a status line of its own
    this.grid.addEventListener("pointerup", () => this.dropped());
  }

  // Put an element below the word of the cursor, over the words that follow: nothing moves.
  place(element) {
    const row = this.stop.parentElement, both = this.grid.parentElement;
    both.append(element);
    element.style.top = `${this.grid.offsetTop + row.offsetTop + row.offsetHeight - this.grid.scrollTop}px`;
  }

  // Escape leaves the view unless a field is picked up or bits are selected.
  press(event) {
    if (event.target === this.editor.answer) return;
    if (event.key === "Escape" && this.grid.contains(event.target) && !this.editor.busy) return;
    super.press(event);
  }

  // A drag is followed by the question for a name; a click moves the table to the field.
  dropped() {
    const dragged = this.model.get("selection").length > 0;
    this.held = undefined;
    if (this.editor.carried) this.editor.carry();
    else if (dragged) this.editor.name();
    else this.editor.showRow(this.here);
  }
}

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.id = unique("npulab-map");
    this.cursor = [0, 2];
    this.carried = ""; // the field that is picked up
    this.drawn = new Map();
    this.field = null; // the input of the cell that is being edited
    this.build(el);
    this.listen();
  }

  get keys() {
    return KEYS;
  }

  // ---- building, once ----

  build(el) {
    this.root = make("div", "npulab-map", "", { role: "group" });
    this.summary = make("span", "npulab-summary");
    const heading = this.heading(this.summary);
    this.strong = heading.firstChild;
    this.status = make("div", "status", "", { role: "status" });
    this.detail = make("div", "detail");
    this.grid = make("div", "grid", "", { role: "grid", tabindex: 0 });
    this.body = make("div", "body", "", { role: "rowgroup" });
    this.steps = make("ol", "steps");
    this.grid.append(this.header(), this.body);
    const side = make("section", "side", "", { "aria-label": "steps" });
    side.append(this.buttons(), this.steps);
    const bits = make("div", "");
    this.root.append(heading, this.tools(), this.status, this.prompt(), this.grid, this.detail,
      this.help(), bits, side);
    el.append(this.root);
    this.bits = new Bits(this.model, bits, this);
    this.take();
    this.showSteps();
    this.tell(this.model.get("status"));
  }

  tools() {
    const line = make("div", "tools"), label = make("label", "", "filter ");
    this.search = make("input", "search", "", { type: "search", placeholder: "register, field, note", spellcheck: "false",
      tabindex: -1 });
    this.found = make("span", "found");
    label.append(this.search);
    this.write = this.button("save", "Save", { tabindex: -1, "aria-keyshortcuts": "Control+S" });
    this.other = this.button("other", "Save as …", { tabindex: -1 });
    line.append(label, this.found, this.write, this.other);
    return line;
  }

  prompt() {
    this.bar = make("div", "ask");
    const label = make("label", "");
    this.question = make("span", "question");
    this.answer = make("input", "answer", "", { spellcheck: "false", autocomplete: "off" });
    label.append(this.question, this.answer);
    this.bar.append(label);
    this.bar.hidden = true;
    return this.bar;
  }

  buttons() {
    const line = make("div", "buttons");
    this.undo = this.button("undo", "Undo", { tabindex: -1 });
    this.redo = this.button("redo", "Redo", { tabindex: -1 });
    line.append(this.undo, this.redo);
    return line;
  }

  header() {
    const row = make("div", "row head", "", { role: "row", "aria-rowindex": 1 });
    row.append(...this.model.get("columns").map((name, place) =>
      make("span", "cell", name, { role: "columnheader", "aria-colindex": place + 1 })));
    return row;
  }

  // ---- what is shown ----

  // Take the rows from Python and narrow them to the rows that have every word of the filter.
  take() {
    const columns = this.model.get("columns"), typed = this.field?.value, key = this.field && this.here.key;
    if (this.field) this.finish(false, true); // the map was edited elsewhere while a cell is typed in
    this.rows = this.model.get("rows").map(([key, register, bits, field, capture, value, evidence, note, kind]) =>
      ({ key, register, bits, field, capture, value, evidence, note, automatic: kind === "automatic" }));
    this.strong.textContent = this.model.get("title");
    this.summary.textContent = this.model.get("summary");
    this.root.setAttribute("aria-label", `map ${this.model.get("title")}`);
    this.grid.setAttribute("aria-label", `${this.model.get("title")}: fields`);
    const width = name => Math.min(WIDEST[name], Math.max(name.length, ...this.rows.map(row => row[name].length))) + 2;
    this.root.style.setProperty("--columns", columns.map(name => WIDEST[name] ? `${width(name)}ch` : "minmax(20ch, 1fr)").join(" "));
    this.narrow();
    if (typed === undefined || this.here?.key !== key) return;
    this.edit();
    this.field.value = typed;
  }

  narrow() {
    const asked = this.search.value.toLowerCase().split(/\s+/).filter(word => word), columns = this.model.get("columns");
    const told = row => columns.map(name => row[name]).join("\n").toLowerCase();
    this.shown = asked.length ? this.rows.filter(row => { const text = told(row); return asked.every(word => text.includes(word)); }) :
      this.rows;
    const count = this.shown.length;
    this.found.textContent = asked.length ? `${count || "no"} field${count === 1 ? "" : "s"}` : "";
    this.grid.setAttribute("aria-rowcount", count + 1);
    this.grid.setAttribute("aria-colcount", columns.length);
    this.body.style.height = `${count * HEIGHT}px`;
    for (const row of this.drawn.values()) row.remove();
    this.drawn.clear();
    this.go(...this.cursor, false);
  }

  // Draw the rows in sight, and the row of the cursor: a screen reader reads it even out of sight.
  paint() {
    const [first, end] = rowsInSight(this.grid.scrollTop, this.grid.clientHeight || 400, HEIGHT, this.shown.length);
    const [from, to] = [Math.max(0, first - SPARE), Math.min(this.shown.length, end + SPARE)];
    const wanted = index => index >= from && index < to || index === this.cursor[0];
    for (const [index, row] of this.drawn) {
      if (wanted(index) || row.contains(this.field)) continue;
      row.remove();
      this.drawn.delete(index);
    }
    for (let index = from; index < to; index++) this.drawRow(index);
    if (this.shown.length) this.drawRow(this.cursor[0]);
  }

  drawRow(index) {
    if (this.drawn.has(index)) return;
    const data = this.shown[index];
    const row = make("div", "row", "", { role: "row", "aria-rowindex": index + 2 });
    row.style.top = `${index * HEIGHT}px`;
    row.classList.toggle("automatic", data.automatic);
    row.classList.toggle("odd", index % 2 === 1);
    this.model.get("columns").forEach((name, place) => {
      const cell = make("span", `cell ${name}`, data[name], { role: "gridcell", id: `${this.id}-${index}-${place}`,
        "aria-colindex": place + 1 });
      if (READ_ONLY.includes(name)) cell.setAttribute("aria-readonly", "true");
      if (data.automatic && name === "field") cell.setAttribute("aria-label", `${data.field}, without a name`);
      [cell.dataset.row, cell.dataset.column] = [index, place];
      row.append(cell);
    });
    this.drawn.set(index, row);
    this.body.append(row);
  }

  cell([row, column] = this.cursor) {
    return this.drawn.get(row)?.children[column];
  }

  get here() {
    return this.shown[this.cursor[0]];
  }

  get column() {
    return this.model.get("columns")[this.cursor[1]];
  }

  go(row, column, scroll = true) {
    this.cell()?.classList.remove("here");
    this.cursor = [clamp(row, Math.max(1, this.shown.length)), clamp(column, this.model.get("columns").length)];
    if (scroll) this.reveal();
    this.paint();
    const cell = this.cell();
    cell?.classList.add("here");
    if (cell) this.grid.setAttribute("aria-activedescendant", cell.id);
    else this.grid.removeAttribute("aria-activedescendant");
    this.detail.textContent = cell ? `${this.column}: ${this.here[this.column] || "nothing"}` : "no field";
  }

  reveal() {
    const top = this.cursor[0] * HEIGHT, room = this.grid.clientHeight - HEIGHT; // below the header
    this.grid.scrollTop = offsetInSight(this.grid.scrollTop, room, top, top + HEIGHT);
    const cell = this.cell();
    if (cell) cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  move(rows, columns) {
    this.go(this.cursor[0] + rows, this.cursor[1] + columns);
    this.showBits();
  }

  // Move the bits to the field of the row.
  showBits() {
    const index = this.bits.places.findIndex(place => place.name === this.here?.key);
    if (index >= 0 && index !== this.bits.here) this.bits.choose(index);
  }

  // Move the table to the field of the bits.
  showRow(index) {
    const row = this.shown?.findIndex(each => each.key === this.bits.places[index].name);
    if (row >= 0 && row !== this.cursor[0]) this.go(row, this.cursor[1]);
  }

  showSteps() {
    const steps = this.model.get("steps"), undone = this.model.get("undone"), first = Math.max(0, steps.length - STEPS);
    this.steps.start = first + 1;
    this.steps.replaceChildren(...steps.slice(first).map(step => make("li", "", step)));
    this.undo.disabled = !steps.length;
    this.redo.disabled = !undone;
    this.undo.title = steps.at(-1) ?? "nothing to undo";
    this.redo.title = undone || "nothing to redo";
    this.write.disabled = this.model.get("saved");
    this.write.title = this.model.get("path") || "asks for a path";
    this.summary.textContent = this.model.get("summary");
  }

  tell(text) {
    this.status.textContent = text;
    this.status.classList.toggle("refused", text.startsWith("refused"));
  }

  // ---- asking ----

  send(act, more = {}) {
    const needs = !["undo", "redo", "save"].includes(act);
    if (needs && !this.here) return this.tell("no field");
    this.model.send(needs ? { do: act, field: this.here.key, ...more } : { do: act, ...more });
  }

  // Save to the draft's file, what is being typed in a cell too; ask for a path if there is none, or for another one.
  save(other = false) {
    if (this.field) this.finish(true, true);
    if (this.model.get("path") && !other) return this.send("save", { text: "" });
    this.question_("save", "save as, a path where no file is, such as registers.csv: ", "");
  }

  edit() {
    const cell = this.cell();
    if (!cell) return;
    if (READ_ONLY.includes(this.column)) return this.tell(`${this.column} is not edited here`);
    const { key } = this.here, column = this.column, before = this.here[column];
    const input = make("input", "edit", "", { spellcheck: "false", autocomplete: "off", "aria-label": `${column} of ${key}` });
    input.value = column === "field" && this.here.automatic ? "" : before;
    input.placeholder = column === "field" && this.here.automatic ? before : "";
    const was = input.value;
    this.detail.textContent = `${column}: ${CELL_HELP[column] ?? "a text"}`;
    cell.replaceChildren(input);
    this.field = input;
    const end = (keep, back) => {
      if (this.field !== input) return;
      this.field = null;
      if (cell.isConnected) cell.textContent = before;
      if (back) this.grid.focus({ preventScroll: true });
      if (keep && input.value !== was) this.model.send({ do: "cell", field: key, column, text: input.value });
    };
    this.finish = end;
    input.addEventListener("blur", () => end(true, false));
    input.focus();
    input.select();
  }

  // The selected bits, or as many bits from the cursor up as the carried field has, or the bit of the cursor: as Python
  // reads them, and as a person reads them.
  run() {
    const { bits } = this, [word, bit] = bits.cursor, [, lsb, width] = this.model.get("selection");
    const carried = bits.places.find(place => place.name === this.carried)?.pieces[0][2] ?? 1;
    const [low, count] = width ? [lsb, width] : [bit, carried];
    return [`${word}[${low + count - 1}:${low}]`, `${this.model.get("registers")[word]}[${low + count - 1}:${low}]`];
  }

  // Ask for the name of the selected bits.
  name() {
    const [run, told] = this.run();
    this.question_("add", `new field ${told}, its name `, "", text => `${text} ${run}`);
    this.bits.place(this.bar);
    this.answer.focus({ preventScroll: true });
    this.bar.scrollIntoView({ block: "nearest" });
  }

  get busy() {
    return Boolean(this.carried || this.model.get("selection").length);
  }

  // Pick the field up, or put it down.
  carry() {
    const { carried } = this;
    if (!this.here && !carried) return this.tell("no field");
    if (!carried) {
      this.carried = this.here.key;
      return this.tell(`${this.carried} is picked up: select its new bits, or go to the lowest one and press m · Escape lets it go`);
    }
    const [text] = this.run();
    this.letGo();
    this.model.send({ do: "cell", field: carried, column: "bits", text });
  }

  letGo() {
    this.carried = "";
    this.tell("");
    super.ask({ selection: [] });
  }

  // Ask below the status line for an edit that needs more than a cell.
  ask(act) {
    if (!this.here) return this.tell("no field");
    const { key, register, bits, automatic, field } = this.here, next = this.shown[this.cursor[0] + 1];
    if (act === "add") {
      this.question_(act, `add to register ${register}, as name 12:4 `, ` ${bits.match(/\[(.*?)\]/)?.[1] ?? ""}`);
      this.answer.setSelectionRange(0, 0);
    } else if (act === "split") this.question_(act, `split ${key}, low end first, as name:width name:width `, "");
    else this.question_(act, `join ${key} with field as name `, next ? `${next.key} as ${automatic ? "" : field}` : "");
  }

  question_(act, text, answer, whole = typed => typed) {
    this.back = document.activeElement;
    this.asked = { act, key: this.here?.key ?? "", whole };
    this.question.textContent = text;
    this.answer.value = answer;
    this.root.insertBefore(this.bar, this.grid);
    this.bar.style.top = "";
    this.bar.hidden = false;
    this.answer.focus({ preventScroll: true });
    this.answer.select();
  }

  answered(keep) {
    const { act, key, whole } = this.asked, inBits = this.bits.root.contains(this.back);
    this.bar.hidden = true;
    (inBits ? this.bits.stop : this.grid).focus({ preventScroll: true });
    if (inBits) this.letGo();
    if (keep) this.model.send({ do: act, field: key, text: whole(this.answer.value) });
  }

  // ---- listening ----

  listen() {
    this.events = {
      rows: () => this.take(),
      title: () => { this.strong.textContent = this.model.get("title"); },
      summary: () => this.showSteps(),
      steps: () => this.showSteps(),
      undone: () => this.showSteps(),
      path: () => this.showSteps(),
      saved: () => this.showSteps(),
      status: () => this.tell(this.model.get("status")),
      ...this.bits.events,
    };
    this.grid.addEventListener("scroll", () => this.paint());
    this.grid.addEventListener("mousedown", event => this.click(event));
    this.grid.addEventListener("dblclick", event => event.target.dataset.row !== undefined && this.edit());
    this.search.addEventListener("input", () => this.narrow());
    this.undo.addEventListener("click", () => this.send("undo"));
    this.redo.addEventListener("click", () => this.send("redo"));
    this.write.addEventListener("click", () => this.save());
    this.other.addEventListener("click", () => this.save(true));
    this.root.addEventListener("keydown", event => this.press(event));
  }

  click(event) {
    const { row, column } = event.target.dataset;
    if (row === undefined) return;
    this.go(Number(row), Number(column), false);
    this.showBits();
  }

  press(event) {
    const { key, target } = event, letter = key.length === 1;
    if (passes(event) && this.saves(event)) return;
    if (this.bits.root.contains(target) && target !== this.answer) return; // the bits have keys of their own
    if (passes(event) || event.shiftKey && !letter && !this.typed(target)) return;
    if (target === this.grid && key === "Escape") return; // leaves the view
    event.stopPropagation();
    if (target === this.grid) {
      const act = this.acts.get(key);
      if (!act || event.repeat && letter) return;
      event.preventDefault();
      act(this, event);
    } else if (this.typed(target) && (key === "Enter" || key === "Escape")) {
      if (event.isComposing) return;
      event.preventDefault();
      this.typedEnd(target, key === "Enter");
    }
  }

  // Ctrl+S saves the map, and not the notebook around it.
  saves(event) {
    const act = (event.ctrlKey || event.metaKey) && this.acts.get(`Ctrl+${event.key.toLowerCase()}`);
    if (!act) return false;
    event.preventDefault();
    event.stopPropagation();
    if (!event.repeat) act(this, event);
    return true;
  }

  typed(target) {
    return target.tagName === "INPUT";
  }

  typedEnd(target, keep) {
    if (target === this.field) return this.finish(keep, true);
    if (target === this.answer) return this.answered(keep);
    if (!keep) {
      this.search.value = "";
      this.narrow();
    }
    this.grid.focus({ preventScroll: true });
  }
}

export default mount(View);
