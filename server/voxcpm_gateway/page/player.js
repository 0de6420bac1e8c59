/** The audio output of the page: an AudioContext with the playback in its audio thread. */

import { Playback } from "./playback.js";

const FALLBACK_FRAMES = 1024; // of a block, where the browser offers no AudioWorklet

export class Player extends EventTarget {
  /**
   * Call it from a handler of a key or a click: browsers start audio only then.
   *
   * @param {number} rate of the samples, in Hz
   */
  constructor(rate) {
    super();
    this.rate = rate;
    this.report = new Playback(rate).report;
    this.context = new AudioContext({ sampleRate: rate, latencyHint: "interactive" });
    this.expecting = false;
    this.wanted = 0; // seconds of audio before the playback starts
    this.outbox = []; // messages for the playback until it is there
    this.cleared = [];
    this.post = (message) => this.outbox.push(message);
    this.ready = this.connect();
  }

  async connect() {
    if (this.context.audioWorklet) {
      await this.context.audioWorklet.addModule(new URL("playback-worklet.js", import.meta.url));
      this.node = new AudioWorkletNode(this.context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
      this.node.port.onmessage = ({ data }) => this.handle(data);
      this.post = (message, transfer = []) => this.node.port.postMessage(message, transfer);
    } else {
      this.connectFallback(); // pages without encryption have no worklets, unless the host is localhost
    }
    this.node.connect(this.context.destination);
    for (const message of this.outbox) this.post(message);
    this.outbox = [];
  }

  connectFallback() {
    const playback = new Playback(this.rate);
    this.node = this.context.createScriptProcessor(FALLBACK_FRAMES, 0, 1);
    this.node.onaudioprocess = ({ outputBuffer, playbackTime }) => {
      playback.fill(outputBuffer.getChannelData(0), playbackTime);
      this.handle({ type: "report", at: playbackTime, ...playback.report });
    };
    this.post = (message) => {
      const answer = playback.handle(message, this.context.currentTime);
      if (answer) this.handle(answer);
    };
  }

  handle(message) {
    if (message.type === "cleared") {
      this.cleared.shift()?.(message.position);
    } else {
      this.report = message;
      this.dispatchEvent(new Event("report"));
    }
  }

  /** Start the output; browsers keep it silent before the first key or click. */
  resume() {
    if (this.context.state === "suspended") this.context.resume();
  }

  /** Seconds of the audio clock. */
  get now() {
    return this.context.currentTime;
  }

  /** Position of the sample that plays now. */
  get position() {
    const { position, playing, held, buffered, at } = this.report;
    if (!playing || held) return position;
    const since = Math.max(0, this.now - at) * this.rate;
    return position + Math.min(since, buffered);
  }

  push(samples, offset) {
    this.report.buffered += samples.length;
    this.post({ type: "push", samples, offset, arrived: this.now }, [samples.buffer]);
  }

  /** @param {boolean} more true while audio is due that has not arrived */
  expect(more) {
    if (more !== this.expecting) this.post({ type: "expect", more });
    this.expecting = more;
  }

  /** Seconds of audio to have before the playback starts. */
  want(seconds) {
    if (seconds !== this.wanted) this.post({ type: "want", seconds });
    this.wanted = seconds;
  }

  /** Pause, or go on. */
  hold(held) {
    this.report.held = held;
    this.post({ type: "hold", held });
  }

  /** Silence. Resolves with the position up to which the audio was played. */
  clear() {
    this.report.buffered = 0;
    this.report.held = this.expecting = false;
    return new Promise((resolve) => {
      this.cleared.push(resolve);
      this.post({ type: "clear", asked: this.now });
    });
  }

  close() {
    this.context.close();
  }
}
