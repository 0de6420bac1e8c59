/** The voice of the speech: one of the list, a description, or a recording. */

import { Cloning } from "./cloning.js";
import { choices, NO_VOICE, VoiceList } from "./voice-list.js";

const SOURCES = ["list", "describe", "clone"];
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

  changed() {
    this.show();
    this.dispatchEvent(new Event("change"));
  }

  get source() {
    return document.querySelector("[name=source]:checked").value;
  }

  set source(source) {
    document.querySelector(`[name=source][value=${SOURCES.includes(source) ? source : "list"}]`).checked = true;
    this.show();
  }

  show() {
    for (const source of SOURCES) $(`source-${source}`).hidden = this.source !== source;
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
        return voice === NO_VOICE ? { no_voice: true } : voice ? { voice } : {};
      }
      case "describe": {
        const style = $("style").value.trim();
        if (!style) {
          $("style").focus();
          throw new Error("Describe the voice first, or choose one from the list.");
        }
        return { style };
      }
      default:
        return this.cloning.options();
    }
  }
}
