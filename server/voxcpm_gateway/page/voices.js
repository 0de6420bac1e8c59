/** The voice of the speech: one of the list, a description, or a recording. */

import { Cloning } from "./cloning.js";
import { choices, NO_VOICE, VoiceList } from "./voice-list.js";

/** The sources of a voice, and whether a model has them. */
const SOURCES = {
  list: (model) => model.voice_kinds.length > 0,
  describe: (model) => model.styles && model.chooses_voice,
  clone: (model) => model.voice_kinds.some((kind) => kind !== "speaker"),
};
const MADE_UP = "The model makes up a voice that fits; with the same seed it is the same.";
const $ = (id) => document.getElementById(id);

/** Event "change": another voice is chosen. Event "failure" (detail: the error). */
export class Voices extends EventTarget {
  /**
   * @param {Server} server
   * @param {Samples} samples
   */
  constructor(server, samples) {
    super();
    this.server = server;
    this.offered = Object.keys(SOURCES); // until the model is known
    const announce = (text) => ($("voice-status").textContent = text);
    this.list = new VoiceList(server, samples);
    this.cloning = new Cloning(server, announce);
    for (const part of [this.list, this.cloning]) {
      part.addEventListener("failure", ({ detail }) => this.dispatchEvent(new CustomEvent("failure", { detail })));
    }
    this.list.addEventListener("change", () => this.changed());
    this.list.addEventListener("deleted", () => announce("Deleted."));
    this.cloning.addEventListener("stored", async ({ detail }) => {
      this.source = "list";
      await this.list.load(server.model, choices(detail, false).find(({ name }) => name === detail.name).value);
      this.list.chosen?.input.focus();
      announce(`Stored ${detail.name}.`);
      this.changed();
    });
    for (const input of document.querySelectorAll("[name=source]")) input.addEventListener("change", () => this.changed());
    $("style").addEventListener("input", () => this.changed());
    this.show();
  }

  /** Show what the model can do, and its voices. */
  async load(model) {
    this.offered = Object.keys(SOURCES).filter((source) => SOURCES[source](model));
    for (const input of document.querySelectorAll("[name=source]")) {
      input.closest("label").hidden = !this.offered.includes(input.value);
    }
    $("sources").hidden = this.offered.length < 2;
    this.cloning.describe(model);
    this.source = this.source; // or the first one that the model has
    await this.list.load(model);
    if (!this.list.voices.length && this.source === "list" && this.offered.includes("clone")) this.source = "clone";
    this.show();
  }

  changed() {
    this.show();
    this.dispatchEvent(new Event("change"));
  }

  get source() {
    return document.querySelector("[name=source]:checked").value;
  }

  set source(source) {
    const found = this.offered.includes(source) ? source : this.offered[0];
    document.querySelector(`[name=source][value=${found}]`).checked = true;
    this.show();
  }

  show() {
    for (const source of Object.keys(SOURCES)) $(`source-${source}`).hidden = this.source !== source;
    $("delivery-field").hidden = !this.takesDelivery;
    $("style-hint").textContent = this.needsStyle ? MADE_UP : `${MADE_UP} Without a description it makes up any voice.`;
  }

  /** True if the chosen voice of the list, which is built into the model, follows a description of the delivery. */
  get takesDelivery() {
    return Boolean(this.server.model?.styles) && this.list.chosen?.kind === "speaker";
  }

  /** True if a description must be given, because the list has the voice that the model makes up without one. */
  get needsStyle() {
    return this.offered.includes("list");
  }

  /** The name of the chosen voice for a link; empty if a link cannot carry it. */
  get linkedName() {
    const { chosen } = this.list;
    return this.source === "list" && chosen && chosen.value !== NO_VOICE ? chosen.name : "";
  }

  /** The options of a stream. Throws an Error with the reason if something is missing. */
  options() {
    switch (this.source) {
      case "list": {
        const voice = this.list.value;
        if (!voice && this.server.model?.needs_voice) throw new Error("Choose a voice first, or clone one.");
        const style = this.takesDelivery ? $("delivery").value.trim() : "";
        return { ...(voice === NO_VOICE ? { no_voice: true } : voice && { voice }), ...(style && { style }) };
      }
      case "describe": {
        const style = $("style").value.trim();
        if (!style && this.needsStyle) {
          $("style").focus();
          throw new Error("Describe the voice first, or choose one from the list.");
        }
        return style ? { style } : {};
      }
      default:
        return this.cloning.options();
    }
  }
}
