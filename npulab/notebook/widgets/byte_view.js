// Draws the byte view. The meaning of a byte comes from Python as text; this script paints the rows in sight, moves the
// cursor, and sends what was asked.

const ROW = 16;      // bytes
const HIGH = 18;     // pixels of a row
const SHOWN = 28;    // rows; above them stands a row of column numbers
const MAP = [10, 6]; // the map next to the rows: cells across, pixels of a cell
const KINDS = 32;    // a class is the status times this plus the kind
const STATUSES = 6;
const CHANGED = 0, FILL = 1, ZERO = 2;
const COPIED = 65536; // at most so many bytes are copied
const EDITED = 64;    // at most so many bytes are offered for editing

const KEYS = [
  {
    keys: {
      ArrowLeft: (view, { shiftKey }) => view.walk(-1, shiftKey),
      ArrowRight: (view, { shiftKey }) => view.walk(1, shiftKey),
      ArrowUp: (view, { shiftKey }) => view.walk(-ROW, shiftKey),
      ArrowDown: (view, { shiftKey }) => view.walk(ROW, shiftKey),
      PageUp: (view, { shiftKey }) => view.walk(-ROW * (SHOWN - 1), shiftKey),
      PageDown: (view, { shiftKey }) => view.walk(ROW * (SHOWN - 1), shiftKey),
      Home: (view, { shiftKey }) => view.walk(-(view.cursor % ROW), shiftKey),
      End: (view, { shiftKey }) => view.walk(ROW - 1 - view.cursor % ROW, shiftKey),
    },
    help: "move",
  },
  {
    keys: {
      "Ctrl+Home": (view, { shiftKey }) => view.go(0, shiftKey),
      "Ctrl+End": (view, { shiftKey }) => view.go(view.model.get("total") - 1, shiftKey),
    },
    help: "go to the ends",
  },
  { help: "with Shift these keys select" },
  { keys: { "/": view => view.search.focus() }, help: "looks for a value" },
  { keys: { n: view => view.model.send({ seek: 1 }), N: view => view.model.send({ seek: -1 }) }, help: "go to the next and previous match" },
  { keys: { g: view => view.goto.focus() }, help: "goes to an offset" },
  { keys: { "]": view => view.step(1), "[": view => view.step(-1) }, help: "go to the next and previous run of another colour" },
  { keys: { e: view => view.edit() }, help: "writes" },
  { keys: { u: view => view.model.send({ undo: 1 }) }, help: "undoes" },
  { keys: { U: view => view.model.send({ redo: 1 }) }, help: "redoes" },
  { keys: { k: view => view.ask({ colour: view.model.get("colour") === "kind" ? "status" : "kind" }) }, help: "changes the colours" },
  { help: "Ctrl+C copies as hex" },
];

