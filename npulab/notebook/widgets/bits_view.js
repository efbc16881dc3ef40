// Words as rows of bits with the names of their fields, and the fields in a list next to them: the base of the views of
// registers. All meaning (values, descriptions of fields, what is known of a bit) comes from Python; this script paints,
// moves the cursor, selects, filters and copies.
//
// Bit operators return signed numbers: `>>> 0` follows each operator whose result is kept.

const BITS = 32;
const PAGE = 8;
const GAP = 4; // pixels between two names

// The keys of the bits, and of the list next to them.
const SEARCH = { keys: { "/": view => view.search.focus() }, help: "searches, also by raw != 0 and evidence == guess" };
const EXPRESSION = /[=!]=|[<>]/; // a search that Python reads
const SHARED_KEYS = [
  { keys: { n: view => view.seek(1, true), p: view => view.seek(-1, true) }, help: "go to the next and previous field that differs" },
  { keys: { "]": view => view.seek(1), "[": view => view.seek(-1) }, help: "to the next and previous bit that differs" },
  { keys: { g: view => view.follow_() }, help: "goes to the field that the law reads" },
  { keys: { c: view => view.copy(view.line()) }, help: "copies the line" },
  { keys: { C: view => view.copy(view.lines()) }, help: "copies the list" },
];
const GRID_KEYS = [
  { help: "click selects, drag selects a run" },
  { keys: { "Shift+ArrowLeft": view => view.extendBy(1), "Shift+ArrowRight": view => view.extendBy(-1) }, help: "select a run" },
  { keys: { "Ctrl+a": view => view.selectWord() }, help: "selects the word" },
  SEARCH,
  ...SHARED_KEYS,
  { keys: bitMoves(PAGE, BITS), help: "move" },
];
const LIST_KEYS = [
  SEARCH,
  ...SHARED_KEYS,
  { keys: rowMoves(PAGE, "step"), help: "move" },
];

const SHOWS = { all: "all fields", nonzero: "not zero", unknown: "unknown", differing: "differing" };
const TONES = ["#2b8a3e", "#1971c2", "#d9730d", "#9c36b5", "#0c8599", "#c2255c", "#846800", "#5f3dc4"];
const VALUE_TONES = { "not zero": TONES[1], "all ones": TONES[3], differing: TONES[2] };
// What is known of a bit: its letter, name and colour; the status that leaves most to do stands first.
const KNOWN = { "?": ["open", TONES[5]], R: ["rivals", TONES[2]], N: ["nuisance", TONES[3]], L: ["law", TONES[0]],
  C: ["constant", TONES[1]], "·": ["never exercised", ""] };

function hex(word) {
  return "0x" + word.toString(16).padStart(8, "0");
}

// The names behind a whole one that begin before its end, and how far they move; a short one has no room left.
function covered(label) {
  const end = label.offsetLeft + label.offsetWidth + GAP, found = [];
  for (let next = label.nextElementSibling; next; next = next.nextElementSibling) {
    if (!next.classList.contains("label")) continue;
    const by = end - next.offsetLeft;
    if (by <= 0) break;
    found.push([next, next.dataset.short ? next.offsetWidth : by]);
  }
  return found;
}

function ones(width) {
  return width === BITS ? 0xffffffff : 2 ** width - 1;
}

// The runs of bits of a word with their names, as a text to compare.
function cut(owners) {
  return owners.map(({ place, first }) => first ? `${place.name}${place.automatic ? "?" : ""}` : "").join();
}

// The value in a text of the form `raw = value`, with `, reference raw = value` if it differs. A new field has no text yet.
function meant(text = "") {
  return text.slice(text.indexOf(" = ") + 3).split(", reference ")[0];
}

// The views that extend it give their `name`, the tables `keys` and `listKeys`, and `parts`, the elements between the
// tools and the bits.
class BitsFrame extends Frame {
  constructor(model, el) {
    super(model);
    this.id = unique(this.name);
    this.listActs = keyActs(this.listKeys);
    this.words = model.get("words");
    this.reference = model.get("reference");
    this.pointed = null;
    [this.lit, this.named, this.shifted, this.chosen] = [[], [], [], []];
    this.build();
    el.append(this.root);
    this.listen();
  }

