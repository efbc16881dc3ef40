// Draws the bisect view. All meaning (the trial, its reason, the acts allowed) comes from Python as text in `shown`, one
// message a trial; this script paints it and sends the acts pressed.
//
// An act carries the turn it was pressed for: Python ignores it if that question is over.

const MOST = 200; // rows of fields in the page
const SEEN = 300; // ms that a trial is shown before an answer counts: a double click does not answer the next trial
const VERDICTS = ["pass", "fail", "hang", "poisons", "reboots", "not executed", "refused"]; // in this order; a stored page sorts its keys
const BUTTONS = [
  ["pass", "p", "Pass"], ["fail", "f", "Fail"], ["hang", "h", "Hang"],
  ["undo", "u", "Undo"], ["again", "a", "Ask again"],
  ["run", "r", "Run"], ["stop", "s", "Stop"],
];
const KEYS = [
  { keys: Object.fromEntries(BUTTONS.map(([act, key]) => [key, view => view.act(act)])) }, // shown on the buttons
  { help: "the keys work while this view has the focus: click into it, or Tab to its buttons" },
  { keys: { Escape: view => view.act("stop") }, help: "stops, too" },
  { help: "its .capture is what to run" },
];
const TOOL_KEYS = [{
  keys: {
    ArrowLeft: view => view.move(-1),
    ArrowRight: view => view.move(1),
    Home: view => view.move(-BUTTONS.length),
    End: view => view.move(BUTTONS.length),
  },
}];
const STRIP_KEYS = [{
  keys: {
    ArrowLeft: view => view.step(-1),
    ArrowRight: view => view.step(1),
    Home: view => view.step(-Infinity),
    End: view => view.step(Infinity),
  },
  help: "in the strip go from field to field",
}];
const WIDEST = [24, 38, 14, 14, 14]; // letters of a column

function counted(number, name) {
  return `${number} ${name}${number === 1 ? "" : "s"}`;
}

function percent(probability) {
  return `${(100 * probability).toFixed(1)} %`;
}

class View extends Frame {
  constructor(model, el) {
    super(model);
    this.turn = null;
    this.id = unique("npulab-bisect");
    this.toolActs = keyActs(TOOL_KEYS);
    this.stripActs = keyActs(STRIP_KEYS);
    this.build(el);
    this.draw();
    this.listen();
  }

  get keys() {
    return KEYS;
  }

  help() {
    return make("div", "npulab-help", keyHelp([...KEYS, ...STRIP_KEYS]));
  }

  get shown() {
    return this.model.get("shown");
  }

  // ---- building, once ----

  build(el) {
    this.root = make("div", "npulab-bisect", "", { role: "group", tabindex: -1,
      "aria-label": `bisection of ${this.model.get("title")}` });
    this.tools = this.toolbar();
    this.bar = make("div", "progress", "", { role: "progressbar", "aria-label": "trials done", "aria-valuemin": 0,
      "aria-valuemax": 100 });
    this.bar.append(make("div", "done"));
    this.counts = make("div", "counts");
    this.where = make("span", "where");
    this.status = make("div", "status", "", { role: "status" });
    this.reason = make("div", "reason");
    const line = make("div", "line");
    line.append(this.tools, this.counts);
    const columns = make("div", "columns"), beside = make("div", "beside");
    beside.append(this.suspects(), this.trials());
    columns.append(this.tried(), this.result(), beside);
    this.root.append(this.heading(this.where), this.bar, line, this.status, this.reason, this.strips(), columns, this.help());
    el.append(this.root);
  }

  // One tab stop: the arrows move between the buttons. They are never `disabled`, which would drop the focus
  // to the page, and the next key with it to the notebook.
  toolbar() {
    const bar = make("div", "tools", "", { role: "toolbar", "aria-label": "answer" });
    this.buttons = BUTTONS.map(([act, key, name], index) => {
      const button = this.button(act, name, { tabindex: index ? -1 : 0, "aria-keyshortcuts": key });
      button.dataset.act = act;
      button.append(make("kbd", "", key, { "aria-hidden": "true" }));
      return button;
    });
    bar.append(...this.buttons);
    return bar;
  }

