// Draws the register view. All meaning (values, summary, what a field is) comes from Python as text;
// what happens here is painting bits, moving the cursor, flipping, and going back.
//
// Bit operators give signed numbers: `>>> 0` follows each of them whose result is kept.

const BITS = 32;
const PAGE = 8;
const HELP = "click or Space flips · u undoes · arrows, Home, End, PageUp, PageDown move · " +
  "n and p go to the next and previous field that differs, ] and [ to the bit";

const KEYS = {
  ArrowLeft: view => view.move(0, 1),
  ArrowRight: view => view.move(0, -1),
  ArrowUp: view => view.move(-1, 0),
  ArrowDown: view => view.move(1, 0),
  PageUp: view => view.move(-PAGE, 0),
  PageDown: view => view.move(PAGE, 0),
  Home: view => view.move(0, BITS),
  End: view => view.move(0, -BITS),
  " ": (view, repeated) => repeated || view.flip(...view.cursor),
  Enter: (view, repeated) => repeated || view.flip(...view.cursor),
  u: view => view.undo(),
  n: view => view.seek(1, true),
  "]": view => view.seek(1),
  p: view => view.seek(-1, true),
  "[": view => view.seek(-1),
};

function hex(word) {
  return "0x" + word.toString(16).padStart(8, "0");
}

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.words = model.get("words");
    this.reference = model.get("reference");
    this.history = [];
    this.pointed = null;
    this.lit = [];
    this.build();
    el.append(this.root);
    this.listen();
  }

  get cursor() {
    return this.model.get("cursor");
  }

  // ---- building, once for a map ----

  build() {
    const { model } = this;
    const names = model.get("registers");
    this.owners = names.map(() => new Array(BITS));
    this.cells = names.map(() => new Array(BITS));
    this.hexes = [];
    this.root = make("div", "npulab-registers");
    this.root.style.setProperty("--npulab-name", Math.max(8, ...names.map(name => name.length)) + 1 + "ch");
    this.grid = make("div", "npulab-grid", "", { role: "grid", "aria-label": `${model.get("title")}: bits` });
    this.summary = make("div", "npulab-summary");
    this.status = make("div", "npulab-status", "", { role: "status" });
    this.own();
    this.grid.append(this.header(), ...names.map((name, word) => this.row(name, word)));
    this.root.append(this.heading(), this.status, this.grid, this.summary, make("div", "npulab-help", HELP));
    for (const word of names.keys()) this.paint(word, -1);
    this.showCursor();
    this.showSummary();
    this.wire();
  }

  // Another map: other fields own the bits.
  rebuild() {
    const { root, grid } = this, held = grid.contains(document.activeElement), top = grid.scrollTop;
    [this.pointed, this.lit] = [null, []];
    this.build();
    root.replaceWith(this.root);
    this.grid.scrollTop = top;
    if (held) this.stop.focus();
  }

  // Which field each bit belongs to, and where its run of bits begins and ends.
  own() {
    this.model.get("places").forEach((place, index) => {
      for (const [word, lsb, width] of place.pieces) {
        for (let bit = lsb; bit < lsb + width; bit++) {
          this.owners[word][bit] = { index, place, first: bit === lsb + width - 1, last: bit === lsb };
        }
      }
    });
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

  row(name, word) {
    const row = make("div", "npulab-row", "", { role: "row" });
    row.append(make("span", "npulab-name", name, { role: "rowheader" }));
    let odd = true;
    for (let bit = BITS - 1; bit >= 0; bit--) {
      const { first, last, place } = this.owners[word][bit];
      if (first) odd = !odd;
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

  // ---- painting ----

  // The bits of one word that are set in `mask`.
  paint(word, mask) {
    const now = this.words[word], reference = this.reference[word];
    for (let bit = 0; bit < BITS; bit++) if (mask >>> bit & 1) this.paintBit(word, bit, now, reference);
    const [shown, other] = this.hexes[word];
    shown.textContent = hex(now);
    shown.classList.toggle("differs", now !== reference);
    other.textContent = now === reference ? "" : hex(reference);
  }

  paintBit(word, bit, now, reference) {
    const cell = this.cells[word][bit], { place } = this.owners[word][bit];
    const on = now >>> bit & 1, differs = on !== (reference >>> bit & 1);
    cell.textContent = on;
    cell.classList.toggle("set", on === 1);
    cell.classList.toggle("differs", differs);
    cell.setAttribute("aria-label", `${on}, bit ${bit}, ${place.automatic ? "unnamed " : ""}${place.name}` +
      (differs ? ", differs from the reference" : ""));
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
  }

  // Going back to the words before the last change is its undo, whoever does it: Python keeps to the same.
  remember() {
    const before = this.words, now = this.model.get("words"), last = this.history.at(-1);
    if (last && last.every((word, index) => word === now[index])) this.history.pop();
    else this.history.push(before);
    this.repaint();
  }

  showCursor() {
    const [word, bit] = this.cursor;
    this.stopAt(this.cells[word][bit], this.grid.contains(document.activeElement));
    this.tell();
  }

  showSummary() {
    this.summary.textContent = this.model.get("summary");
  }

  // The field under the pointer, else under the cursor: told in the status line, all its pieces lit.
  tell(note = "") {
    const [word, bit] = this.pointed || this.cursor;
    const { index, place } = this.owners[word][bit];
    this.light(place);
    if (note) return void (this.status.textContent = note);
    const where = `${this.model.get("registers")[word]} bit ${bit}`;
    const parts = [make("span", "", where), make("b", "", place.name), make("span", "", place.bits),
      make("b", "", this.model.get("values")[index]), make("span", "", place.known)];
    this.status.replaceChildren(parts[0], " · ", parts[1], " ", parts[2], " · ", parts[3], " · ", parts[4]);
  }

  light(place) {
    for (const cell of this.lit) cell.classList.remove("here");
    this.lit = place.pieces.flatMap(([word, lsb, width]) => this.cells[word].slice(lsb, lsb + width));
    for (const cell of this.lit) cell.classList.add("here");
  }

  // ---- acting ----

  go(word, bit) {
    this.pointed = null;
    this.ask({ cursor: [clamp(word, this.words.length), clamp(bit, BITS)] });
    this.stop.focus();
    this.tell();
  }

  move(words, bits) {
    this.go(this.cursor[0] + words, this.cursor[1] + bits);
  }

  flip(word, bit) {
    const words = [...this.words];
    words[word] = (words[word] ^ 1 << bit) >>> 0;
    this.model.set("words", words);
    this.go(word, bit);
  }

  undo() {
    if (!this.history.length) return this.tell("nothing to undo");
    this.ask({ words: this.history.at(-1) });
  }

  // Go to the next (1) or previous (-1) bit that differs, in reading order and round the end; by `field`,
  // to one of another field, as long as there is another.
  seek(step, field) {
    const here = this.owners[this.cursor[0]][this.cursor[1]].place;
    const found = field && this.differing(step, here) || this.differing(step);
    return found ? this.go(...found) : this.tell("no bit differs from the reference");
  }

  differing(step, besides) {
    const count = this.words.length * BITS, [word, bit] = this.cursor;
    for (let n = 1, at = word * BITS + BITS - 1 - bit; n <= count; n++) {
      at = (at + step + count) % count;
      const [row, column] = [Math.floor(at / BITS), BITS - 1 - at % BITS];
      const differs = (this.words[row] ^ this.reference[row]) >>> column & 1;
      if (differs && this.owners[row][column].place !== besides) return [row, column];
    }
    return null;
  }

  // ---- listening ----

  listen() {
    this.events = {
      words: () => this.remember(),
      reference: () => this.repaint(),
      cursor: () => this.showCursor(),
      places: () => this.rebuild(),
      values: () => this.tell(),
      summary: () => this.showSummary(),
    };
  }

  wire() {
    this.grid.addEventListener("click", event => this.at(event, place => this.flip(...place)));
    this.grid.addEventListener("pointerover", event => this.hover(event));
    this.grid.addEventListener("pointerleave", () => this.point(null));
    this.grid.addEventListener("keydown", event => this.press(event));
  }

  hover(event) {
    if (this.pointerMoved(event)) this.at(event, place => this.point(place));
  }

  point(place) {
    this.pointed = place;
    this.tell();
  }

  // A typed letter that went on to the notebook would change it (m, a, d d); shortcuts are not ours.
  press(event) {
    const { key } = event, letter = key.length === 1, used = Object.hasOwn(KEYS, key);
    if (passes(event) || event.shiftKey && !letter) return;
    if (used || letter) event.stopPropagation();
    if (!used) return;
    event.preventDefault();
    KEYS[key](this, event.repeat);
  }
}

export default mount(View);