  get keys() {
    return GRID_KEYS;
  }

  get listKeys() {
    return LIST_KEYS;
  }

  get shows() {
    return SHOWS;
  }

  get colours() {
    const { model } = this;
    return { "": "field", evidence: "evidence", value: "value", ...(model.get("letters").length && { law: "law" }),
      ...(model.get("shares").length && { flips: "flips" }) };
  }

  get cursor() {
    return this.model.get("cursor");
  }

  get filter() {
    return this.model.get("filter") ?? ""; // the map editor has no search, and no filter
  }

  // The field of the cursor.
  get here() {
    const [word, bit] = this.cursor;
    return this.owners[word][bit].index;
  }

  // ---- building, once for a map ----

  build() {
    const { model } = this;
    const names = model.get("registers");
    this.own();
    this.cells = names.map(() => new Array(BITS));
    this.hexes = [];
    this.root = make("div", `${this.name} npulab-bits`);
    this.root.style.setProperty("--npulab-name", Math.max(8, ...names.map(name => name.length)) + 1 + "ch");
    this.grid = make("div", "npulab-grid", "", { role: "grid", "aria-label": `${model.get("title")}: bits` });
    this.summary = make("div", "npulab-summary");
    this.status = make("div", "npulab-status", "", { role: "status" });
    this.rows = names.map((name, word) => this.row(name, word));
    this.grid.append(this.header(), ...this.rows);
    this.heads = this.unitHeads();
    const both = make("div", "both");
    const side = make("div", "side");
    side.append(this.list());
    both.append(this.grid, side);
    this.root.append(this.heading(), this.tools(), ...this.parts(), this.status, both, this.summary, this.help());
    for (const word of names.keys()) this.paint(word, -1);
    this.narrow();
    this.showCursor();
    this.showSelection();
    this.showSummary();
    this.wire();
  }

  // The map changed: other fields own the bits. If there is no list, words whose runs are the same stay as they are.
  rebuild() {
    const names = this.model.get("registers"), before = this.owners.map(cut), { rows } = this;
    if (this.fields || names.join() !== rows.map(row => row.firstChild.textContent).join()) return this.renew();
    const held = this.grid.contains(document.activeElement);
    this.own();
    for (const [word, owners] of this.owners.entries()) {
      if (cut(owners) !== before[word]) {
        const row = this.row(names[word], word);
        rows[word].replaceWith(row);
        rows[word] = row;
        this.paint(word, -1);
        continue;
      }
      const labels = rows[word].querySelectorAll(".label"), named = owners.filter(({ first, place }) => first && !place.automatic);
      named.reverse().forEach(({ index }, at) => this.labels[index].push(labels[at]));
    }
    this.list();
    this.narrow();
    this.showCursor();
    this.showSelection();
    if (held) this.stop.focus();
  }

  renew() {
    const { root, grid } = this, held = grid.contains(document.activeElement), top = grid.scrollTop;
    const asked = [this.search.value, this.kind.value, this.colour.value];
    [this.pointed, this.lit, this.named, this.shifted, this.chosen] = [null, [], [], [], []];
    this.build();
    [this.search.value, this.kind.value, this.colour.value] = asked;
    if (!this.kind.value) this.kind.value = "all"; // no field of the new map has the evidence chosen
    this.narrow();
    root.replaceWith(this.root);
    this.grid.scrollTop = top;
    if (held) this.stop.focus();
  }

  // Find the field of each bit, and the ends of its run of bits.
  own() {
    this.places = this.model.get("places");
    this.texts = this.model.get("values");
    this.byName = new Map(this.places.map(({ name }, index) => [name, index]));
    this.kinds = [...new Set(this.places.map(place => place.kind))].sort();
    this.owners = this.model.get("registers").map(() => new Array(BITS));
    this.labels = this.places.map(() => []);
    this.places.forEach((place, index) => {
      for (const [word, lsb, width] of place.pieces) {
        for (let bit = lsb; bit < lsb + width; bit++) {
          this.owners[word][bit] = { index, place, first: bit === lsb + width - 1, last: bit === lsb };
        }
      }
    });
  }

