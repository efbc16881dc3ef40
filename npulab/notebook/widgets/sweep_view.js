// Draws the captures of a sweep: bits and fields, as in every view of registers, and above them the controls that step
// from capture to capture. The values of a capture and the line of each field come from Python.

const SVG = "http://www.w3.org/2000/svg";
const KEYS = [
  { keys: { ",": view => view.to(view.model.get("at") - 1), ".": view => view.to(view.model.get("at") + 1) }, help: "step back and forward" },
  { keys: { k: view => view.keep() }, help: "keeps what is shown to compare with, or lets it go" },
  { keys: { t: view => view.plot(view.places[view.here].name) }, help: "takes the field into the plot, or out of it" },
  { keys: { "+": view => view.zoom(0.5), "-": view => view.zoom(2), 0: view => view.ask({ window: [] }) }, help: "zoom the plot, and show all of it" },
];
const PLOT_HIGHEST = 1000;

class View extends BitsFrame {
  get name() {
    return "npulab-sweep";
  }

  get keys() {
    return [...KEYS, ...super.keys];
  }

  get listKeys() {
    return [...KEYS, ...super.listKeys];
  }

  get shows() {
    return { moving: "fields that move", ...SHOWS };
  }

  shownIf(kind) {
    return kind === "moving" ? index => this.lines_.has(index) : undefined;
  }

  parts() {
    const { model } = this, browser = make("div", "browser"), sort = make("label", "", "in order of ");
    const captures = model.get("captures"), unit = model.get("unit");
    this.slider = make("input", "slider", "", { type: "range", min: 0, max: captures - 1, "aria-label": unit });
    this.which = make("span", "which");
    this.sort = make("select", "sort", "");
    const names = ["", ...model.get("sorts")];
    sort.hidden = names.length < 2;
    this.sort.append(...names.map(value => Object.assign(make("option", "", value || "recording"), { value })));
    sort.append(this.sort);
    this.kept = this.button("keep", "Compare with this one");
    this.layer = make("div", "layer", "", { role: "group", "aria-label": `what is known of the ${unit}`, tabindex: 0 });
    this.plots = this.button("plots", "Plot the field");
    browser.append(this.slider, this.which, sort, this.kept, this.plots);
    return [browser, this.layer, this.figure()];
  }

  // Up to four fields over the captures in their order, each from its lowest to its highest value.
  figure() {
    this.chart = make("figure", "chart");
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.series = make("figcaption", "series");
    this.chart.append(this.svg, this.series);
    return this.chart;
  }

  // The places that the plot shows: first and end.
  get window() {
    const window = this.model.get("window");
    return window.length ? window : [0, this.model.get("captures")];
  }

  drawPlot() {
    const plot = this.model.get("plot"), [first, end] = this.window, count = this.model.get("captures"), unit = this.model.get("unit");
    const at = this.model.get("at"), shape = (tag, attributes) => {
      const element = document.createElementNS(SVG, tag);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      return element;
    };
    this.chart.hidden = !plot.length;
    const paths = plot.map(([, , , ends], number) => {
      const step = (end - first) / Math.max(1, ends.length);
      const up = ends.map(([, high], n) => `${n * step} ${PLOT_HIGHEST - high}H${(n + 1) * step}`);
      const down = ends.map(([low], n) => `${(n + 1) * step} ${PLOT_HIGHEST - low}H${n * step}`).reverse();
      return shape("path", { class: `line s${number}`, d: `M${up.join("L")}L${down.join("L")}Z` });
    });
    if (at >= first && at < end) paths.push(shape("path", { class: "now", d: `M${at - first + 0.5} 0V${PLOT_HIGHEST}` }));
    this.svg.setAttribute("viewBox", `0 0 ${end - first} ${PLOT_HIGHEST}`);
    this.svg.replaceChildren(...paths);
    const places = `places ${first + 1} to ${end} of ${count}`;
    const told = plot.map(([name, low, high]) => `${name} ${low} to ${high}`);
    this.svg.setAttribute("aria-label", `${told.join(", ")}; ${unit}s at ${places}`);
    this.series.replaceChildren(...told.map((text, number) => {
      const entry = this.button(`entry s${number}`, text, { title: "takes it out of the plot" });
      entry.addEventListener("click", () => this.plot(plot[number][0]));
      return entry;
    }), make("span", "places", places));
  }

  // Take a field into the plot, or out of it.
  plot(name) {
    const plotted = this.model.get("plotted"), rest = plotted.filter(other => other !== name);
    if (rest.length === plotted.length && plotted.length > 3) return this.tell("the plot has four fields already: t on one takes it out");
    this.ask({ plotted: rest.length < plotted.length ? rest : [...plotted, name] });
  }

  // Show fewer or more places around that of the capture.
  zoom(by) {
    const count = this.model.get("captures"), [first, end] = this.window, at = this.model.get("at");
    const room = clamp(Math.max(2, Math.round((end - first) * by)), count + 1);
    const from = clamp(Math.min(at - Math.floor(room / 2), count - room), count);
    this.ask({ window: room >= count ? [] : [from, from + room] });
  }

