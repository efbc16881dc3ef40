// Draws the output view. Values, differences and counts come from Python as text and as shades; this script paints the
// pictures of a channel, moves the cursor, and sends what was asked.

const NAMES = ["predicted", "captured", "difference"];
const WIDE = 300; // about so many pixels for a picture
const SIGNED = 9; // pixels: a cell of at least so many has + or -
const MARK = 9;   // pixels of the cursor's mark, at least
const EQUAL = 128; // the shade of outputs that are equal
const GREYS = [24, 232]; // of the lowest and the highest value, in every theme
const LETTER = [9, 12];  // pixels of a number's letters, least and most

const KEYS = [
  { help: "the pointer shows what an output is, a click moves there" },
  {
    keys: {
      ArrowLeft: view => view.walk(0, -1),
      ArrowRight: view => view.walk(0, 1),
      ArrowUp: view => view.walk(-1, 0),
      ArrowDown: view => view.walk(1, 0),
    },
    help: "move",
  },
  { keys: { Home: view => view.walk(0, -Infinity), End: view => view.walk(0, Infinity) }, help: "go to the ends of the row" },
  { keys: { PageUp: view => view.walk(-Infinity, 0), PageDown: view => view.walk(Infinity, 0) }, help: "to the ends of the column" },
  { keys: { "[": view => view.turn(-1), "]": view => view.turn(1) }, help: "change the channel" },
  { keys: { d: view => view.model.send({ seek: 1 }), D: view => view.model.send({ seek: -1 }) },
    help: "go to the next and previous output that differs" },
];

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.build(el);
    this.listen();
    this.show();
  }

  get keys() {
    return KEYS;
  }

  get place() {
    return this.model.get("place");
  }

  // Rows and columns of a picture's outputs: a channel, or all channels in rows if each has a single output.
  get plane() {
    const [rows, columns, channels] = this.model.get("size"), spread = this.model.get("spread");
    return spread ? [Math.ceil(channels / spread), spread] : [rows, columns];
  }

  // Rows and columns of a picture's cells: in a large picture several outputs share a cell.
  get cells() {
    return this.plane.map(size => Math.ceil(size / this.model.get("cell")));
  }

  // The place of the cursor on the plane.
  get spot() {
    const [row, column, channel] = this.place, spread = this.model.get("spread");
    return spread ? [Math.floor(channel / spread), channel % spread] : [row, column];
  }

  // ---- building, once ----

  build(el) {
    const { model } = this, title = model.get("title");
    this.root = make("div", "npulab-outputs", "", { role: "group", "aria-label": title });
    this.status = make("div", "status", "", { role: "status" });
    this.grid = make("div", "pictures", "", { role: "application", tabindex: 0, "aria-roledescription": "pictures",
      "aria-label": `${title}: predicted, captured and difference of a channel, arrows move` });
    this.canvases = NAMES.map(name => {
      const figure = make("div", "picture"), canvas = make("canvas", "", "", { "aria-hidden": "true" });
      figure.append(make("div", "name", name), canvas);
      this.grid.append(figure);
      return canvas;
    });
    const columns = make("div", "columns");
    columns.append(this.list(), this.grid);
    this.probe = make("span", "probe", "", { "aria-hidden": "true" });
    const summary = make("div", "npulab-summary", model.get("summary"));
    this.root.append(this.heading(), summary, this.status, columns, this.legend(), this.help(), this.probe);
    el.append(this.root);
  }

  legend() {
    const [low, high, largest] = this.model.get("scale"), cell = this.model.get("cell"), line = make("div", "legend");
    const item = (name, text) => {
      const element = make("span", "item");
      element.append(make("span", `swatch ${name}`, "", { "aria-hidden": "true" }), ` ${text}`);
      return element;
    };
    line.append(item("shades", `${low} to ${high}`), item("larger", "+ captured is larger"), item("smaller", "− captured is smaller"),
      make("span", "item", `largest difference ${largest}`));
    if (cell > 1) line.append(make("span", "item", `${cell} by ${cell} outputs share a cell, which shows the worst of them`));
    return line;
  }

  // The channels that differ; a click on a row goes to the channel.
  list() {
    const channels = this.model.get("channels"), most = Math.max(1, ...channels.map(row => row[2]));
    const box = this.box = make("div", "channels", "", { tabindex: 0, role: "region", "aria-label": "channels that differ" });
    this.rows = new Map();
    if (!channels.length) {
      box.append(make("p", "", "no channel differs"));
      return box;
    }
    const table = make("table", ""), head = make("tr", ""), body = make("tbody", "");
    head.append(...["channel", "differ", "of", "largest"].map(name => make("th", "", name, { scope: "col" })));
    const top = make("thead", "");
    top.append(head);
    for (const [channel, outputs, differ, largest] of channels) {
      const row = make("tr", "");
      row.dataset.channel = channel;
      const counted = make("td", "bar", differ);
      counted.style.setProperty("--share", `${100 * differ / most}%`);
      row.append(make("td", "", channel), counted, make("td", "", outputs), make("td", "", largest));
      this.rows.set(channel, row);
      body.append(row);
    }
    table.append(top, body);
    box.append(table);
    return box;
  }

  // ---- drawing ----

  takeColours() {
    const style = getComputedStyle(this.root), theme = style.color + style.backgroundColor;
    if (theme === this.theme) return;
    this.theme = theme;
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d", { willReadFrequently: true });
    [canvas.width, canvas.height] = [1, 1];
    this.paints = Object.fromEntries(["ink", "paper", "larger", "smaller"].map(name => {
      this.probe.className = `probe of-${name}`;
      context.fillStyle = getComputedStyle(this.probe).backgroundColor;
      context.fillRect(0, 0, 1, 1);
      return [name, [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)]];
    }));
  }

  mixed(from, to, share) {
    return from.map((value, n) => value + (to[n] - value) * share);
  }

  // The colour of each of the 256 shades.
  palette(difference) {
    const { ink, paper, larger, smaller } = this.paints;
    return Array.from({ length: 256 }, (_, shade) => {
      if (!difference) return GREYS.map(grey => [grey, grey, grey]).reduce((low, high) => this.mixed(low, high, shade / 255));
      if (shade === EQUAL) return this.mixed(paper, ink, 0.05);
      return this.mixed(paper, shade > EQUAL ? larger : smaller, 0.35 + 0.65 * Math.abs(shade - EQUAL) / EQUAL);
    });
  }

  draw() {
    if (!this.root.isConnected) return;
    this.takeColours();
    const { buffer, byteOffset, byteLength } = this.model.get("pictures");
    const shades = new Uint8Array(buffer, byteOffset, byteLength), [rows, columns] = this.cells;
    if (shades.length !== 3 * rows * columns) return;
    this.scale = Math.max(1, Math.min(40, Math.floor(WIDE / Math.max(rows, columns))));
    this.canvases.forEach((canvas, n) =>
      this.drawOne(canvas, shades.subarray(n * rows * columns, (n + 1) * rows * columns), n === 2, this.model.get("numbers")[n]));
  }

  // Write numbers into the cells, in the largest letters that fit; return false if none fit.
  drawNumbers(context, shades, palette, numbers) {
    const { scale } = this, columns = this.cells[1], longest = Math.max(1, ...numbers.map(number => number.length));
    const size = Math.min(LETTER[1], Math.floor((scale - 3) / longest / 0.62), scale - 3);
    if (size < LETTER[0]) return false;
    context.font = `${size}px ui-monospace, monospace`;
    [context.textAlign, context.textBaseline] = ["center", "middle"];
    numbers.forEach((number, at) => {
      const [red, green, blue] = palette[shades[at]];
      context.fillStyle = 0.299 * red + 0.587 * green + 0.114 * blue > 127 ? "#000" : "#fff";
      context.fillText(number, (at % columns + 0.5) * scale, (Math.floor(at / columns) + 0.5) * scale);
    });
    return true;
  }

  drawOne(canvas, shades, difference, numbers) {
    const [rows, columns] = this.cells, { scale } = this, dense = window.devicePixelRatio || 1;
    const small = document.createElement("canvas"), palette = this.palette(difference);
    [small.width, small.height] = [columns, rows];
    const image = new ImageData(columns, rows);
    shades.forEach((shade, at) => image.data.set([...palette[shade], 255], 4 * at));
    small.getContext("2d").putImageData(image, 0, 0);
    [canvas.width, canvas.height] = [columns * scale * dense, rows * scale * dense].map(Math.round);
    [canvas.style.width, canvas.style.height] = [`${columns * scale}px`, `${rows * scale}px`];
    const context = canvas.getContext("2d");
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, columns * scale, rows * scale);
    const css = colour => `rgb(${colour.map(Math.round).join(" ")})`;
    const numbered = numbers?.length === shades.length && this.drawNumbers(context, shades, palette, numbers);
    if (difference && scale >= SIGNED && !numbered) {
      context.font = `bold ${Math.min(scale, 16)}px sans-serif`;
      [context.textAlign, context.textBaseline, context.fillStyle] = ["center", "middle", css(this.paints.ink)];
      shades.forEach((shade, at) => shade !== EQUAL &&
        context.fillText(shade > EQUAL ? "+" : "−", (at % columns + 0.5) * scale, (Math.floor(at / columns) + 0.5) * scale));
    }
    // A box around the cell of the cursor, large enough to be seen if cells are small.
    const side = Math.max(scale, MARK);
    const [row, column] = this.spot.map(n => (Math.floor(n / this.model.get("cell")) + 0.5) * scale - side / 2);
    for (const [colour, out] of [["paper", 2], ["ink", 0]]) {
      context.strokeStyle = css(this.paints[colour]);
      context.lineWidth = 2;
      context.strokeRect(column - out, row - out, side + 2 * out, side + 2 * out);
    }
  }

  show() {
    const channel = this.place[2];
    this.status.textContent = this.model.get("about");
    this.marked?.removeAttribute("aria-current");
    this.marked = this.rows.get(channel);
    this.marked?.setAttribute("aria-current", "true");
    if (this.marked) reveal(this.box, this.marked, this.marked.offsetHeight); // the header is as high as a row
    this.later();
  }

  // ---- acting ----

  go(place) {
    const size = this.model.get("size");
    this.ask({ place: place.map((n, axis) => clamp(n, size[axis])) });
  }

  walk(rows, columns) {
    const [row, column] = this.spot;
    this.put(row + rows, column + columns);
  }

  turn(channels) {
    const [row, column, channel] = this.place;
    this.go([row, column, channel + channels]);
  }

  // Go to a place of the plane.
  put(...spot) {
    const spread = this.model.get("spread");
    const [row, column] = spot.map((n, axis) => clamp(n, this.plane[axis]));
    this.go(spread ? [0, 0, row * spread + column] : [row, column, this.place[2]]);
  }

  // The place of the plane that an event is about.
  spotOf(event) {
    const canvas = event.target.closest("canvas");
    if (!canvas) return null;
    const box = canvas.getBoundingClientRect(), cell = this.model.get("cell");
    return [event.clientY - box.top, event.clientX - box.left].map(n => Math.floor(n / this.scale) * cell);
  }

  click(event) {
    const spot = this.spotOf(event);
    if (spot) this.put(...spot);
  }

  point(event) {
    const spot = event && this.spotOf(event), spread = this.model.get("spread"), size = this.model.get("size");
    const [row, column] = spot ? spot.map((n, axis) => clamp(n, this.plane[axis])) : [];
    const place = !spot ? [] : spread ? [0, 0, clamp(row * spread + column, size[2])] : [row, column, this.place[2]];
    if (String(place) !== String(this.model.get("pointed"))) this.ask({ pointed: place });
  }

  // ---- listening ----

  listen() {
    this.events = {
      place: () => this.show(),
      about: () => this.show(),
      pictures: () => this.later(),
      numbers: () => this.later(),
    };
    this.grid.addEventListener("click", event => this.click(event));
    this.grid.addEventListener("pointermove", event => this.pointerMoved(event) && this.point(event));
    this.grid.addEventListener("pointerleave", () => this.point(null));
    this.box.addEventListener("click", event => {
      const row = event.target.closest("[data-channel]");
      if (row) this.go([this.place[0], this.place[1], Number(row.dataset.channel)]);
    });
    this.root.addEventListener("keydown", event => this.press(event));
    this.watch();
  }

  press(event) {
    const { key } = event, letter = key.length === 1;
    if (passes(event) || event.shiftKey && !letter) return;
    const act = this.acts.get(key);
    if (act || key !== "Escape") event.stopPropagation();
    if (event.target !== this.grid && !letter || !act) return; // the list scrolls by itself
    event.preventDefault();
    act(this, event);
  }
}

export default mount(View);