  tools() {
    const line = make("div", "tools");
    const option = ([value, text]) => Object.assign(make("option", "", text), { value });
    const labelled = (text, input) => {
      const label = make("label", "", text);
      label.append(input);
      return label;
    };
    this.search = make("input", "search", "", { type: "search", placeholder: "name, bits, note", spellcheck: "false",
      tabindex: -1 });
    this.search.value = this.filter;
    this.kind = make("select", "kind", "", { tabindex: -1 });
    this.kind.append(...Object.entries(this.shows).map(option), ...this.kinds.map(kind => option([`=${kind}`, `evidence ${kind}`])));
    this.colour = make("select", "colour", "", { tabindex: -1 });
    this.colour.append(...Object.entries(this.colours).map(option));
    this.found = make("span", "found");
    this.legend = make("span", "legend");
    line.append(labelled("search ", this.search), labelled("show ", this.kind), labelled("colour by ", this.colour),
      this.found, this.legend);
    return line;
  }

  header() {
    const row = make("div", "npulab-row npulab-head", "", { role: "row" });
    row.append(make("span", "npulab-name", "register", { role: "columnheader" }));
    for (let bit = BITS - 1; bit >= 0; bit--) {
      row.append(make("span", bit % 4 === 3 ? "nibble" : "", bit, { role: "columnheader" }));
    }
    for (const name of ["word", "reference"]) row.append(make("span", "npulab-hex", name, { role: "columnheader" }));
    return row;
  }

  // The name of a unit in front of its first word, where a job has words of several units: a row for each such name.
  unitHeads() {
    const units = this.model.get("units") ?? [], heads = [];
    units.forEach((unit, word) => {
      if (unit !== units[word - 1]) {
        const head = make("div", "npulab-unit", "", { role: "row" });
        head.append(make("span", "", unit, { role: "rowheader" }));
        this.rows[word].before(head);
        heads.push({ head, words: [] });
      }
      heads.at(-1).words.push(word);
    });
    return heads;
  }

  row(name, word) {
    const row = make("div", "npulab-row", "", { role: "row" });
    row.append(make("span", "npulab-name", name, { role: "rowheader" }));
    let odd = true;
    for (let bit = BITS - 1; bit >= 0; bit--) {
      const { first, last, place, index } = this.owners[word][bit];
      if (first) {
        odd = !odd;
        if (!place.automatic) row.append(this.label(index, word, bit));
      }
      const cell = make("span", "npulab-bit", "", { role: "gridcell", tabindex: -1 });
      const kinds = { nibble: bit % 4 === 3, first, last, odd, unnamed: place.automatic };
      for (const [kind, holds] of Object.entries(kinds)) cell.classList.toggle(kind, holds);
      [cell.dataset.word, cell.dataset.bit] = [word, bit];
      this.cells[word][bit] = cell;
      row.append(cell);
    }
    this.hexes[word] = ["npulab-hex", "npulab-hex"].map(kind => make("span", kind, "", { role: "gridcell" }));
    row.append(...this.hexes[word]);
    return row;
  }

  // The name above a run of bits; a screen reader skips it, as each bit says it too.
  label(index, word, high) {
    const at = this.places[index].pieces.findIndex(([piece, lsb, bits]) => piece === word && lsb + bits - 1 === high);
    const label = make("span", "label", "", { "aria-hidden": "true" }), short = this.places[index].shorts[at];
    if (short) label.dataset.short = short;
    label.style.gridColumn = `${2 + BITS - 1 - high} / span ${this.places[index].pieces[at][2]}`;
    this.labels[index].push(label);
    return label;
  }

  list() {
    this.fields = make("div", "fields", "", { role: "listbox", tabindex: 0, "aria-label": "fields" });
    this.items = this.places.map((place, index) => {
      const item = make("div", "item", "", { role: "option", id: `${this.id}-${index}`, "aria-selected": "false" });
      item.classList.toggle("automatic", place.automatic);
      item.dataset.index = index;
      item.append(make("span", "swatch"), make("span", "name", place.name), make("span", "value"),
        make("span", "where", place.bits));
      return item;
    });
    this.fields.append(...this.groups());
    for (const index of this.places.keys()) this.showValue(index);
    return this.fields;
  }

