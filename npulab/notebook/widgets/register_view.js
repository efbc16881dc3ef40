// Draws the register view: bits and fields, as in every view of registers, that can be changed. Python reads the texts
// that are typed.

const KEYS = [
  { keys: { Enter: (view, { repeat }) => repeat || view.type() }, help: "types a value" },
  { keys: { u: view => view.model.send({ do: "undo" }) }, help: "undoes" },
  { keys: { U: view => view.model.send({ do: "redo" }) }, help: "redoes" },
];
const FLIP = { keys: { " ": (view, { repeat }) => repeat || view.flip(...view.cursor) }, help: "or a double click flips" };

class View extends BitsFrame {
  get name() {
    return "npulab-registers";
  }

  get keys() {
    return [...KEYS, FLIP, ...super.keys];
  }

  get listKeys() {
    return [...KEYS, ...super.listKeys];
  }

  parts() {
    return [this.prompt()];
  }

  prompt() {
    this.bar = make("div", "prompt");
    const label = make("label", "");
    this.question = make("span", "question");
    this.answer = make("input", "answer", "", { spellcheck: "false", autocomplete: "off", list: `${this.id}-choices` });
    this.choices = make("datalist", "", "", { id: `${this.id}-choices` });
    label.append(this.question, this.answer);
    this.bar.append(label, this.choices);
    this.bar.hidden = true;
    return this.bar;
  }

  flip(word, bit) {
    const words = [...this.words];
    words[word] = (words[word] ^ 1 << bit) >>> 0;
    this.model.set("words", words);
    this.go(word, bit);
  }

  // Ask for the value of the run that is selected, or else of the field.
  type() {
    const [word, lsb, width] = this.model.get("selection"), place = this.places[this.here];
    const registers = this.model.get("registers");
    this.back = document.activeElement;
    this.asked = width ? { run: [word, lsb, width] } : { field: this.here };
    const name = width ? `${registers[word]}[${lsb + width - 1}:${lsb}]` : `${place.name} ${place.bits}`;
    const choices = width ? [] : place.choices;
    this.question.textContent = `${name} = `;
    this.answer.placeholder = `12, 0x0c${choices.length ? " or a name" : ""}; raw 12 as stored`;
    this.answer.value = width ? `0x${(this.words[word] >>> lsb & ones(width)).toString(16)}` : meant(this.texts[this.here]);
    this.choices.replaceChildren(...choices.map(value => make("option", "", "", { value })));
    this.bar.hidden = false;
    this.answer.focus();
    this.answer.select();
  }

  answered(keep) {
    if (keep) this.model.send({ do: "type", ...this.asked, text: this.answer.value });
    this.bar.hidden = true;
    (this.back?.isConnected ? this.back : this.stop).focus({ preventScroll: true });
  }

  wire() {
    super.wire();
    this.grid.addEventListener("dblclick", event => this.at(event, place => this.flip(...place)));
    this.fields.addEventListener("dblclick", event => this.overItem(event, () => this.type()));
  }

  typed(event) {
    const { key, target } = event;
    if (target !== this.answer) return super.typed(event);
    event.stopPropagation();
    if (!event.isComposing && (key === "Enter" || key === "Escape")) this.answered(key === "Enter");
  }
}

export default mount(View);