  section(name, title) {
    const section = make("section", name);
    const head = make("h4", "", title);
    section.append(head);
    return [section, head];
  }

  table(names, label) {
    const table = make("table", "", "", { "aria-label": label }), head = make("thead", ""), row = make("tr", "");
    row.append(...names.map(name => make("th", "", name, { scope: "col" })));
    head.append(row);
    const body = make("tbody", "");
    table.append(head, body);
    return [table, body];
  }

  // Columns as wide as the longest text of all parts needs, so that they stay where they are from trial to trial.
  columns() {
    const parts = this.model.get("parts"), group = make("colgroup", "");
    const letters = [0, 1, 2, 3, 3].map((column, at) =>
      2 + Math.min(WIDEST[at], Math.max(10, ...parts.map(part => part[column].length))));
    const sum = letters.reduce((a, b) => a + b);
    group.append(...letters.map(one => make("col", "", "", { style: `width: ${100 * one / sum}%` })));
    return group;
  }

  tried() {
    [this.triedSection, this.triedHead] = this.section("tried", "");
    const scroll = make("div", "scroll", "", { tabindex: 0, role: "region", "aria-label": "fields of this trial" });
    const [table, body] = this.table(["register", "field", "good", "tried", "bad"], "fields: good, tried, bad");
    table.prepend(this.columns());
    this.rows = body;
    this.kept = make("tbody", "kept");
    this.kept.hidden = true;
    table.append(this.kept);
    scroll.append(table);
    this.fold = this.button("fold", "", { "aria-expanded": "false" });
    this.triedSection.append(scroll, this.fold);
    return this.triedSection;
  }

  suspects() {
    const [section] = this.section("suspects", "suspects");
    const [table, body] = this.table(["probable", "breaks it"], "suspects");
    this.suspectRows = body;
    section.append(table);
    return section;
  }

  // All parts that differ side by side.
  strips() {
    const [section] = this.section("all", "how probable it is that a field has a part in it");
    this.strip = make("div", "strip", "", { role: "listbox", tabindex: 0, "aria-label": "probability of each field",
      "aria-orientation": "horizontal" });
    this.told = make("div", "told");
    this.cells = this.model.get("parts").map((_, index) => {
      const cell = make("span", "part", "", { role: "option", id: `${this.id}-${index}`, "aria-selected": "false" });
      cell.dataset.index = index;
      return cell;
    });
    this.strip.append(...this.cells);
    section.append(this.strip, this.told);
    return section;
  }

  trials() {
    const [section] = this.section("trials", "last trials");
    const [table, body] = this.table(["trial", "outcome", "changed", "seconds"], "last trials");
    this.trialRows = body;
    section.append(table);
    this.trialsSection = section;
    return section;
  }

  result() {
    [this.resultSection] = this.section("result", "the smallest diff that breaks it");
    const [table, body] = this.table(["register", "field", "good", "bad", "group"], "the smallest diff");
    [this.diff, this.diffRows] = [table, body];
    this.script = make("pre", "script", "", { tabindex: 0, role: "region", "aria-label": "script that shows it again" });
    this.copy = this.button("copy", "Copy script");
    this.resultSection.append(table, this.script, this.copy);
    return this.resultSection;
  }

  // ---- painting ----