  // The fields of a unit as a group of the list, where there are several units: names need not repeat it, and not the
  // register either where no other field of the unit has the name.
  groups() {
    const units = this.model.get("units") ?? [], counts = {};
    const unitOf = place => units[place.pieces[0][0]], known = place => `${unitOf(place)}.${place.own}`;
    this.groupsOf = [];
    if (!units.length) return this.items;
    for (const place of this.places) counts[known(place)] = (counts[known(place)] ?? 0) + 1;
    for (const [index, item] of this.items.entries()) {
      const place = this.places[index], unit = unitOf(place);
      if (this.groupsOf.at(-1)?.dataset.unit !== unit) {
        const group = make("div", "group", "", { role: "group", "aria-label": unit, "data-unit": unit });
        group.append(make("div", "unit", unit, { "aria-hidden": "true" }));
        this.groupsOf.push(group);
      }
      item.children[1].textContent = counts[known(place)] > 1 ? place.name.replace(`${unit}.`, "") : place.own;
      this.groupsOf.at(-1).append(item);
    }
    return this.groupsOf;
  }

  // ---- painting ----

  // Paint the bits of a word that are set in `mask`.
  paint(word, mask) {
    const now = this.words[word], reference = this.reference[word];
    for (let bit = 0; bit < BITS; bit++) if (mask >>> bit & 1) this.paintBit(word, bit, now, reference);
    const [shown, other] = this.hexes[word];
    shown.textContent = hex(now);
    shown.classList.toggle("differs", now !== reference);
    other.textContent = now === reference ? "" : hex(reference);
  }

  // What the colour of a bit says, in words.
  known(word, bit) {
    const letters = this.model.get("letters"), shares = this.model.get("shares");
    return { law: letters[word] && `, ${KNOWN[letters[word][BITS - 1 - bit]][0]}`,
      flips: shares[word] && `, flips in ${shares[word][bit]} % of the steps` }[this.colour.value] ?? "";
  }

  paintBit(word, bit, now, reference) {
    const cell = this.cells[word][bit], { place } = this.owners[word][bit];
    const on = now >>> bit & 1, differs = on !== (reference >>> bit & 1);
    cell.textContent = on;
    cell.classList.toggle("set", on === 1);
    cell.classList.toggle("differs", differs);
    cell.setAttribute("aria-label", `${on}, bit ${bit}, ${place.automatic ? "unnamed " : ""}${place.name}` +
      (differs ? ", differs from the reference" : "") + this.known(word, bit));
  }

  repaint() {
    const [words, reference] = [this.words, this.reference];
    this.words = this.model.get("words");
    this.reference = this.model.get("reference");
    this.words.forEach((now, word) => {
      const flipped = now ^ words[word];
      const mask = flipped | (now ^ this.reference[word]) ^ (words[word] ^ reference[word]);
      if (mask) this.paint(word, mask);
    });
    if (["nonzero", "differing"].includes(this.kind.value) || this.colour.value === "value") this.narrow();
    else this.showReference();
  }

  showReference() {
    this.grid.classList.toggle("alike", this.words.every((now, word) => now === this.reference[word]));
  }

  showValue(index) {
    const { name, own } = this.places[index], text = meant(this.texts[index]);
    for (const label of this.labels[index]) label.textContent = `${own} ${text}`;
    const item = this.items[index], value = item?.children[2];
    if (!item) return; // a view without a list
    value.textContent = text;
    item.title = `${name}: ${this.texts[index] ?? ""}`;
    value.classList.toggle("differs", this.differs(index));
  }

  showValues() {
    const before = this.texts;
    this.texts = this.model.get("values");
    if (this.texts.length !== this.places.length) return; // the values of the next map, whose fields come in the next message
    this.texts.forEach((text, index) => text === before[index] || this.showValue(index));
    this.tell();
  }