  // The place under the pointer.
  placeAt(event) {
    const box = this.svg.getBoundingClientRect(), [first, end] = this.window;
    return first + clamp(Math.floor((event.clientX - box.left) / box.width * (end - first)), end - first);
  }

  // A drag shows the places that it went over, a click goes to its place.
  dragged(event) {
    if (this.from === undefined) return;
    const [low, high] = [this.from, this.placeAt(event)].sort((a, b) => a - b);
    this.from = undefined;
    if (high > low) this.ask({ window: [low, high + 1] });
    else this.to(low);
  }

  list() {
    this.readLines();
    const list = super.list();
    this.sparks = [];
    this.items.forEach((item, index) => {
      if (!this.lines_.has(index)) return;
      const spark = make("span", "spark", "", { "aria-hidden": "true" }), svg = document.createElementNS(SVG, "svg");
      svg.setAttribute("preserveAspectRatio", "none");
      svg.append(document.createElementNS(SVG, "path"));
      spark.append(svg);
      this.sparks.push(spark);
      item.insertBefore(spark, item.lastChild);
    });
    this.drawLines();
    return list;
  }

  // The line of each field that moves: the lowest and the highest value in each step.
  readLines() {
    this.lines_ = new Map(this.model.get("moving").map(([index, count, ends]) => [index, { count, ends }]));
  }

  drawLines() {
    for (const [index, { ends }] of this.lines_) {
      const svg = this.items[index].querySelector("svg");
      const up = ends.map(([, high], step) => `${step} ${255 - high}H${step + 1}`);
      const down = ends.map(([low], step) => `${step + 1} ${255 - low}H${step}`).reverse();
      svg.setAttribute("viewBox", `0 0 ${ends.length} 255`);
      svg.firstChild.setAttribute("d", `M${up.join("L")}L${down.join("L")}Z`);
    }
  }

  showValue(index) {
    super.showValue(index);
    const line = this.lines_?.get(index);
    if (line) this.items[index].title += ` · ${line.count} values in the sweep`;
  }

  // Show the number of the capture and its layer; values that differ from the kept capture are underlined.
  showCapture() {
    const { model } = this, at = model.get("at"), captures = model.get("captures"), against = model.get("against");
    const number = model.get("number"), unit = model.get("unit");
    this.drawPlot();
    this.slider.value = at;
    this.slider.setAttribute("aria-valuetext", `${unit} ${number}`);
    this.sort.value = model.get("sort");
    this.which.textContent = `${unit} ${number}` + (this.sort.parentNode.hidden ? ` of ${captures - 1}` : `, place ${at + 1} of ${captures}`);
    this.kept.setAttribute("aria-pressed", String(against >= 0));
    this.kept.textContent = against >= 0 ? `Compared with ${unit} ${against}: let it go` : "Compare with this one";
    // not on the root: every bit would inherit it
    for (const spark of this.sparks) spark.style.setProperty("--at", (at + 0.5) / captures);
    this.layer.replaceChildren(...model.get("layer").map(([name, value, other]) => {
      const entry = make("span", value === other ? "" : "differs", `${name} `);
      entry.append(make("b", "", value));
      if (value !== other) entry.append(` (${other})`);
      return entry;
    }));
  }

  // ---- acting ----

  to(place) {
    this.ask({ at: clamp(place, this.model.get("captures")) });
  }

  keep() {
    this.ask({ against: this.model.get("against") < 0 ? this.model.get("number") : -1 });
  }

  scrub(event) {
    const box = event.target.closest(".spark")?.getBoundingClientRect();
    if (box && event.buttons & 1) this.to(Math.floor((event.clientX - box.left) / box.width * this.model.get("captures")));
  }

  listen() {
    super.listen();
    const moved = () => this.showCapture();
    Object.assign(this.events, { number: moved, layer: moved, at: moved, against: moved, sort: moved,
      plot: () => this.drawPlot(), window: () => this.drawPlot(),
      moving: () => { this.readLines(); this.drawLines(); } });
    this.showCapture();
  }

  wire() {
    super.wire();
    this.slider.addEventListener("input", () => this.to(Number(this.slider.value)));
    this.sort.addEventListener("change", () => this.ask({ sort: this.sort.value }));
    this.kept.addEventListener("click", () => this.keep());
    this.plots.addEventListener("click", () => this.plot(this.places[this.here].name));
    this.svg.addEventListener("pointerdown", event => {
      event.preventDefault();
      this.svg.setPointerCapture(event.pointerId);
      this.from = this.placeAt(event);
    });
    this.svg.addEventListener("pointerup", event => this.dragged(event));
    for (const name of ["pointerdown", "pointermove"]) this.fields.addEventListener(name, event => this.scrub(event));
  }

  typed(event) {
    if (event.target === this.slider) event.stopPropagation();
    else super.typed(event);
  }
}

export default mount(View);