  draw() {
    const { shown } = this;
    if (shown.turn !== this.turn) [this.turn, this.since] = [shown.turn, performance.now()];
    this.root.dataset.state = shown.state;
    this.where.textContent = shown.state === "done" ? `${counted(shown.trial, "trial")}` :
      `trial ${shown.trial} · about ${shown.left} left`;
    this.tell(shown.status);
    this.reason.textContent = shown.reason && `why: ${shown.reason}`;
    this.counts.replaceChildren(...VERDICTS.filter(name => name in shown.counts).map(name => {
      const count = make("span", name, "");
      count.append(make("b", "", shown.counts[name]), ` ${name}`);
      return count;
    }));
    for (const button of this.buttons) {
      button.setAttribute("aria-disabled", String(!shown.allowed.includes(button.dataset.act)));
    }
    this.drawProgress(shown);
    this.drawTried(shown);
    this.drawStrip(shown);
    this.drawSuspects(shown);
    this.drawTrials(shown);
    this.drawResult(shown);
  }

  drawProgress({ progress, left, counts }) {
    const told = Object.values(counts).reduce((sum, count) => sum + count, 0);
    this.bar.firstChild.style.width = `${100 * progress}%`;
    this.bar.setAttribute("aria-valuenow", Math.round(100 * progress));
    this.bar.setAttribute("aria-valuetext", `${counted(told, "trial")} done, about ${left} left`);
  }

  drawTried({ chosen, state, trial }) {
    const parts = this.model.get("parts"), taken = new Set(chosen);
    this.triedSection.hidden = state === "done";
    this.triedHead.textContent = `trial ${trial}: ${chosen.length} taken from ${this.model.get("bad")}`;
    this.fill(this.rows, chosen.map(place => parts[place]), ([where, field, good, bad]) =>
      [where, field, good, ["now", bad], bad]);
    if (!chosen.length) this.fill(this.rows, [[]], () => ["", "nothing is changed: the good job as it is", "", "", ""]);
    this.left = parts.filter((_, place) => !taken.has(place));
    this.fold.hidden = !this.left.length;
    this.drawKept();
  }

  drawKept() {
    const open = !this.kept.hidden;
    this.fold.textContent = `${open ? "▾" : "▸"} ${this.left.length} stay as in ${this.model.get("good")}`;
    this.fold.setAttribute("aria-expanded", String(open));
    this.fill(this.kept, open ? this.left : [], ([where, field, good, bad]) => [where, field, good, good, bad]);
  }

  // A cell for each part that differs, in the order of the words: the darker, the more probable that it breaks the job;
  // those that the trial takes from BAD have a rule below.
  drawStrip({ shares, chosen }) {
    const taken = new Set(chosen), most = Math.max(1, ...shares);
    this.cells.forEach((cell, index) => {
      cell.style.setProperty("--share", `${100 * shares[index] / most}%`);
      cell.classList.toggle("taken", taken.has(index));
      cell.setAttribute("aria-label", this.suspected(index));
      cell.title = this.suspected(index);
    });
    this.point(this.pointed ?? shares.indexOf(Math.max(...shares)));
  }

  suspected(index) {
    const [where, field] = this.model.get("parts")[index], { shares, chosen } = this.shown;
    return `${shares[index]} % ${where} ${field}${chosen.includes(index) ? ", in this trial as in " + this.model.get("bad") : ""}`;
  }

  step(parts) {
    this.pointed = clamp(this.at + parts, this.cells.length);
    this.point(this.pointed);
  }

  point(index) {
    this.at = clamp(index, this.cells.length);
    for (const cell of this.cells) cell.setAttribute("aria-selected", "false");
    const cell = this.cells[this.at];
    if (!cell) return;
    cell.setAttribute("aria-selected", "true");
    this.strip.setAttribute("aria-activedescendant", cell.id);
    this.told.textContent = this.suspected(this.at);
  }

  drawSuspects({ suspects }) {
    this.fill(this.suspectRows, suspects, ([text, probability]) => {
      const bar = make("div", "bar", percent(probability));
      bar.style.setProperty("--share", `${100 * probability}%`);
      return [bar, text];
    });
  }