  showCursor() {
    const [word, bit] = this.cursor, item = this.items[this.here];
    this.stopAt(this.cells[word][bit], this.grid.contains(document.activeElement));
    this.marked?.setAttribute("aria-selected", "false");
    this.marked = item;
    if (item) {
      item.setAttribute("aria-selected", "true");
      this.fields.setAttribute("aria-activedescendant", item.id);
      reveal(this.fields, item, 0);
    }
    reveal(this.grid, this.cells[word][bit].parentElement, this.grid.firstChild.offsetHeight);
    this.tell();
  }

  showSelection() {
    for (const cell of this.chosen) cell.classList.remove("chosen");
    const [word, lsb, width] = this.model.get("selection");
    this.chosen = width ? this.cells[word].slice(lsb, lsb + width) : [];
    for (const cell of this.chosen) cell.classList.add("chosen");
    this.tell();
  }

  showSummary() {
    this.summary.textContent = this.model.get("summary");
  }

  // Show the field under the pointer, or else the run that is selected, or else the field under the cursor: as a text in
  // the status line, with all its pieces lit.
  tell(note = "") {
    const [word, bit] = this.pointed || this.cursor;
    const { index, place } = this.owners[word][bit];
    this.light(index);
    if (note) return void (this.status.textContent = note);
    if (!this.pointed && this.model.get("selection").length) return void (this.status.textContent = this.line());
    const where = `${this.model.get("registers")[word]} bit ${bit}`;
    const parts = [make("span", "", where), make("b", "", place.name), make("span", "", place.bits),
      make("b", "", this.texts[index]), this.known_(index)];
    this.status.replaceChildren(parts[0], " · ", parts[1], " ", parts[2], " · ", parts[3], " · ", parts[4]);
  }

  // What is known of a field; the fields that its law reads are links.
  known_(index) {
    const { known, law, reads } = this.places[index], told = make("span", "", law ? known.slice(0, known.length - law.length) : known);
    if (law) told.append(...linked(law, name => reads.includes(name) && name, name => this.choose(this.byName.get(name))));
    return told;
  }

  // Go to the first field that the law of this one reads.
  follow_() {
    const [name] = this.places[this.here].reads;
    if (!name) return this.tell("no law of this field reads another field");
    this.choose(this.byName.get(name));
    if (this.grid.contains(document.activeElement)) this.stop.focus();
  }

  // Light all pieces of a field; where its name has no room, those of its neighbours make room meanwhile.
  light(index) {
    for (const cell of this.lit) cell.classList.remove("here");
    for (const label of this.named) label.classList.remove("whole");
    this.lit = this.places[index].pieces.flatMap(([word, lsb, width]) => this.cells[word].slice(lsb, lsb + width));
    this.named = this.labels[index];
    for (const cell of this.lit) cell.classList.add("here");
    for (const label of this.named) label.classList.add("whole");
    this.makeRoom();
  }

  // What the whole names would cover begins behind them. Before the page shows the view, nothing has a size.
  makeRoom() {
    const moves = this.named.filter(label => label.offsetWidth).flatMap(covered);
    for (const label of this.shifted) label.style.textIndent = "";
    for (const [label, by] of moves) label.style.textIndent = `${by}px`;
    this.shifted = moves.map(([label]) => label);
  }

  // ---- which fields, in which colour ----

  some(index, what) {
    return this.places[index].pieces.some(([word, lsb, width]) => what(word) >>> lsb & ones(width));
  }

  differs(index) {
    return this.some(index, word => this.words[word] ^ this.reference[word]);
  }

