// Draws an exploration. Everything comes from Python in `shown`, one message a step.

const STATUS = { L: "law", C: "constant", R: "rivals", "?": "open", "·": "never exercised", N: "nuisance" };
const BUTTONS = [["run", "r", "Run"], ["stop", "s", "Stop"]];
const KEYS = [
  { keys: { r: view => view.act("run") }, help: "runs" },
  { keys: { s: view => view.act("stop"), Escape: view => view.act("stop") }, help: "stop" },
  { help: "the keys work while this view has the focus" },
  { help: "a batch is predicted before it is captured" },
];
const [WIDE, HIGH, LEFT, UNDER] = [420, 200, 44, 28]; // of the curve, in its own units

function svg(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.root = make("div", "npulab-explore", "", { role: "group", tabindex: -1, "aria-label": model.get("title") });
    this.where = make("span", "where");
    this.bar = make("div", "progress", "", { role: "progressbar", "aria-label": "layers asked", "aria-valuemin": 0 });
    this.bar.append(make("div", "done"));
    this.tools = make("div", "tools", "", { role: "toolbar", "aria-label": "exploration" });
    this.buttons = BUTTONS.map(([act, key, name]) => {
      const button = this.button(act, name, { "aria-keyshortcuts": key });
      button.dataset.act = act;
      button.append(make("kbd", "", key, { "aria-hidden": "true" }));
      return button;
    });
    this.tools.append(...this.buttons);
    this.status = make("div", "status", "", { role: "status" });
    this.surprise = make("div", "surprise");
    this.curve = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", class: "curve" });
    this.legend = make("div", "legend");
    this.bits = make("div", "bits", "", { role: "img" });
    const columns = make("div", "columns"), beside = make("div", "beside");
    beside.append(this.curve, this.legend);
    columns.append(this.bits, beside);
    this.root.append(this.heading(this.where), this.bar, this.tools, this.status, this.surprise, columns, this.help());
    el.append(this.root);
    this.draw();
    this.events = { shown: () => this.draw() };
    this.tools.addEventListener("click", event => this.act(event.target.closest("button")?.dataset.act));
    this.root.addEventListener("keydown", event => this.press(event));
  }

  get keys() {
    return KEYS;
  }

  get shown() {
    return this.model.get("shown");
  }

  draw() {
    const { asked, budget, text, state, allowed, surprise } = this.shown;
    this.root.dataset.state = state;
    this.where.textContent = `${asked} of ${budget} layers`;
    this.bar.firstChild.style.width = `${100 * asked / budget}%`;
    this.bar.setAttribute("aria-valuemax", budget);
    this.bar.setAttribute("aria-valuenow", asked);
    if (this.status.textContent !== `${state}: ${text}`) this.status.textContent = `${state}: ${text}`;
    this.surprise.textContent = surprise && `last wrong prediction: ${surprise}`;
    for (const button of this.buttons) {
      button.setAttribute("aria-disabled", String(!allowed.includes(button.dataset.act)));
    }
    this.drawBits(this.shown);
    this.drawCurve(this.shown);
  }

  drawBits({ bits, names, status }) {
    const counts = Object.entries(status).map(([name, count]) => `${count} ${name}`).join(", ");
    this.bits.setAttribute("aria-label", `what is known of each bit: ${counts || "nothing yet"}`);
    this.bits.replaceChildren(make("div", "counts", counts && `bits: ${counts}`), ...bits.map(([word, letters], at) => {
      const row = make("div", "row"), cells = [...letters].map((letter, place) => {
        const cell = make("span", place % 4 ? "bit" : "bit nibble", letter);
        cell.dataset.status = STATUS[letter];
        return cell;
      });
      row.append(make("span", "name", (names && names[at]) || `w${word}`), ...cells);
      return row;
    }));
  }

  drawCurve({ batches }) {
    const last = batches.at(-1), most = Math.max(1, ...batches.map(row => row[1]));
    const x = captures => LEFT + (WIDE - LEFT - 12) * captures / most, y = share => (HIGH - UNDER) * (1 - share) + 6;
    const line = (column, name) => svg("polyline", { class: name,
      points: batches.map(row => `${x(row[1])},${y(row[column])}`).join(" ") });
    const parts = [0, 0.5, 1].flatMap(share => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDE - 12, y1: y(share), y2: y(share) }),
      svg("text", { x: LEFT - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`)]);
    parts.push(svg("text", { x: WIDE - 12, y: HIGH - 4, "text-anchor": "end" }, `${last?.[1] ?? 0} captures predicted`),
      line(4, "right"), line(5, "drawn"), ...batches.filter(row => row[3]).map(row =>
        svg("circle", { class: "wrong", cx: x(row[1]), cy: y(row[4]), r: 4 })));
    this.curve.replaceChildren(...parts);
    const said = last ? `cells predicted right: ${(100 * last[4]).toFixed(1)} % of the last batch` : "no batch predicted yet";
    this.curve.setAttribute("aria-label", said);
    this.legend.replaceChildren(said, ...(last ? [make("span", "right", "all layers"), make("span", "drawn", "drawn at random"),
      make("span", "wrong", "with a wrong prediction")] : []));
  }

  act(act) {
    if (this.shown.allowed.includes(act)) this.model.send(act);
  }

  press(event) {
    const act = this.acts.get(event.key);
    if (passes(event) || event.key === "Escape" && !this.shown.allowed.includes("stop")) return;
    event.stopPropagation();
    if (act || event.repeat && (event.key === "Enter" || event.key === " ")) event.preventDefault();
    if (act && !event.repeat) act(this, event);
  }
}

export default mount(View);
