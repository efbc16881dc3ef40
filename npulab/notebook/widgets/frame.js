// The parts that every view is made of; this script stands before the script of each view.
//
// A view builds `this.root`, names in `this.events` what it does when a trait changes, and ends with
// `export default mount(View)`.

function make(tag, name, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.className = name;
  element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// The beginning of ids that no other view of the page has: each view runs this script anew, so that the page counts.
function unique(name) {
  window.npulabViews = (window.npulabViews ?? 0) + 1;
  return `${name}-${window.npulabViews}`;
}

function clamp(number, end) {
  return Math.max(0, Math.min(end - 1, number));
}

const FORMULA = /^'*[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20]/;
const NUMBER = /^[+-]?(0x[0-9a-f]+|(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)$/i;

// Lines of cells for the clipboard, escaped as support/cells.py escapes tables: an apostrophe in front of a cell keeps a
// spreadsheet from reading it as a formula.
function asCells(text) {
  return text.replace(/[^\t\r\n;]+/g, cell => FORMULA.test(cell) && !NUMBER.test(cell) ? `'${cell}` : cell);
}

// True for keys that go on to JupyterLab or the browser, such as Ctrl+S and Tab. JupyterLab takes single letters for
// commands (m makes a cell Markdown), Enter to edit the cell and arrows to go to the next cell: none of these may leave a
// view. AltGr is how some keyboards type [ and ]; the browser reports it as Control and Alt.
function passes(event) {
  const { key } = event, held = event.ctrlKey || event.metaKey || event.altKey;
  return held && !event.getModifierState("AltGraph") || key === "Tab" || /^F\d+$/.test(key);
}

function isSelectAll(event) {
  return (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "a";
}

// Ctrl+A never leaves a view: it would select all cells of the notebook. In a text it selects the text, as everywhere.
function keepSelectAll(event) {
  if (!isSelectAll(event)) return;
  event.stopPropagation();
  if (!["INPUT", "TEXTAREA"].includes(event.target.tagName)) event.preventDefault();
}

// A text as nodes, in which names that `find` knows are links: pressed, they call `act` with what it found.
function linked(text, find, act) {
  return text.split(/([A-Za-z_][\w.]*)/).map(part => {
    const found = part && find(part);
    if (!found) return part;
    const link = make("button", "npulab-link", part, { type: "button", tabindex: -1, "aria-label": `go to ${part}` });
    link.addEventListener("click", event => {
      event.stopPropagation();
      act(found);
    });
    return link;
  });
}

// A view has its keys in one table, in the order of its help: rows { keys: { name: act }, help }. A name is that of
// KeyboardEvent.key, with Shift+ or Ctrl+ in front where the view asks for it; an act takes the view and the event. A row
// without keys is a note; a row without help has keys that the page shows elsewhere.
const KEY_NAMES = { " ": "Space", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };

function keyActs(table) {
  return new Map(table.flatMap(({ keys = {} }) => Object.entries(keys)));
}

function keyHelp(table) {
  const lines = table.filter(({ help }) => help).map(({ keys = {}, help }) => {
    const names = Object.keys(keys).map(key => key.replace(/^ $|Arrow\w+/, name => KEY_NAMES[name])).join(" ");
    return `${names.replace("← → ↑ ↓", "arrows")} ${help}`.trim();
  });
  return lines.join(" · ");
}

// Acts of keys that move through rows: the view's method `name` takes how many rows on.
function rowMoves(page, name = "move") {
  return {
    ArrowUp: view => view[name](-1),
    ArrowDown: view => view[name](1),
    PageUp: view => view[name](-page),
    PageDown: view => view[name](page),
    Home: view => view[name](-Infinity),
    End: view => view[name](Infinity),
  };
}

// Acts of keys that move over words in rows, the highest bit on the left: `move` takes words and bits.
function bitMoves(page, bits) {
  return {
    ArrowLeft: view => view.move(0, 1),
    ArrowRight: view => view.move(0, -1),
    ArrowUp: view => view.move(-1, 0),
    ArrowDown: view => view.move(1, 0),
    PageUp: view => view.move(-page, 0),
    PageDown: view => view.move(page, 0),
    Home: view => view.move(0, bits),
    End: view => view.move(0, -bits),
  };
}

class Frame {
  constructor(model) {
    this.model = model;
    this.events = {};
    this.ends = [];
    this.acts = keyActs(this.keys);
  }

  // The table of the view's keys.
  get keys() {
    return [];
  }

  help() {
    return make("div", "npulab-help", keyHelp(this.keys));
  }

  heading(...more) {
    const line = make("div", "npulab-heading");
    line.append(make("strong", "", this.model.get("title")));
    if (this.model.get("simulated")) line.append(make("span", "npulab-simulated", "simulated"));
    line.append(...more);
    return line;
  }

  button(name, text, attributes = {}) {
    return make("button", name, text, { type: "button", ...attributes });
  }

  // Several traits in one message.
  ask(traits) {
    for (const [name, value] of Object.entries(traits)) this.model.set(name, value);
    this.model.save_changes();
  }

  // Make one element of a group its tab stop; it takes the focus if the group has it.
  stopAt(element, focused) {
    if (this.stop) this.stop.tabIndex = -1;
    this.stop = element;
    if (!element) return;
    element.tabIndex = 0;
    if (focused) element.focus();
  }

  // Call `act` with the word and the bit that an event is about.
  at(event, act) {
    const { word, bit } = event.target.dataset;
    if (bit !== undefined) act([Number(word), Number(bit)]);
  }

  // True if the pointer has moved: scrolling moves bits under a resting pointer, which points at nothing then.
  pointerMoved(event) {
    const { clientX, clientY } = event, rest = this.rest;
    this.rest = { clientX, clientY };
    return rest?.clientX !== clientX || rest?.clientY !== clientY;
  }

  // Draw again in the next frame, once, however often this is called.
  later() {
    this.request ??= requestAnimationFrame(() => {
      this.request = null;
      this.draw();
    });
  }

  // Draw a canvas again when the theme or its place on the page changes.
  watch() {
    const again = () => this.later(), dark = window.matchMedia("(prefers-color-scheme: dark)");
    const sizes = new ResizeObserver(again), themes = new MutationObserver(again);
    sizes.observe(this.root);
    themes.observe(document.body, { attributes: true });
    dark.addEventListener("change", again);
    this.ends.push(() => sizes.disconnect(), () => themes.disconnect(), () => dark.removeEventListener("change", again));
  }

  follow() {
    for (const [event, act] of Object.entries(this.events)) this.model.on(`change:${event}`, act);
  }

  close() {
    for (const [event, act] of Object.entries(this.events)) this.model.off(`change:${event}`, act);
    for (const end of this.ends) end();
    if (this.request) cancelAnimationFrame(this.request);
  }
}

function mount(View) {
  return {
    render({ model, el }) {
      const view = new View(model, el);
      view.follow();
      el.addEventListener("keydown", keepSelectAll);
      return () => view.close();
    },
  };
}