  // Show the fields that are asked for: the list has no other fields, in the grid the others are empty boxes. A search
  // also hides the words that have no such field.
  narrow() {
    const typed = this.search.value, asked = EXPRESSION.test(typed) ? [] : typed.toLowerCase().split(/\s+/).filter(word => word);
    const kind = this.kind.value, filter = this.filter, kept = new Set(this.model.get("kept")), found = new Set();
    const tests = {
      all: () => true,
      nonzero: index => this.some(index, word => this.words[word]),
      unknown: index => this.places[index].automatic || this.places[index].kind === "unknown",
      differing: index => this.differs(index),
    };
    const holds = tests[kind] ?? this.shownIf(kind) ?? (index => `=${this.places[index].kind}` === kind);
    this.shown = [];
    this.places.forEach((place, index) => {
      const text = `${place.name} ${place.bits} ${place.known} ${this.texts[index]}`.toLowerCase();
      const shown = asked.every(word => text.includes(word)) && holds(index) && (!filter || kept.has(index)), tone = shown ? this.tone(index) : "";
      if (shown) this.shown.push(index);
      const item = this.items[index];
      if (item) [item.hidden, item.firstChild.style.background] = [!shown, tone];
      for (const label of this.labels[index]) label.hidden = !shown;
      for (const [word, lsb, width] of place.pieces) {
        if (shown) found.add(word);
        for (let bit = lsb; bit < lsb + width; bit++) {
          const cell = this.cells[word][bit], [of, much] = this.bitTone(word, bit, tone);
          cell.classList.toggle("out", !shown);
          cell.style.setProperty("--tone", shown ? of : "");
          cell.style.setProperty("--much", much);
        }
      }
    });
    const searched = asked.length > 0 || filter !== "";
    this.rows.forEach((row, word) => { row.hidden = searched && !found.has(word); });
    for (const { head, words } of this.heads) head.hidden = words.every(word => this.hides(word));
    for (const group of this.groupsOf ?? []) group.hidden = [...group.children].slice(1).every(item => item.hidden);
    const count = this.shown.length, all = this.places.length;
    this.found.textContent = EXPRESSION.test(typed) && typed.trim() !== filter ? "Enter filters" : count === all ? `${all} field${all === 1 ? "" : "s"}` : `${count || "none"} of ${all} fields`;
    this.root.classList.toggle("toned", this.colour.value !== "");
    this.showLegend();
    this.showReference();
  }

  // A view may have a test of its own for what is shown.
  shownIf() {
    return undefined;
  }

  tone(index) {
    const { kind, pieces } = this.places[index];
    if (this.colour.value === "evidence") return kind === "unknown" ? "" : TONES[this.kinds.indexOf(kind) % TONES.length];
    if (this.colour.value === "law") return this.fieldLaw(index);
    if (this.colour.value === "flips") return this.moves(index) ? "var(--npulab-lead)" : "";
    if (this.colour.value !== "value") return "";
    if (this.differs(index)) return VALUE_TONES.differing;
    if (!this.some(index, word => this.words[word])) return "";
    return pieces.some(([, , width]) => width > 1) && !this.some(index, word => ~this.words[word]) ? VALUE_TONES["all ones"] :
      VALUE_TONES["not zero"];
  }

  // The colour of a bit and its strength; laws and a sweep distinguish the bits of a field, all else colours the field.
  bitTone(word, bit, tone) {
    if (this.colour.value === "law") return [KNOWN[this.model.get("letters")[word][BITS - 1 - bit]][1], ""];
    if (this.colour.value !== "flips") return [tone, ""];
    const share = this.model.get("shares")[word][bit];
    return share ? ["var(--npulab-lead)", `${10 + share / 2}%`] : ["", ""];
  }

  // The colour of the field's bit that leaves most to do.
  fieldLaw(index) {
    const letters = this.model.get("letters"), order = Object.keys(KNOWN);
    const places = this.places[index].pieces.flatMap(([word, lsb, width]) =>
      [...letters[word].slice(BITS - lsb - width, BITS - lsb)].map(letter => order.indexOf(letter)));
    return KNOWN[order[Math.min(...places)]][1];
  }

  moves(index) {
    const shares = this.model.get("shares");
    return this.places[index].pieces.some(([word, lsb, width]) => shares[word].slice(lsb, lsb + width).some(share => share));
  }

  recolour() {
    for (const word of this.words.keys()) this.paint(word, -1);
    this.narrow();
  }

