/** Samples of voices: a short sentence that a voice speaks once, and that the browser keeps and plays at once later. */

import { read, write } from "./kept-audio.js";

const SENTENCES = {
  de: "Guten Tag. So klinge ich, wenn ich Ihnen etwas vorlese.",
  en: "Hello. This is how I sound when I read to you.",
  es: "Hola. Así sueno cuando te leo algo en voz alta.",
  fr: "Bonjour. Voici ma voix quand je vous lis un texte.",
  it: "Buongiorno. Ecco la mia voce quando leggo per te.",
  ja: "こんにちは。これが私の読み上げの声です。",
  pt: "Olá. É assim que soa a minha voz quando leio para si.",
  zh: "你好。这就是我朗读时的声音。",
};
const SEED = 1; // the same sample for everyone

/** Event "change": `state` of a voice is another one. Event "failure" (detail: the error). */
export class Samples extends EventTarget {
  /** @param {Server} server */
  constructor(server) {
    super();
    this.server = server;
    this.voice = null; // whose sample is loading or playing
    this.loading = false;
    this.context = null;
  }

  /** "loading", "playing" or "idle". */
  state(voice) {
    return voice.value !== this.voice?.value ? "idle" : this.loading ? "loading" : "playing";
  }

  change(voice, loading) {
    this.voice = voice;
    this.loading = loading;
    this.dispatchEvent(new Event("change"));
  }

  stop() {
    this.source?.stop();
    this.source = null;
    if (this.voice) this.change(null, false);
  }

  /** Play the sample of a voice, or stop it. Call it from a handler of a click: browsers start audio only then. */
  async toggle(voice) {
    const was = this.voice?.value;
    this.stop();
    if (was === voice.value) return;
    this.context ??= new AudioContext();
    this.context.resume();
    this.change(voice, true);
    try {
      const audio = await this.context.decodeAudioData((await this.audio(voice)).slice(0));
      if (this.voice === voice) this.play(voice, audio);
    } catch (error) {
      if (this.voice !== voice) return;
      this.change(null, false);
      this.dispatchEvent(new CustomEvent("failure", { detail: error }));
    }
  }

  play(voice, audio) {
    const source = new AudioBufferSourceNode(this.context, { buffer: audio });
    source.connect(this.context.destination);
    source.onended = () => this.source === source && this.stop();
    source.start();
    this.source = source;
    this.change(voice, false);
  }

  async audio(voice) {
    const text = SENTENCES[voice.language?.split("-")[0]] ?? SENTENCES.en;
    const model = this.server.modelOptions;
    const name = `${model.model ?? ""} ${voice.digest} ${voice.value} ${text}`.trim();
    const found = await read(name);
    if (found) return found;
    const body = JSON.stringify({ ...model, input: text, voice: voice.value, seed: SEED, response_format: "wav" });
    const headers = { "content-type": "application/json" };
    const response = await this.server.request("v1/audio/speech", { method: "POST", headers, body });
    const audio = await response.arrayBuffer();
    write(name, audio);
    return audio;
  }
}
