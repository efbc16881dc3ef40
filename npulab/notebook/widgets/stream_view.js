// Draws the jobs of a stream, a row each. Rows, what waits for what and the fields of a job come from Python; this script
// builds the rows that are shown, moves through them, and sends what was asked. Below the rows stand the bits and fields of
// the job that is opened, as in every view of registers.

const LEAP = 12; // rows
const MOST = 600; // rows that are built at first; more when the cursor comes to them
const KEYS = [
  { keys: rowMoves(LEAP), help: "go through the jobs" },
  { keys: { Enter: view => view.open() }, help: "shows the fields of a job" },
  { keys: { Escape: view => view.shut() }, help: "goes back" },
  { keys: { b: view => view.turn() }, help: "shows the jobs of the next block" },
];
const WAITS = [
  { keys: { w: view => view.along("before") }, help: "goes to the job that is waited for" },
  { keys: { r: view => view.along("after") }, help: "goes to the job that is released" },
];

// The job that is shown, in the place of the notebook's model: its cursor and its selection stay on the page.
class Held {
  constructor(job, stream) {
    this.stream = stream;
    this.values = { cursor: [0, BITS - 1], selection: [], status: "", letters: [], shares: [], simulated: false, ...job };
    this.acts = new Map();
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    this.values[name] = value;
    this.acts.get(`change:${name}`)?.();
  }

  save_changes() {}

  send(message) {
    this.stream.model.send(message);
  }

  on(event, act) {
    this.acts.set(event, act);
  }

  off(event) {
    this.acts.delete(event);
  }
}

class Bits extends BitsFrame {
  constructor(job, el, stream) {
    super(new Held(job, stream), el);
    this.stream = stream;
    this.follow();
  }

  get name() {
    return "npulab-stream-bits";
  }

  parts() {
    return [];
  }