  showLegend() {
    const tones = { "": {}, value: { zero: "", ...VALUE_TONES }, law: Object.fromEntries(Object.values(KNOWN)),
      flips: { "never flips": "", "flips (the darker, the more often)": "var(--npulab-lead)" },
      evidence: Object.fromEntries(this.kinds.map((kind, n) => [kind, kind === "unknown" ? "" : TONES[n % TONES.length]])) };
    this.legend.replaceChildren(...Object.entries(tones[this.colour.value]).map(([text, tone]) => {
      const entry = make("span", "entry"), swatch = make("span", "swatch");
      swatch.style.background = tone;
      entry.append(swatch, text);
      return entry;
    }));
  }

  // ---- acting ----

  go(word, bit, selection = []) {
    this.pointed = null;
    this.ask({ cursor: [clamp(word, this.words.length), clamp(bit, BITS)], selection });
    this.stop.focus();
    this.tell();
  }

  // Words that are hidden are passed over.
  move(words, bits) {
    const [word, bit] = this.cursor, last = this.cells.length - 1, step = Math.sign(words);
    let to = clamp(word + words, last + 1);
    while (step && this.hides(to) && to > 0 && to < last) to += step;
    while (step && this.hides(to) && to !== word) to -= step;
    this.go(to, bit + bits);
  }

  hides(word) {
    return this.rows[word].hidden;
  }

  selectWord() {
    this.anchor = BITS - 1;
    this.go(...this.cursor, [this.cursor[0], 0, BITS]);
  }

  // Select from where the selection began to a bit of the same word.
  extend(bit) {
    const [word] = this.cursor, [anchor, to] = [this.anchor, clamp(bit, BITS)];
    this.go(word, to, [word, Math.min(anchor, to), Math.abs(anchor - to) + 1]);
  }

  // Go to the highest bit of a field, from the list.
  choose(index) {
    const [word, lsb, width] = this.places[index].pieces.at(-1);
    this.pointed = null;
    this.ask({ cursor: [word, lsb + width - 1], selection: [] });
    this.tell();
  }

  step(fields) {
    const { shown } = this, at = shown.indexOf(this.here);
    if (!shown.length) return;
    this.choose(shown[at < 0 ? 0 : clamp(at + fields, shown.length)]);
  }

  line() {
    const [word, lsb, width] = this.model.get("selection"), place = this.places[this.here];
    if (!width) return `${place.name} ${place.bits} · ${this.texts[this.here]} · ${place.known}`;
    const run = (this.words[word] >>> lsb & ones(width)) >>> 0, names = new Set();
    for (let bit = lsb + width - 1; bit >= lsb; bit--) names.add(this.owners[word][bit].place.name);
    return `${this.model.get("registers")[word]}[${lsb + width - 1}:${lsb}] · 0x${run.toString(16)} = ${run} · ` +
      `${width} bit${width === 1 ? "" : "s"} of ${[...names].join(", ")}`;
  }

  lines() {
    return this.shown.map(index => [this.places[index].name, this.places[index].bits, this.texts[index]].join("\t")).join("\n");
  }

  async copy(text) {
    const count = text.split("\n").length;
    try {
      await navigator.clipboard.writeText(asCells(text));
      this.tell(`copied ${count} line${count === 1 ? "" : "s"}`);
    } catch {
      this.tell(`the page is not allowed to copy: ${text.slice(0, 200)}`);
    }
  }

  // Go to the next (1) or previous (-1) bit that differs, in reading order and round the end; with `field` to a bit of
  // another field, if another field differs.
  seek(step, field) {
    const here = this.places[this.here];
    const found = field && this.differing(step, here) || this.differing(step);
    return found ? this.go(...found) : this.tell(this.model.get("summary"));
  }

  differing(step, besides) {
    const count = this.words.length * BITS, [word, bit] = this.cursor;
    for (let n = 1, at = word * BITS + BITS - 1 - bit; n <= count; n++) {
      at = (at + step + count) % count;
      const [row, column] = [Math.floor(at / BITS), BITS - 1 - at % BITS];
      const differs = (this.words[row] ^ this.reference[row]) >>> column & 1;
      if (differs && !this.hides(row) && this.owners[row][column].place !== besides) return [row, column];
    }
    return null;
  }

  // ---- listening ----

