/** The list of voices: a card for each, with its name, what it is like, and its sample. */

const VOICES = "v1/audio/voices";
export const NO_VOICE = "\0none"; // stands for a voice that the model chooses
const MOST_WITHOUT_FILTER = 8;
const ABOUT = {
  prompt: "A stored voice that continues its recording",
  reference: "A stored voice with the timbre of its recording",
  hifi: "A stored voice, as near to its recording as possible",
};
const NONE_FOUND = "No voice has this in its name or its description.";
const NONE_STORED = "No voice is stored yet. This model speaks with the voice of a recording: clone one.";
const $ = (id) => document.getElementById(id);

/** Event "change": another voice is chosen. Event "failure" (detail: the error). */
export class VoiceList extends EventTarget {
  /**
   * @param {Server} server
   * @param {Samples} samples
   */
  constructor(server, samples) {
    super();
    Object.assign(this, { server, samples });
    this.voices = []; // those of the cards
    this.wanted = ""; // the voice to choose as soon as there is a list
    $("voice-filter").addEventListener("input", () => this.filter());
    samples.addEventListener("change", () => this.showSamples());
  }

  /** The chosen voice as its name or id; empty for the default one. */
  get value() {
    return document.querySelector("[name=voice]:checked")?.value ?? this.wanted;
  }

  get chosen() {
    return this.voices.find(({ value }) => value === this.value);
  }

  /** Choose a voice by its value or its name. Returns false if there is none. */
  choose(wanted) {
    if (!this.voices.length) this.wanted = wanted;
    const found = this.voices.find(({ value }) => value === wanted) ?? this.voices.find(({ name }) => name === wanted);
    if (found) found.input.checked = true;
    return Boolean(found);
  }

  /** Forget the voices of a model, and choose the wanted one among those of the next. */
  leave(wanted) {
    this.voices = [];
    this.wanted = wanted;
    $("voices").replaceChildren();
  }

  /** Show the voices of a model. */
  async load(model, chosen = this.value) {
    const { voices } = await (await this.server.request(`${VOICES}?model=${encodeURIComponent(model.model)}`)).json();
    if (model !== this.server.model) return; // another one was chosen meanwhile
    const presets = new Set(model.presets);
    const every = voices.flatMap((voice) => choices(voice, voice.preset ?? presets.has(voice.id)));
    const whole = new Set(every.filter(({ kind }) => kind === "hifi").map(({ name }) => name));
    const cards = every.filter(({ name, kind, stored }) => !stored || kind === "hifi" || !whole.has(name)); // not its parts
    if (model.chooses_voice && (!model.default_voice || cards.length)) cards.push(chosenByModel());
    for (const card of cards) card.isDefault = card.value === (model.default_voice || NO_VOICE);
    this.voices = cards;
    $("voices").replaceChildren(...cards.map((card) => this.element(card)));
    $("voice-filter-field").hidden = cards.length <= MOST_WITHOUT_FILTER;
    this.filter();
    this.showSamples();
    if (!this.choose(chosen) && !this.choose(model.default_voice || NO_VOICE) && cards.length) this.choose(cards[0].value);
    this.wanted = "";
  }

  element(voice) {
    const element = document.createElement("div");
    element.className = "voice";
    const label = document.createElement("label");
    voice.input = Object.assign(document.createElement("input"), { type: "radio", name: "voice", value: voice.value });
    voice.input.addEventListener("change", () => this.dispatchEvent(new Event("change")));
    const words = document.createElement("span");
    words.append(span("voice-name", voice.name));
    if (voice.isDefault && voice.value !== NO_VOICE) words.append(span("tag", "default"));
    words.append(span("about", voice.about));
    label.append(voice.input, words);
    element.append(this.sampleButton(voice), label);
    if (voice.stored) element.append(this.deleteButton(voice));
    voice.element = element;
    return element;
  }

  sampleButton(voice) {
    if (voice.value === NO_VOICE) {
      const place = span("no-sample", "");
      place.append(picture("new"));
      return place;
    }
    const button = iconButton("sample", "play");
    button.addEventListener("click", () => this.samples.toggle(voice));
    voice.button = button;
    return button;
  }

  showSamples() {
    for (const voice of this.voices) {
      if (!voice.button) continue;
      const state = this.samples.state(voice);
      voice.button.dataset.state = state;
      voice.button.setAttribute("aria-label", `${state === "idle" ? "Play" : "Stop"} a sample of ${voice.name}`);
      voice.button.querySelector("use").setAttribute("href", state === "idle" ? "#icon-play" : "#icon-stop");
    }
  }

  deleteButton(voice) {
    const button = iconButton("delete quiet", "delete");
    button.setAttribute("aria-label", `Delete ${voice.name}`);
    button.addEventListener("click", () => this.remove(voice));
    return button;
  }

  async remove(voice) {
    if (!confirm(`Delete the voice ${voice.name} from the server?`)) return;
    try {
      await this.server.request(`${VOICES}/${encodeURIComponent(voice.value)}`, { method: "DELETE" });
      await this.load(this.server.model, this.value === voice.value ? "" : this.value);
      this.dispatchEvent(new CustomEvent("deleted", { detail: voice }));
    } catch (error) {
      this.dispatchEvent(new CustomEvent("failure", { detail: error }));
    }
  }

  filter() {
    const wanted = $("voice-filter").value.trim().toLowerCase();
    let shown = 0;
    for (const { element, name, about } of this.voices) {
      element.hidden = !`${name} ${about}`.toLowerCase().includes(wanted);
      shown += !element.hidden;
    }
    $("no-voices").hidden = shown > 0;
    $("no-voices").textContent = this.voices.length ? NONE_FOUND : NONE_STORED;
  }
}

/** The cards of a voice: one for each of its names. The only name of a stored voice stands for its id. */
export function choices(voice, preset) {
  const { digest = "", kind = "", labels = {} } = voice;
  const language = labels.language ?? "";
  const unlabelled = (preset ? "A preset of the model" : ABOUT[kind]) || "A stored voice";
  const about = sentence(labels.about || labels.description || unlabelled);
  const names = (voice.names ?? []).map(({ name }) => name).slice(preset ? 1 : 0); // the first is that of the preset
  const card = (name, value, stored) => ({ name, value, stored, kind, about, language, digest });
  if (preset) return [card(voice.name, voice.id, false), ...names.map((name) => card(name, name, true))];
  return names.length > 1 ? names.map((name) => card(name, name, true)) : [card(voice.name, voice.id, true)];
}

function chosenByModel() {
  const about = "The model chooses, by the seed";
  return { name: "Any voice", value: NO_VOICE, stored: false, kind: "", about, language: "", digest: "" };
}

function sentence(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function span(name, content) {
  const element = document.createElement("span");
  element.className = name;
  element.textContent = content;
  return element;
}

function iconButton(name, icon) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: `icon ${name}` });
  button.append(picture(icon));
  return button;
}

function picture(icon) {
  const [element, use] = ["svg", "use"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  element.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${icon}`);
  element.append(use);
  return element;
}