function bytes(view) {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));
const TEXT = Array.from({ length: 256 }, (_, byte) => byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·");

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.asked = {};
    this.build(el);
    this.take();
    this.listen();
    this.showAll();
  }

  get keys() {
    return KEYS;
  }

  get cursor() {
    return this.model.get("ends")[1];
  }

  // First and last byte that are selected.
  get span() {
    const [anchor, cursor] = this.model.get("ends");
    return [Math.min(anchor, cursor), Math.max(anchor, cursor)];
  }

  // ---- building, once ----

  build(el) {
    const { model } = this;
    this.root = make("div", "npulab-bytes", "", { role: "group", "aria-label": `bytes of ${model.get("title")}` });
    this.status = make("div", "status", "", { role: "status" });
    // The canvas stays in its place while the tall element under it scrolls: only rows in sight are drawn.
    this.grid = make("div", "grid", "", { role: "application", tabindex: 0, "aria-roledescription": "hex view",
      "aria-label": `${model.get("title")}: ${model.get("total")} bytes, arrows move` });
    this.tall = make("div", "tall");
    this.canvas = make("canvas", "rows", "", { "aria-hidden": "true" });
    this.tall.append(this.canvas);
    this.grid.append(this.tall);
    this.map = make("canvas", "map", "", { "aria-hidden": "true" });
    this.panel = make("div", "panel");
    const columns = make("div", "columns");
    columns.append(this.grid, this.map, this.panel);
    this.legend = make("div", "legend");
    this.probe = make("span", "probe swatch", "", { "aria-hidden": "true" });
    this.summary = make("span", "npulab-summary");
    this.root.append(this.heading(this.summary), this.tools(), this.status, columns, this.legend,
      this.help(), this.probe);
    el.append(this.root);
  }

  tools() {
    const line = make("div", "tools");
    const label = (text, ...inside) => {
      const element = make("label", "", text);
      element.append(...inside);
      return element;
    };
    this.search = make("input", "search", "", { type: "search", spellcheck: "false", placeholder: "3f ?? 80" });
    this.element = make("select", "element", "", { "aria-label": "type of the value" });
    this.element.append(...this.model.get("elements").map(name => make("option", "", name, { value: name })));
    this.order = make("input", "order", "", { type: "checkbox" });
    this.found = make("span", "found");
    this.goto = make("input", "goto", "", { type: "text", spellcheck: "false", placeholder: "0x1f, +16, end" });
    this.writing = make("input", "write", "", { type: "text", spellcheck: "false", placeholder: "as in search" });
    this.colour = make("select", "colour");
    this.colour.append(make("option", "", "what it means", { value: "kind" }),
      make("option", "", "status", { value: "status" }));
    this.along = make("optgroup", "", "", { label: "index along" });
    line.append(label("search ", this.search), this.element, label("", this.order, " big-endian"), this.found,
      label("go to ", this.goto), label("write ", this.writing), label("colours ", this.colour));
    return line;
  }

  // ---- what is drawn ----

  take() {
    this.data = bytes(this.model.get("data"));
    this.classes = bytes(this.model.get("classes"));
    this.start = this.model.get("start");
    this.size = Math.min(this.data.length, this.classes.length);
    this.tall.style.height = `${(Math.ceil(this.size / ROW) + 1) * HIGH}px`;
    this.sketch = null;
    this.takeMarks();
  }

  takeMarks() {
    const { buffer, byteOffset, byteLength } = this.model.get("marks");
    this.marks = new Uint32Array(buffer.slice(byteOffset, byteOffset + byteLength));
    this.sketch = null;
  }

  // Read the colours of the style sheet, which a canvas cannot follow by itself.
  takeColours() {
    const style = getComputedStyle(this.root), of = name => {
      this.probe.className = `probe swatch ${name}`;
      return getComputedStyle(this.probe).backgroundColor;
    };
    this.theme = style.color + style.backgroundColor;
    this.probe.style.removeProperty("--npulab-kind");
    this.paints = {
      kind: Array.from({ length: KINDS }, (_, kind) => {
        this.probe.style.setProperty("--npulab-kind", this.tint(kind));
        return of(this.kindClass(kind));
      }),
    };
    this.probe.style.removeProperty("--npulab-kind");
    this.paints.status = Array.from({ length: STATUSES }, (_, status) => of(`status-${status}`));
    this.probe.style.removeProperty("--npulab-kind");
    for (const name of ["ink", "paper", "quiet", "lead", "warn", "line"]) this.paints[name] = of(`of-${name}`);
    this.font = getComputedStyle(this.probe).fontFamily;
    this.sketch = null;
  }

  // For indices along an axis, colours round the circle, faint and strong by turns; for other kinds, those of the style
  // sheet.
  tint(kind) {
    const count = this.model.get("kinds").filter(([name]) => name.startsWith("axis ")).length;
    if (!kind || kind > count) return "";
    return `color-mix(in srgb, hsl(${Math.round(300 * (kind - 1) / count)} 85% 45%) ${kind % 2 ? 34 : 52}%, var(--npulab-paper))`;
  }

  // Fill is as quiet here as in the colours of the status.
  kindClass(kind) {
    return kind && this.model.get("kinds")[kind - 1]?.[0] === "fill" ? `status-${FILL}` : `kind-${kind}`;
  }

  measure() {
    const style = getComputedStyle(this.root);
    if (!this.root.isConnected || !style.color) return false;
    if (this.theme !== style.color + style.backgroundColor) this.takeColours();
    const scale = window.devicePixelRatio || 1;
    if (this.scale !== scale || this.measured !== this.font) {
      const context = this.canvas.getContext("2d");
      context.font = `12px ${this.font}`;
      [this.scale, this.measured] = [scale, this.font];
      this.letter = context.measureText("0").width;
      this.left = 10 * this.letter;
      this.right = this.left + ROW * 3 * this.letter + 3 * this.letter;
      this.wide = Math.ceil(this.right + (ROW + 1) * this.letter);
      const sizes = [[this.canvas, this.wide, (SHOWN + 1) * HIGH], [this.map, MAP[0] * MAP[1], (SHOWN + 1) * HIGH]];
      for (const [canvas, width, height] of sizes) {
        [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
        [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
      }
      this.grid.style.height = `${(SHOWN + 1) * HIGH}px`;
    }
    return true;
  }

  // The first row in sight and the one after the last.
  get inSight() {
    return rowsInSight(this.grid.scrollTop, SHOWN * HIGH, HIGH, Math.ceil(this.size / ROW));
  }

  // Pixels from the left to the hex digits of a byte; there is a gap in the middle of the row.
  x(column) {
    return this.left + (column * 3 + (column > 7 ? 1 : 0)) * this.letter;
  }

  draw() {
    if (!this.measure()) return;
    const context = this.canvas.getContext("2d", { alpha: false }), { paints, letter } = this;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.fillStyle = paints.paper;
    context.fillRect(0, 0, this.wide, (SHOWN + 1) * HIGH);
    context.textBaseline = "middle";
    context.font = `12px ${this.font}`;
    context.fillStyle = paints.quiet;
    context.fillText("offset", 0, HIGH / 2);
    for (let column = 0; column < ROW; column++) context.fillText(HEX[column], this.x(column), HIGH / 2);
    const [top, end] = this.inSight;
    this.lit = this.inside();
    for (let row = top; row < end; row++) this.drawRow(context, row * ROW, (row - top + 1) * HIGH);
    this.drawMarks(context, top);
    context.fillStyle = paints.line;
    context.fillRect(this.right - 1.5 * letter, HIGH, 1, SHOWN * HIGH);
    this.drawMap(top);
  }

  drawRow(context, first, y) {
    const { paints, letter, data, classes } = this, end = Math.min(first + ROW, this.size);
    const status = this.model.get("colour") === "status", paint = status ? paints.status : paints.kind;
    context.fillStyle = paints.quiet;
    context.fillText((this.start + first).toString(16).padStart(8, "0"), 0, y + HIGH / 2);
    const [from, to] = this.span;
    for (let at = first; at < end;) {
      const of = status ? classes[at] >> 5 : classes[at] & 31;
      let next = at + 1;
      while (next < end && (status ? classes[next] >> 5 : classes[next] & 31) === of) next++;
      const [low, high] = [at - first, next - 1 - first];
      context.fillStyle = paint[of];
      context.fillRect(this.x(low) - letter / 2, y + 1, this.x(high) - this.x(low) + 3 * letter, HIGH - 2);
      context.fillRect(this.right + low * letter, y + 1, (high - low + 1) * letter, HIGH - 2);
      at = next;
    }
    let text = "";
    for (let at = first; at < end; at++) {
      const kind = classes[at] >> 5, column = at - first, x = this.x(column), place = this.start + at;
      context.fillStyle = kind === FILL || kind === ZERO ? paints.quiet : paints.ink;
      context.fillText(HEX[data[at]], x, y + HIGH / 2);
      text += TEXT[data[at]];
      if (kind === CHANGED) {
        context.fillStyle = paints.warn;
        context.fillRect(x, y + HIGH - 4, 2 * letter, 2);
      }
      if (place >= from && place <= to && from !== to) {
        context.fillStyle = paints.lead;
        context.fillRect(x - letter / 2, y, 3 * letter, 2);
        context.fillRect(x - letter / 2, y + HIGH - 2, 3 * letter, 2);
      }
      if (this.lit.some(([low, high]) => place >= low && place < high)) {
        context.fillStyle = paints.ink;
        context.fillRect(x - letter / 2, y + HIGH - 1, 3 * letter, 1);
      }
      if (place === this.cursor) this.box(context, column, y, paints.ink, 2);
    }
    context.fillStyle = paints.ink;
    context.fillText(text, this.right, y + HIGH / 2);
  }

  box(context, column, y, colour, width) {
    const { letter } = this;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(this.x(column) - letter / 2 + 1, y + 1, 3 * letter - 2, HIGH - 2);
    context.strokeRect(this.right + column * letter, y + 1, letter, HIGH - 2);
  }

  // The spans of bytes that the described byte belongs to.
  inside() {
    return (this.model.get("about").spans ?? []).map(([first, size]) => [first, first + size]);
  }

  // Draw boxes around the matches in sight; a binary search finds the first, as they are sorted.
  drawMarks(context, top) {
    const first = this.start + top * ROW, end = first + SHOWN * ROW, length = this.model.get("length");
    let [low, high] = [0, this.marks.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.marks[middle] + length > first) high = middle; else low = middle + 1;
    }
    for (; low < this.marks.length && this.marks[low] < end; low++) {
      for (let at = Math.max(this.marks[low], first); at < Math.min(this.marks[low] + length, end); at++) {
        const place = at - first;
        if (at !== this.cursor) this.box(context, place % ROW, (Math.floor(place / ROW) + 1) * HIGH, this.paints.lead, 1);
      }
    }
  }

  // ---- the map next to the rows ----

  // Each cell has the colour of the lowest status among its bytes: a change before all else.
  drawMap(top) {
    const context = this.map.getContext("2d"), { scale } = this, high = (SHOWN + 1) * HIGH, wide = MAP[0] * MAP[1];
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.sketch ??= this.sketched(wide, high);
    context.drawImage(this.sketch, 0, 0, wide, high);
    const rows = Math.max(SHOWN, Math.ceil(this.size / ROW)), from = top / rows * high;
    context.strokeStyle = this.paints.ink;
    context.lineWidth = 2;
    context.strokeRect(1, from + 1, wide - 2, Math.max(6, SHOWN / rows * high) - 2);
  }

  sketched(wide, high) {
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d"), { paints } = this;
    const status = this.model.get("colour") === "status", lines = high / 2, cells = MAP[0] * lines;
    [canvas.width, canvas.height] = [wide, high];
    context.fillStyle = paints.paper;
    context.fillRect(0, 0, wide, high);
    const each = Math.max(1, Math.ceil(Math.max(this.size, SHOWN * ROW) / cells));
    for (let cell = 0, at = 0; at < this.size; cell++) {
      const end = Math.min(at + each, this.size);
      let best = this.classes[at];
      for (at++; at < end; at++) if (this.classes[at] >> 5 < best >> 5) best = this.classes[at];
      const changed = best >> 5 === CHANGED;
      context.fillStyle = changed ? paints.warn : status ? paints.status[best >> 5] : paints.kind[best & 31];
      context.fillRect(cell % MAP[0] * MAP[1], Math.floor(cell / MAP[0]) * 2, MAP[1], 2);
    }
    context.fillStyle = paints.lead;
    for (const mark of this.marks) context.fillRect(wide - 6, (mark - this.start) / (each * cells) * high, 6, 2);
    return canvas;
  }

  // ---- texts ----

  showAll() {
    this.summary.textContent = this.model.get("summary");
    this.showLegend();
    this.showSearch();
    this.showAbout();
    this.see();
    this.later();
  }

  showLegend() {
    const colour = this.model.get("colour"), kind = colour === "kind", axis = this.model.get("axis");
    const axes = this.model.get("axes");
    if (axes.length !== this.along.childElementCount) {
      this.along.replaceChildren(...axes.map((size, n) => make("option", "", `axis ${n}, of ${size}`, { value: `axis ${n}` })));
      axes.length ? this.colour.append(this.along) : this.along.remove();
    }
    this.colour.value = kind && axis >= 0 ? `axis ${axis}` : colour;
    const items = this.model.get(kind ? "kinds" : "statuses").map(([name, count], index) => [name, count,
      kind ? this.kindClass(index + 1) : `status-${index}`, kind ? this.tint(index + 1) : ""]);
    this.theme = null; // other kinds have other colours
    this.legend.replaceChildren(...items.filter(item => item[1]).map(([name, count, of, tint]) => {
      const item = make("span", "item"), swatch = make("span", `swatch ${of}`, "", { "aria-hidden": "true" });
      if (tint) swatch.style.setProperty("--npulab-kind", tint);
      item.append(swatch, ` ${name} ${count}`);
      return item;
    }));
    if (kind && !items.length) this.legend.textContent = "nothing says what these bytes mean";
    this.sketch = null;
    this.later();
  }

  showSearch() {
    const { model } = this, query = model.get("query"), found = model.get("found"), ordinal = model.get("ordinal");
    if (document.activeElement !== this.search) this.search.value = query;
    this.element.value = model.get("element");
    this.order.checked = model.get("big_endian");
    const many = this.marks.length < found ? `, ${this.marks.length} marked` : "";
    this.found.textContent = !query ? "" : `${ordinal ? `${ordinal} of ` : ""}${found || "no"} match${found === 1 ? "" : "es"}${many}`;
    this.later();
  }

  // Show the byte under the pointer, or else under the cursor; Python adds more a moment later.
  showAbout() {
    const { model } = this, about = model.get("about"), pointed = model.get("pointed"), note = model.get("note");
    const place = pointed < 0 ? this.cursor : pointed, at = place - this.start, [from, to] = this.span;
    const selected = from === to ? "" : ` · ${to - from + 1} bytes selected from 0x${from.toString(16)}`;
    const line = about.offset === place || at < 0 || at >= this.size ? about.line : `byte 0x${place.toString(16)} (${place}) · ` +
      `${HEX[this.data[at]]} = ${this.data[at]} · ${model.get("statuses")[this.classes[at] >> 5]?.[0]}`;
    this.status.textContent = [note, line].filter(Boolean).join(" · ") + selected;
    if (about.offset === place) this.showPanel(about);
    this.later();
  }

  showPanel({ values, meanings }) {
    const table = make("table", "values", "", { "aria-label": "the bytes from the cursor, as numbers" }), body = make("tbody", "");
    for (const [name, value] of values) {
      const row = make("tr", "");
      row.append(make("th", "", name, { scope: "row" }), make("td", "", value));
      body.append(row);
    }
    table.append(body);
    const list = make("ul", "meanings");
    list.append(...meanings.map(text => make("li", "", text)));
    this.panel.replaceChildren(table, ...(meanings.length ? [list] : []));
  }

  // ---- acting ----

  // Scroll so that the cursor is seen.
  see() {
    const row = Math.floor((this.cursor - this.start) / ROW), [top] = this.inSight;
    const first = offsetInSight(top, SHOWN, row, row + 1);
    if (first !== top) this.grid.scrollTop = first * HIGH;
  }

  go(place, extend = false) {
    const cursor = clamp(place, this.model.get("total"));
    this.ask({ ends: [extend ? this.model.get("ends")[0] : cursor, cursor], pointed: -1 });
    this.see();
    this.showAbout();
  }

  // Go to the first byte of the next (1) or previous (-1) run of another colour.
  step(by) {
    const status = this.model.get("colour") === "status", of = at => status ? this.classes[at] >> 5 : this.classes[at] & 31;
    let at = this.cursor - this.start;
    if (by < 0 && at > 0 && of(at - 1) !== of(at)) at--;
    const here = of(at);
    if (by < 0) while (at > 0 && of(at - 1) === here) at--;
    else while (at < this.size - 1 && of(at) === here) at++;
    this.go(this.start + at);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, { letter } = this;
    const row = Math.floor((event.clientY - box.top) / HIGH) - 1;
    const shift = x - this.left + letter / 2;
    const column = x >= this.right - letter ? Math.floor((x - this.right) / letter) :
      Math.floor((shift < 24.5 * letter ? shift : shift - letter) / (3 * letter));
    const at = (this.inSight[0] + row) * ROW + column;
    return row < 0 || column < 0 || column >= ROW || at >= this.size ? null : this.start + at;
  }

  hover(event) {
    if (event.buttons & 1 && this.held) {
      const place = this.place(event);
      return void (place !== null && this.go(place, true));
    }
    this.point(this.place(event) ?? -1);
  }

  point(place) {
    if (place !== this.model.get("pointed")) this.ask({ pointed: place });
  }

  scrollTo(event) {
    const box = this.map.getBoundingClientRect(), rows = Math.ceil(this.size / ROW);
    const row = Math.floor((event.clientY - box.top) / box.height * Math.max(rows, SHOWN) - SHOWN / 2);
    this.grid.scrollTop = clamp(row, rows + 1) * HIGH;
  }

  // Ask for the new values of the selected bytes; the answer begins with their present values.
  edit() {
    const [from, to] = this.span.map(place => place - this.start), taken = this.data.subarray(from, Math.min(to + 1, from + EDITED));
    if (this.model.get("element") === "bytes") this.writing.value = Array.from(taken, byte => HEX[byte]).join(" ");
    this.writing.focus();
    this.writing.select();
  }

  copy(event) {
    const [from, to] = this.span.map(place => place - this.start);
    if (from < 0 || to >= this.size) return;
    const taken = this.data.subarray(from, Math.min(to + 1, from + COPIED));
    event.clipboardData.setData("text/plain", Array.from(taken, byte => HEX[byte]).join(" "));
    event.preventDefault();
    event.stopPropagation();
  }

  // ---- listening ----

  listen() {
    const { model } = this;
    this.events = {
      data: () => this.renew(),
      classes: () => this.renew(),
      start: () => this.renew(),
      summary: () => (this.summary.textContent = model.get("summary")),
      kinds: () => this.showLegend(),
      axis: () => this.showLegend(),
      axes: () => this.showLegend(),
      statuses: () => this.showLegend(),
      colour: () => this.showLegend(),
      marks: () => { this.takeMarks(); this.showSearch(); },
      length: () => this.later(),
      query: () => this.showSearch(),
      element: () => this.showSearch(),
      big_endian: () => this.showSearch(),
      found: () => this.showSearch(),
      ordinal: () => this.showSearch(),
      about: () => this.showAbout(),
      note: () => this.showAbout(),
      pointed: () => this.showAbout(),
      ends: () => { this.see(); this.showAbout(); },
    };
    this.grid.addEventListener("scroll", () => this.later());
    this.grid.addEventListener("pointerdown", event => this.press(event));
    this.grid.addEventListener("pointermove", event => this.hover(event));
    this.grid.addEventListener("pointerleave", () => this.point(-1));
    this.grid.addEventListener("copy", event => this.copy(event));
    this.map.addEventListener("pointerdown", event => {
      this.map.setPointerCapture(event.pointerId);
      this.scrollTo(event);
    });
    this.map.addEventListener("pointermove", event => event.buttons & 1 && this.scrollTo(event));
    this.search.addEventListener("input", () => this.ask({ query: this.search.value }));
    this.element.addEventListener("change", () => this.ask({ element: this.element.value }));
    this.order.addEventListener("change", () => this.ask({ big_endian: this.order.checked }));
    this.colour.addEventListener("change", () => {
      const [colour, axis] = this.colour.value.split(" ");
      this.ask(axis ? { colour: "kind", axis: Number(axis) } : { colour, ...this.model.get("axes").length ? { axis: -1 } : {} });
    });
    this.root.addEventListener("keydown", event => this.key(event));
    this.watch();
  }

  renew() {
    this.take();
    this.see();
    this.showAbout();
  }

  press(event) {
    const place = this.place(event);
    this.held = place !== null && event.button === 0;
    if (this.held) this.go(place, event.shiftKey);
  }

  key(event) {
    const { key, target } = event, letter = key.length === 1, ends = event.ctrlKey && (key === "Home" || key === "End");
    if (passes(event) && !ends) return;
    if (target !== this.grid) return this.type(event, key);
    const act = this.acts.get(ends ? `Ctrl+${key}` : key);
    if (act || letter || key === "Enter" && !event.shiftKey) event.stopPropagation();
    if (!act) return;
    event.preventDefault();
    act(this, event);
  }

  // Move by bytes. A step of whole rows keeps the column: it does not go past the first and the last row.
  walk(by, extend) {
    const end = this.model.get("total") - 1, to = this.cursor + by;
    if (Math.abs(by) < ROW) return this.go(to, extend);
    const column = this.cursor % ROW, last = Math.floor((end - column) / ROW) * ROW + column;
    this.go(Math.max(column, Math.min(last, to)), extend);
  }

  type(event, key) {
    event.stopPropagation();
    if (key === "Escape") {
      event.preventDefault();
      this.grid.focus();
    } else if (key === "Enter" && !event.isComposing && [this.search, this.goto, this.writing].includes(event.target)) {
      event.preventDefault();
      this.model.send(event.target === this.goto ? { go: this.goto.value } :
        event.target === this.writing ? { write: this.writing.value } : { seek: event.shiftKey ? -1 : 1 });
      this.grid.focus();
    }
  }
}

export default mount(View);