  listen() {
    this.events = {
      words: () => this.repaint(),
      reference: () => this.repaint(),
      cursor: () => this.showCursor(),
      selection: () => this.showSelection(),
      places: () => this.rebuild(),
      values: () => this.showValues(),
      summary: () => this.showSummary(),
      status: () => this.tell(this.model.get("status")),
      letters: () => this.rebuild(),
      shares: () => this.narrow(),
      kept: () => this.narrow(),
      filter: () => this.showFilter(),
    };
  }

  wire() {
    new ResizeObserver(() => this.makeRoom()).observe(this.grid);
    this.grid.addEventListener("pointerdown", event => this.at(event, place => this.down(event, place)));
    this.grid.addEventListener("pointerover", event => this.hover(event));
    this.grid.addEventListener("pointerleave", () => this.point(null));
    this.fields?.addEventListener("pointerover", event => this.overItem(event, index => this.light(index)));
    this.fields?.addEventListener("pointerleave", () => this.tell());
    this.fields?.addEventListener("click", event => this.overItem(event, index => this.choose(index)));
    this.search.addEventListener("input", () => this.searched());
    this.kind.addEventListener("change", () => this.narrow());
    this.colour.addEventListener("change", () => this.recolour());
    this.root.addEventListener("keydown", event => this.press(event));
  }

  down(event, [word, bit]) {
    if (event.button) return;
    event.preventDefault(); // a drag would select text
    if (event.shiftKey && word === this.cursor[0]) return this.extend(bit);
    this.anchor = bit;
    this.held = word;
    this.go(word, bit);
  }

  hover(event) {
    if (!this.pointerMoved(event)) return;
    this.at(event, ([word, bit]) => {
      if (event.buttons & 1 && word === this.held) this.extend(bit);
      else this.point([word, bit]);
    });
  }

  overItem(event, act) {
    const item = event.target.closest(".item");
    if (item) act(Number(item.dataset.index));
  }

  point(place) {
    this.pointed = place;
    this.tell();
  }

  // No typed letter goes on to the notebook, which it would change (m, a, d d); shortcuts go on.
  press(event) {
    const { key, target } = event, letter = key.length === 1;
    if (passes(event) && !this.takesAll(event)) return;
    if (target.tagName === "INPUT") return this.typed(event);
    if (target.tagName === "SELECT") return void event.stopPropagation();
    const acts = this.grid.contains(target) ? this.acts : this.listActs;
    const act = acts.get(this.takesAll(event) ? "Ctrl+a" : event.shiftKey && !letter ? `Shift+${key}` : key);
    if (act || letter || !event.shiftKey && key !== "Escape") event.stopPropagation();
    if (!act) return;
    event.preventDefault();
    act(this, event);
  }

  // Ctrl+A in the bits.
  takesAll(event) {
    return isSelectAll(event) && this.grid.contains(event.target);
  }

  extendBy(bits) {
    if (!this.model.get("selection").length) this.anchor = this.cursor[1];
    this.extend(this.cursor[1] + bits);
  }

  // A key in the search: Escape empties it, Enter goes to the fields found.
  typed(event) {
    const { key } = event;
    event.stopPropagation();
    if (event.isComposing || key !== "Enter" && key !== "Escape" && key !== "ArrowDown") return;
    event.preventDefault();
    if (key === "Escape") {
      this.search.value = "";
      this.searched();
      return this.stop.focus();
    }
    const asked = this.search.value.trim();
    if (EXPRESSION.test(asked) && asked !== this.filter) return this.model.send({ do: "filter", text: asked });
    if (!this.shown.includes(this.here)) this.step(0);
    this.fields.focus({ preventScroll: true });
  }

  // An expression is read by Python once Enter is pressed; any other text ends a filter, and narrows at once.
  searched() {
    if (this.filter && !EXPRESSION.test(this.search.value)) this.model.send({ do: "filter", text: "" });
    this.narrow();
  }

  showFilter() {
    const { filter } = this, typed = this.search.value;
    if (filter || EXPRESSION.test(typed)) this.search.value = filter;
    this.narrow();
  }
}