  drawTrials({ log }) {
    this.trialsSection.hidden = !log.length;
    this.fill(this.trialRows, [...log].reverse(), ([number, outcome, changed, seconds]) =>
      [number, ["outcome " + outcome, outcome], changed, seconds ? seconds.toFixed(seconds < 10 ? 2 : 0) : ""]);
  }

  drawResult({ found, state }) {
    this.resultSection.hidden = state !== "done" || !found.rows.length;
    if (this.resultSection.hidden) return;
    this.diff.classList.toggle("one", new Set(found.rows.map(row => row[4])).size < 2);
    this.fill(this.diffRows, found.rows, row => row);
    this.script.textContent = found.script;
  }

  // A row for each item, at most MOST; a cell is a text, [class, text] or an element.
  fill(body, items, cells) {
    const rows = items.slice(0, MOST).map(item => {
      const row = make("tr", "");
      row.append(...cells(item).map(cell => {
        if (cell instanceof Element) {
          const box = make("td", "");
          box.append(cell);
          return box;
        }
        return Array.isArray(cell) ? make("td", ...cell) : make("td", "", cell);
      }));
      return row;
    });
    if (items.length > MOST) {
      rows.push(make("tr", "more"));
      rows.at(-1).append(make("td", "", `… ${items.length - MOST} more`, { colspan: 5 }));
    }
    body.replaceChildren(...rows);
  }

  tell(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  // ---- acting ----

  act(act) {
    const { shown } = this;
    if (!shown.allowed.includes(act)) return;
    if (VERDICTS.includes(act) && performance.now() - this.since < SEEN) {
      return this.tell(`Trial ${shown.trial} has only just come: look at it, then answer.`);
    }
    this.model.send({ act, turn: shown.turn });
  }

  move(step) {
    const at = this.buttons.findIndex(button => button.tabIndex === 0);
    const next = clamp(at + step, this.buttons.length);
    this.buttons[at].tabIndex = -1;
    this.buttons[next].tabIndex = 0;
    this.buttons[next].focus();
  }

  unfold() {
    this.kept.hidden = !this.kept.hidden;
    this.drawKept();
  }

  // The clipboard may be denied, and is missing where the page is not secure: the text is selected then.
  async copied() {
    const range = document.createRange();
    range.selectNodeContents(this.script);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    try {
      await navigator.clipboard.writeText(this.script.textContent);
      this.tell("The script is copied.");
    } catch {
      this.tell("The script is selected: Ctrl+C or Cmd+C copies it.");
    }
  }

  // ---- listening ----

  listen() {
    this.events = { shown: () => this.draw() };
    this.tools.addEventListener("click", event => this.click(event));
    const pointed = event => event.target.dataset.index !== undefined && this.point(this.pointed = Number(event.target.dataset.index));
    for (const name of ["pointerover", "click"]) this.strip.addEventListener(name, pointed);
    this.fold.addEventListener("click", () => this.unfold());
    this.copy.addEventListener("click", () => this.copied());
    this.root.addEventListener("keydown", event => this.press(event));
  }

  click(event) {
    const button = event.target.closest("button");
    if (!button) return;
    this.move(this.buttons.indexOf(button) - this.buttons.findIndex(one => one.tabIndex === 0));
    this.act(button.dataset.act);
  }

  press(event) {
    const letter = event.key.length === 1, key = letter ? event.key.toLowerCase() : event.key;
    if (passes(event) || event.shiftKey && !letter) return;
    const act = event.shiftKey ? undefined : this.acts.get(key);
    const moves = event.target === this.strip ? this.stripActs : this.tools.contains(event.target) ? this.toolActs : new Map();
    const move = moves.get(key);
    if (key === "Escape" && !this.shown.allowed.includes("stop")) return;
    event.stopPropagation();
    // a key that is held down counts once: each repeated Enter would press the button again
    if (act || move || event.repeat && (key === "Enter" || key === " ")) event.preventDefault();
    if (move) move(this, event);
    else if (act && !event.repeat) act(this, event);
  }
}

export default mount(View);
