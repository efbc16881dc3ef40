// Draws the diff view. The differences, the rows that each filter leaves and the Markdown come from Python; this script
// builds the rows that are shown, moves through them, and sends what was asked.

const PAGE = 12;
const MOST = 600; // rows that are built at first; more when the cursor comes to them
const KEYS = [
  { keys: rowMoves(PAGE), help: "go through the rows" },
  { keys: { "/": view => view.search.focus() }, help: "filters by name: part of it, or a glob such as CONV*.stride?" },
  { keys: { u: view => view.turn("unknown") }, help: "leaves the fields that nobody named" },
  { keys: { a: view => view.turn("addresses") }, help: "takes addresses in or out" },
  { keys: { c: view => view.copy() }, help: "copies the table as Markdown" },
];

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.limit = MOST;
    this.lines = new Map();
    this.build(el);
    this.listen();
  }

  get keys() {
    return KEYS;
  }

  // ---- building ----

  build(el) {
    const { model } = this, title = model.get("title");
    this.root = make("div", "npulab-diff", "", { role: "group", "aria-label": `difference of ${title}` });
    this.status = make("div", "status", "", { role: "status" });
    this.summary = make("div", "npulab-summary");
    this.scroll = make("div", "scroll");
    this.table = make("table", "", "", { role: "grid", "aria-label": `${title}: fields that differ` });
    const head = make("thead", "", "", { role: "rowgroup" }), names = make("tr", "", "", { role: "row" });
    this.columns = [...model.get("columns"), ...model.get("rows").some(row => row.binary.length) ? ["a over b, bit by bit"] : []];
    names.append(...this.columns.map(name =>
      make("th", "", name, { role: "columnheader", scope: "col" })));
    head.append(names);
    this.body = make("tbody", "", "", { role: "rowgroup" });
    this.table.append(head, this.body);
    this.none = make("p", "none");
    this.scroll.append(this.table, this.none);
    this.root.append(this.heading(), this.tools(), this.status, this.scroll, this.summary, this.help());
    // what was done to the jobs of a stream comes before what differs in them
    if (model.get("streams")) this.root.insertBefore(this.summary, this.root.children[1]);
    this.show();
    el.append(this.root);
  }

  tools() {
    const line = make("div", "tools"), label = make("label", "", "filter ");
    this.search = make("input", "search", "", { type: "search", spellcheck: "false", placeholder: "name or glob" });
    label.append(this.search);
    this.unknown = this.button("unknown", "only unknown");
    this.addresses = this.button("addresses", "addresses");
    this.copying = this.button("copy", "copy as Markdown");
    line.append(label, this.unknown, this.addresses, this.copying);
    return line;
  }

  line(index) {
    if (this.lines.has(index)) return this.lines.get(index);
    const { cells, address, automatic, binary } = this.model.get("rows")[index];
    const line = make("tr", address ? "address" : automatic ? "automatic" : "", "", { role: "row", tabindex: -1 });
    line.dataset.index = index;
    line.append(...cells.map(text => make("td", "", text, { role: "gridcell" })));
    if (address || automatic) line.lastChild.append(make("span", "mark", address ? " address" : " nobody named it"));
    if (this.columns.length > cells.length) line.append(this.bits(binary));
    this.lines.set(index, line);
    return line;
  }

  // The bits of both sides, one side above the other; bits that differ are marked.
  bits(binary) {
    const cell = make("td", "both", "", { role: "gridcell" });
    for (const side of binary) {
      const line = make("div", "");
      [...side].forEach((bit, at) => {
        const place = side.length - 1 - at, differs = binary[0][at] !== binary[1][at];
        line.append(make("span", [differs ? "flip" : "", place % 4 === 3 && at ? "nibble" : ""].join(" ").trim(), bit));
      });
      cell.append(line);
    }
    return cell;
  }

  // The line above the addresses, which stand apart from fields that mean something.
  apart(rows) {
    const count = rows.filter(index => this.model.get("rows")[index].address).length, wide = this.columns.length;
    const line = make("tr", "apart", "", { role: "row" });
    line.append(make("td", "", `${count} ${count === 1 ? "address" : "addresses"}: where buffers lie, which changes from run to run`,
      { role: "gridcell", colspan: wide }));
    return line;
  }

  // ---- showing ----

  // The rows that are shown, addresses last.
  get order() {
    const rows = this.model.get("rows"), shown = this.model.get("shown");
    return [...shown.filter(index => !rows[index].address), ...shown.filter(index => rows[index].address)];
  }

  show() {
    const { model } = this, shown = model.get("shown"), held = this.body.contains(document.activeElement);
    const rows = model.get("rows"), built = this.order.slice(0, this.limit), first = built.findIndex(index => rows[index].address);
    const lines = built.map(index => this.line(index));
    if (first >= 0) lines.splice(first, 0, this.apart(shown));
    this.body.replaceChildren(...lines);
    const left = shown.length - this.limit;
    this.none.textContent = left > 0 ? `… ${left} more rows` : shown.length ? "" : "no field is left";
    this.summary.textContent = model.get("summary");
    if (document.activeElement !== this.search) this.search.value = model.get("query");
    this.unknown.setAttribute("aria-pressed", String(model.get("unknown")));
    this.addresses.setAttribute("aria-pressed", String(model.get("addresses")));
    this.choose(held);
  }

  choose(held = this.body.contains(document.activeElement)) {
    const selected = this.model.get("selected"), line = this.lines.get(selected) ?? null;
    this.stop?.removeAttribute("aria-selected");
    this.stopAt(this.body.contains(line) ? line : this.body.querySelector("[data-index]"), held);
    this.stop?.setAttribute("aria-selected", "true");
    this.status.textContent = selected < 0 ? this.none.textContent : this.model.get("rows")[selected].line;
  }

  // Show all that is known of the row under the pointer.
  hover(event) {
    const line = event.target.closest("[data-index]");
    if (line && this.pointerMoved(event)) this.status.textContent = this.model.get("rows")[line.dataset.index].line;
  }

  // ---- acting ----

  turn(name) {
    this.ask({ [name]: !this.model.get(name) });
  }

  move(by) {
    const shown = this.order;
    if (!shown.length) return;
    const to = clamp(shown.indexOf(this.model.get("selected")) + by, shown.length);
    if (to >= this.limit) {
      this.limit = to + MOST;
      this.show();
    }
    this.ask({ selected: shown[to] });
    this.choose(true);
  }

  async copy() {
    const text = this.model.get("markdown");
    try {
      await navigator.clipboard.writeText(asCells(text));
      this.status.textContent = `copied ${this.model.get("shown").length} rows as Markdown`;
    } catch {
      this.status.textContent = "the page is not allowed to copy; to_markdown() returns the text";
    }
  }

  // ---- listening ----

  listen() {
    this.events = {
      shown: () => this.show(),
      summary: () => this.show(),
      query: () => this.show(),
      unknown: () => this.show(),
      addresses: () => this.show(),
      selected: () => this.choose(),
    };
    this.body.addEventListener("click", event => {
      const line = event.target.closest("[data-index]");
      if (!line) return;
      this.ask({ selected: Number(line.dataset.index) });
      this.choose(true);
    });
    this.body.addEventListener("pointerover", event => this.hover(event));
    this.body.addEventListener("pointerleave", () => this.choose(false));
    this.search.addEventListener("input", () => this.ask({ query: this.search.value }));
    this.unknown.addEventListener("click", () => this.turn("unknown"));
    this.addresses.addEventListener("click", () => this.turn("addresses"));
    this.copying.addEventListener("click", () => this.copy());
    this.root.addEventListener("keydown", event => this.press(event));
  }

  press(event) {
    const { key, target } = event, letter = key.length === 1;
    if (passes(event) || event.shiftKey && !letter) return;
    if (target === this.search) {
      event.stopPropagation();
      if (key !== "Escape" && key !== "Enter" && key !== "ArrowDown" || event.isComposing) return;
      event.preventDefault(); // Escape would empty the search
      return void (this.stop ?? this.search).focus();
    }
    const button = target.tagName === "BUTTON", act = this.acts.get(key);
    if (act || key !== "Escape") event.stopPropagation();
    if (!act || button && !letter) return;
    event.preventDefault();
    act(this, event);
  }
}

export default mount(View);