  // Escape goes back to the jobs, but in the search, where it empties it.
  press(event) {
    if (event.key !== "Escape" || event.target === this.search || passes(event)) return super.press(event);
    event.preventDefault();
    event.stopPropagation();
    this.stream.shut();
  }
}

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.limit = MOST;
    this.lines = new Map();
    this.build(el);
    this.listen();
  }

  get keys() {
    return this.model.get("units").length ? [...KEYS, ...WAITS] : KEYS;
  }

  // ---- building ----

  build(el) {
    const { model } = this, title = model.get("title");
    this.root = make("div", "npulab-stream", "", { role: "group", "aria-label": `stream of ${title}` });
    this.status = make("div", "status", "", { role: "status" });
    this.summary = make("div", "npulab-summary");
    this.box = make("div", "jobs");
    const table = make("table", "", "", { role: "grid", "aria-label": `${title}: jobs` });
    const head = make("thead", "", "", { role: "rowgroup" }), names = make("tr", "", "", { role: "row" });
    this.names = model.get("columns").flatMap(name => name === "unit" ? model.get("units") : [name]);
    names.append(...this.names.map(name => make("th", "", name, { role: "columnheader", scope: "col" })));
    head.append(names);
    this.body = make("tbody", "", "", { role: "rowgroup" });
    table.append(head, this.body);
    this.none = make("p", "none");
    this.box.append(table, this.none);
    this.under = make("section", "opened", "", { "aria-label": "fields of a job" });
    this.root.append(this.heading(), this.tools(), this.status, this.box, this.summary, this.help(), this.under);
    this.show();
    this.showJob();
    el.append(this.root);
  }

  tools() {
    const line = make("div", "tools"), label = make("label", "", "block "), names = ["", ...this.model.get("blocks")];
    this.block = make("select", "block", "");
    this.block.append(...names.map(value => Object.assign(make("option", "", value || "all"), { value })));
    label.append(this.block);
    this.opening = this.button("open", "fields of the job");
    line.append(label, this.opening);
    return line;
  }

  line(task) {
    if (this.lines.has(task)) return this.lines.get(task);
    const { cells, stuck } = this.model.get("rows")[task], units = this.model.get("units");
    const line = make("tr", stuck ? "stuck" : "", "", { role: "row", tabindex: -1 });
    line.dataset.task = task;
    this.model.get("columns").forEach((name, place) => {
      if (name === "unit") line.append(...units.map(unit => this.lane(unit, unit === cells[place])));
      else line.append(make("td", name === "fields" ? "texts" : "", cells[place], { role: "gridcell" }));
    });
    if (stuck) line.children[1].append(make("span", "mark", " never begins"));
    this.lines.set(task, line);
    return line;
  }

  // A unit's cell: a mark if it runs the job.
  lane(unit, runs) {
    const cell = make("td", "lane", "", { role: "gridcell" });
    if (runs) cell.append(make("span", "", "●", { role: "img", "aria-label": unit }));
    return cell;
  }

  // ---- showing ----

  show() {
    const { model } = this, shown = model.get("shown"), held = this.body.contains(document.activeElement);
    this.body.replaceChildren(...shown.slice(0, this.limit).map(task => this.line(task)));
    const left = shown.length - this.limit;
    this.none.textContent = left > 0 ? `… ${left} more jobs` : shown.length ? "" : "no job";
    this.summary.textContent = model.get("summary");
    this.block.value = model.get("block");
    this.choose(held);
  }

  choose(held = this.body.contains(document.activeElement)) {
    const { model } = this, selected = model.get("selected"), row = model.get("rows")[selected];
    const line = this.lines.get(selected);
    this.stop?.removeAttribute("aria-selected");
    this.stopAt(this.body.contains(line) ? line : this.body.querySelector("[data-task]"), held);
    this.stop?.setAttribute("aria-selected", "true");
    for (const [task, each] of this.lines) {
      each.classList.toggle("before", Boolean(row?.before.includes(task)));
      each.classList.toggle("after", Boolean(row?.after.includes(task)));
    }
    if (this.stop) reveal(this.box, this.stop, this.box.querySelector("thead").offsetHeight);
    this.status.textContent = row ? row.line : this.none.textContent;
    this.opening.disabled = !row;
    const opened = model.get("opened");
    this.opening.setAttribute("aria-pressed", String(opened >= 0 && opened === selected));
  }

  // Show the bits of the opened job; they take the focus if the person opened it here.
  showJob() {
    const job = this.model.get("job"), inside = this.under.contains(document.activeElement);
    this.bits?.close();
    this.bits = null;
    this.under.replaceChildren();
    this.under.hidden = !job.words;
    if (job.words) this.bits = new Bits(job, this.under, this);
    if (this.bits && (this.entering || inside)) this.bits.stop.focus();
    else if (inside) this.stop?.focus();
    this.entering = false;
    this.choose();
  }

  hover(event) {
    const line = event.target.closest("[data-task]");
    if (line && this.pointerMoved(event)) this.status.textContent = this.model.get("rows")[line.dataset.task].line;
  }

  // ---- acting ----

  go(task) {
    const place = this.model.get("shown").indexOf(task);
    if (place >= this.limit) {
      this.limit = place + MOST;
      this.show();
    }
    this.ask({ selected: task });
    this.choose(true);
  }

  move(by) {
    const shown = this.model.get("shown");
    if (shown.length) this.go(shown[clamp(shown.indexOf(this.model.get("selected")) + by, shown.length)]);
  }

  // Go to the first job that is waited for, or that waits; all blocks are shown if it is of another one.
  along(way) {
    const [task] = this.model.get("rows")[this.model.get("selected")]?.[way] ?? [];
    if (task === undefined) return;
    if (!this.model.get("shown").includes(task)) {
      this.ask({ block: "", selected: task });
      this.body.querySelector("[data-task]")?.focus();
      return;
    }
    this.go(task);
  }

  open() {
    const selected = this.model.get("selected");
    if (selected < 0) return;
    if (this.model.get("opened") === selected) return void this.bits?.stop.focus();
    this.entering = true;
    this.ask({ opened: selected });
  }

  shut() {
    this.ask({ opened: -1 });
    this.stop?.focus();
  }

  turn() {
    const blocks = ["", ...this.model.get("blocks")];
    this.ask({ block: blocks[(blocks.indexOf(this.model.get("block")) + 1) % blocks.length] });
  }

  // ---- listening ----

  listen() {
    this.events = {
      shown: () => this.show(),
      summary: () => this.show(),
      block: () => this.show(),
      selected: () => this.choose(),
      job: () => this.showJob(),
      filtered: () => {
        if (this.bits) for (const [name, value] of Object.entries(this.model.get("filtered"))) this.bits.model.set(name, value);
      },
    };
    this.ends.push(() => this.bits?.close());
    const over = act => event => {
      const line = event.target.closest("[data-task]");
      if (line) act(Number(line.dataset.task));
    };
    this.body.addEventListener("click", over(task => this.go(task)));
    this.body.addEventListener("dblclick", over(() => this.open()));
    this.body.addEventListener("pointerover", event => this.hover(event));
    this.body.addEventListener("pointerleave", () => this.choose(false));
    this.block.addEventListener("change", () => this.ask({ block: this.block.value }));
    this.opening.addEventListener("click", () => this.opening.getAttribute("aria-pressed") === "true" ? this.shut() : this.open());
    this.root.addEventListener("keydown", event => this.press(event));
  }

  press(event) {
    const { key, target } = event, letter = key.length === 1;
    if (this.under.contains(target) || passes(event) || event.shiftKey && !letter) return;
    if (target === this.block) return void event.stopPropagation();
    const button = target.tagName === "BUTTON", act = this.acts.get(key);
    if (act || key !== "Escape") event.stopPropagation();
    if (!act || button && (key === "Enter" || !letter && key !== "Escape")) return;
    event.preventDefault();
    act(this, event);
  }
}

export default mount(View);
