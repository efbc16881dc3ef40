// Draws the operators of a model, the jobs of one and the fields of a job as three lists. All texts come from Python; this
// script paints them, moves through them, searches, and sends what was chosen.

const PAGE = 12;
const KEYS = [
  { keys: { ...rowMoves(PAGE) }, help: "move in a list" },
  { keys: { ArrowRight: view => view.aside(1), Enter: view => view.aside(1), ArrowLeft: view => view.aside(-1) }, help: "go to the next list and back" },
  { keys: { n: view => view.seek(1), p: view => view.seek(-1) }, help: "go to the next and previous operator with another value of the field" },
  { keys: { "/": view => view.search.focus() }, help: "searches fields" },
  { keys: { x: view => view.ask({ field: "" }) }, help: "lets the field go" },
];
const LISTS = ["operator", "job", "field"];

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.id = unique("npulab-operators");
    this.build(el);
    this.listen();
  }

  get keys() {
    return KEYS;
  }

  build(el) {
    const { model } = this;
    this.root = make("div", "npulab-operators", "", { role: "group", "aria-label": `model ${model.get("title")}` });
    this.summary = make("span", "npulab-summary");
    this.status = make("div", "status", "", { role: "status" });
    const tools = make("div", "tools"), label = make("label", "", "search fields ");
    this.search = make("input", "search", "", { type: "search", placeholder: "name, value, note", spellcheck: "false", tabindex: -1 });
    this.found = make("span", "found");
    label.append(this.search);
    tools.append(label, this.found);
    this.lists = {};
    const columns = make("div", "columns");
    for (const name of LISTS) {
      const column = make("section", name);
      this.lists[name] = make("div", "list", "", { role: "listbox", tabindex: 0, "aria-label": `${name}s` });
      column.append(make("h4", "", `${name}s`), this.lists[name]);
      columns.append(column);
    }
    this.root.append(this.heading(this.summary), tools, this.status, columns, this.help());
    el.append(this.root);
    this.drawOperators();
    this.draw();
  }

  item(list, index, key, ...texts) {
    const item = make("div", "item", "", { role: "option", id: `${this.id}-${list}-${index}`, "aria-selected": "false" });
    item.dataset.list = list;
    item.dataset.key = key;
    item.append(...texts.map(([name, text]) => make("span", name, text)));
    return item;
  }

  drawOperators() {
    this.lists.operator.replaceChildren(...this.model.get("rows").map(([name, told], index) => {
      const item = this.item("operator", index, index, ["name", name], ["told", told], ["value", ""]);
      item.classList.toggle("none", !/^\d+ jobs?$/.test(told));
      return item;
    }));
  }

  draw() {
    const { model } = this;
    this.lists.job.replaceChildren(...model.get("jobs").map(([number, block, name]) =>
      this.item("job", number, number, ["name", `${number} ${block}`], ["told", name])));
    this.lists.field.replaceChildren(...model.get("fields").map(([key, bits, raw, value, evidence, note], index) => {
      const item = this.item("field", index, key, ["name", key], ["value", value], ["told", bits]);
      item.classList.toggle("zero", raw === "0x0");
      item.dataset.text = `${key} ${bits} ${raw} ${value} ${evidence} ${note}`.toLowerCase();
      return item;
    }));
    this.narrow();
    this.choose();
  }

  // Mark what is chosen in each list, and write the values of the field beside the operators.
  choose() {
    const { model } = this, field = model.get("field"), values = model.get("values");
    for (const name of LISTS) {
      const list = this.lists[name], key = String(model.get(name));
      let chosen = null;
      for (const item of list.children) {
        const is = item.dataset.key === key;
        item.setAttribute("aria-selected", String(is));
        if (is) chosen = item;
      }
      list.removeAttribute("aria-activedescendant");
      if (!chosen) continue;
      list.setAttribute("aria-activedescendant", chosen.id);
      reveal(list, chosen, 0);
    }
    [...this.lists.operator.children].forEach((item, index) => {
      item.lastChild.textContent = field && values[index] ? `${field} ${values[index]}` : "";
      item.classList.toggle("other", field !== "" && values[index] !== "" && values[index] !== values[model.get("operator")]);
    });
    this.summary.textContent = model.get("summary");
    this.tell();
  }

  tell() {
    const { model } = this, [name, told] = model.get("rows")[model.get("operator")], job = model.get("jobs")[model.get("job")];
    const row = model.get("fields").find(([key]) => key === model.get("field"));
    const parts = [name, job ? `job ${job.filter(text => text !== "").join(" ")}` : told];
    if (row) parts.push(`${row[0]} ${row[1]} · ${row[2]} = ${row[3]}`, `evidence ${row[4]}`, row[5]);
    this.status.textContent = parts.filter(Boolean).join(" · ");
  }

  narrow() {
    const asked = this.search.value.toLowerCase().split(/\s+/).filter(Boolean), items = [...this.lists.field.children];
    for (const item of items) item.hidden = !asked.every(word => item.dataset.text.includes(word));
    const count = items.filter(item => !item.hidden).length;
    this.found.textContent = asked.length ? `${count || "none"} of ${items.length} fields` : "";
  }

  // ---- acting ----

  get list() {
    return LISTS.find(name => this.lists[name] === document.activeElement) ?? "operator";
  }

  take(item) {
    const { list, key } = item.dataset;
    this.ask({ [list]: list === "field" ? key : Number(key) });
  }

  move(by) {
    const name = this.list, items = [...this.lists[name].children].filter(item => !item.hidden);
    if (!items.length) return;
    const at = items.findIndex(item => item.getAttribute("aria-selected") === "true");
    this.take(items[at < 0 && by < PAGE ? 0 : clamp(at + by, items.length)]);
  }

  // To the next list; in a list of fields without a choice, to its first.
  aside(by) {
    const to = LISTS[clamp(LISTS.indexOf(this.list) + by, LISTS.length)], list = this.lists[to];
    if (!list.children.length) return;
    list.focus({ preventScroll: true });
    if (to === "field" && !this.model.get("field")) this.move(0);
  }

  seek(step) {
    const values = this.model.get("values"), from = this.model.get("operator");
    if (!this.model.get("field")) return void (this.status.textContent = "choose a field first");
    for (let n = 1, at = from; n < values.length; n++) {
      at = (at + step + values.length) % values.length;
      if (values[at] && values[at] !== values[from]) return this.ask({ operator: at });
    }
    this.status.textContent = `no operator has another value of ${this.model.get("field")}`;
  }

  // ---- listening ----

  listen() {
    const draw = () => this.draw(), choose = () => this.choose();
    this.events = { jobs: draw, fields: draw, values: choose, operator: choose, job: choose, field: choose, summary: choose };
    this.root.addEventListener("click", event => {
      const item = event.target.closest(".item");
      if (!item) return;
      this.lists[item.dataset.list].focus({ preventScroll: true });
      this.take(item);
    });
    this.search.addEventListener("input", () => this.narrow());
    this.root.addEventListener("keydown", event => this.press(event));
  }

  press(event) {
    const { key, target } = event, letter = key.length === 1;
    if (passes(event) || event.shiftKey && !letter) return;
    if (target === this.search) {
      event.stopPropagation();
      if (event.isComposing || !["Enter", "Escape", "ArrowDown"].includes(key)) return;
      event.preventDefault();
      if (key === "Escape") this.search.value = "";
      this.narrow();
      return this.lists.field.focus({ preventScroll: true });
    }
    const act = this.acts.get(key);
    if (act || key !== "Escape") event.stopPropagation();
    if (!act) return;
    event.preventDefault();
    act(this, event);
  }
}

export default mount(View);
