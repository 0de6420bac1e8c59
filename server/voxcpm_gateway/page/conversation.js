/** The text that was sent, its audio, and what became of both. */

import { Player } from "./player.js";
import { Stream } from "./stream.js";

const AUDIBLE = 10 ** (-45 / 20); // root mean square of a window
const WINDOW_SECONDS = 0.005;

/** The index of the first audible sample, or null. */
function audible(samples, rate) {
  const size = Math.round(WINDOW_SECONDS * rate);
  for (let from = 0; from < samples.length; from += size) {
    const window = samples.subarray(from, from + size);
    if (window.reduce((sum, sample) => sum + sample * sample, 0) > AUDIBLE ** 2 * window.length) return from;
  }
  return null;
}

/** The characters of a text by code points, as the gateway counts them. */
export function slice(points, start, end) {
  return points.slice(start, end).join("");
}

class Turn {
  constructor(index) {
    this.index = index;
    this.points = []; // code points of its text
    this.segments = [];
    this.sentAt = 0;
    this.heardEnd = null; // code points that were heard, after an interrupt
    this.estimated = false;
  }
}

/** Events: "change" (texts or states), "error" (detail: the error), "audio" (detail: samples, offset), "cut". */
export class Conversation extends EventTarget {
  /** @param {() => object} config the options of a new stream */
  constructor(config) {
    super();
    this.config = config;
    this.stream = null;
    this.player = null;
    this.turns = []; // of the stream
    this.history = []; // turns of this stream and of those before it
    this.stopping = null;
    this.reset();
  }

  reset() {
    this.turns = [];
    this.openTurn = null;
    this.received = 0; // samples of the stream
    this.muted = false; // after an interrupt, until its answer
    this.speaking = null; // the segment whose audio arrives
    this.flushes = 0; // that are not answered
    this.asked = 0; // time of the last text or flush before the first audio
    this.figures = { firstAudio: null, firstSound: null, busySeconds: 0, audioSeconds: 0 };
  }

  /** Call it from a handler of a key or a click, the first time. */
  prepare(rate) {
    if (!this.player || this.player.rate !== rate) {
      this.player?.close();
      this.player = new Player(rate);
      this.player.addEventListener("report", () => this.changed());
    }
    this.player.resume();
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  get active() {
    const { playing = false, buffered = 0 } = this.player?.report ?? {};
    return playing || buffered > 0 || this.speaking !== null || this.flushes > 0 || this.openTurn !== null;
  }

  get position() {
    return this.player ? this.player.position : 0;
  }

  /** Seconds of audio that wait to be played. */
  get ahead() {
    return this.player ? this.player.report.buffered / this.player.rate : 0;
  }

  /** Open a stream with the options of now, unless one of the same options is open. */
  async connect() {
    await this.stopping;
    const config = this.config();
    const signature = JSON.stringify(config);
    if (this.stream?.open && (signature === this.signature || this.openTurn)) return;
    if (this.stream) {
      this.stream.close();
      if (this.received > this.position) {
        const position = await this.player.clear();
        this.guess(position);
        this.cut(position);
      }
    }
    this.reset();
    this.signature = signature;
    const stream = new Stream(config, (event) => stream === this.stream && this.handle(event));
    this.stream = stream;
  }

  /** Send text. The order of calls is that of the text. */
  say(text, { endTurn = false, flush = endTurn } = {}) {
    this.sending = (this.sending ?? Promise.resolve()).then(async () => {
      await this.connect();
      if (text) {
        if (!this.openTurn) this.open();
        this.openTurn.points.push(...text);
        this.stream.send("text", { text });
      }
      if (flush && this.openTurn) {
        this.flushes += 1;
        this.player.expect(true);
        this.stream.send("flush", { end_turn: endTurn });
        if (endTurn) this.openTurn = null;
      }
      if (this.speaking === null) this.asked = performance.now();
      this.changed();
    });
    return this.sending;
  }

  open() {
    this.openTurn = new Turn(this.turns.length);
    this.turns.push(this.openTurn);
    this.history = [...this.history.slice(-19), this.openTurn];
    this.openTurn.stream = this.stream;
    this.figures.firstAudio = this.figures.firstSound = null;
  }

  /** Barge-in: silence at once, and the server says which text was heard. */
  stop() {
    if (!this.stream || !this.player || this.muted) return;
    this.muted = true;
    const cleared = this.player.clear();
    this.stopping = cleared.then((position) => {
      this.stream.send("interrupt", { played_samples: Math.min(Math.round(position), this.received) });
      this.openTurn = this.speaking = null;
      this.flushes = 0;
      this.cut(position);
      if (!this.stream.open) {
        this.muted = false;
        this.guess(position);
      }
      this.changed();
    });
  }

  cut(position) {
    this.dispatchEvent(new CustomEvent("cut", { detail: { position } }));
  }

  handle(event) {
    switch (event.type) {
      case "header":
        if (event.sample_rate !== this.player.rate) this.prepare(event.sample_rate);
        break;
      case "audio":
        this.hear(event.samples);
        break;
      case "segment":
        this.segment(event);
        break;
      case "flush_done":
        this.flushes = Math.max(0, this.flushes - 1);
        this.expect();
        break;
      case "interrupted":
        this.interrupted(event);
        break;
      case "warning":
        this.dispatchEvent(new CustomEvent("warning", { detail: event }));
        break;
      case "error":
        this.dispatchEvent(new CustomEvent("failure", { detail: event.error }));
        this.over();
        break;
      case "summary":
      case "closed":
        this.over();
        break;
    }
    this.changed();
  }

  hear(samples) {
    const offset = this.received;
    this.received += samples.length;
    if (this.muted) return;
    this.time(samples);
    this.dispatchEvent(new CustomEvent("audio", { detail: { samples, offset } })); // before the samples are given away
    if (this.speaking && this.speaking.firstAt === undefined) {
      this.speaking.firstAt = performance.now();
      this.speaking.firstSamples = samples.length;
    }
    this.player.push(samples, offset);
  }

  /** Note when the first audio of a turn arrives, and when its first sound is heard if all is played at once. */
  time(samples) {
    const { figures, player } = this;
    const now = (performance.now() - this.asked) / 1000;
    if (figures.firstAudio === null) {
      figures.firstAudio = now;
      this.silent = 0; // samples of the turn before its first sound
    }
    if (figures.firstSound !== null) return;
    const first = audible(samples, player.rate);
    if (first !== null) {
      figures.firstSound = Math.max(now, figures.firstAudio + this.silent / player.rate) + first / player.rate;
    }
    this.silent += samples.length;
  }

  segment(event) {
    const turn = this.turns[event.turn];
    if (!turn) return;
    if (event.event === "started") {
      this.speaking = { ...event, startedAt: performance.now() };
      turn.segments.push({ ...event, end: Infinity });
    } else {
      const found = turn.segments.find((one) => one.segment === event.segment);
      if (found) found.end = event.at_samples;
      if (event.event === "finished" && this.speaking) this.measure(event);
      this.speaking = null;
    }
    this.expect();
  }

  /** Add a segment to the real-time factor: the time for the audio after its first chunk. */
  measure(event) {
    const { firstAt, firstSamples, at_samples: start } = this.speaking;
    const samples = event.at_samples - start - firstSamples;
    if (!(samples > 0)) return;
    this.figures.busySeconds += (performance.now() - firstAt) / 1000;
    this.figures.audioSeconds += samples / this.player.rate;
  }

  expect() {
    if (!this.muted) this.player.expect(this.speaking !== null || this.flushes > 0);
  }

  interrupted(event) {
    this.muted = false;
    this.received = event.sent_samples;
    if (event.heard_turn === null || event.heard_turn === undefined) return;
    for (const turn of this.turns.slice(event.heard_turn)) {
      if (turn.heardEnd !== null) continue;
      turn.heardEnd = turn.index === event.heard_turn ? event.heard_input_end : 0;
      turn.estimated = turn.index === event.heard_turn && event.heard_estimated;
    }
    const turn = this.turns[event.heard_turn];
    if (turn) this.dispatchEvent(new CustomEvent("heard", { detail: turn }));
  }

  /** Mark what was heard by segments, where no stream is left that could say it. */
  guess(position) {
    for (const turn of this.turns) {
      const heard = turn.segments.filter((segment) => segment.end <= position).map((segment) => segment.input_end);
      const end = Math.max(0, ...heard);
      if (turn.heardEnd === null && end < turn.points.length) {
        turn.heardEnd = end;
        turn.estimated = true;
      }
    }
  }

  /** The stream has ended. Its audio may still play. */
  over() {
    this.openTurn = this.speaking = null;
    this.flushes = 0;
    this.muted = false;
    this.player?.expect(false);
  }

  /** Text that was heard, that plays now, that waits, and that was dropped, of one turn. */
  parts(turn) {
    const points = turn.points;
    if (turn.heardEnd !== null) {
      return { heard: slice(points, 0, turn.heardEnd), now: "", waiting: "", lost: slice(points, turn.heardEnd) };
    }
    if (turn.stream !== this.stream) return { heard: points.join(""), now: "", waiting: "", lost: "" };
    const position = this.position;
    let heard = 0;
    let now = 0;
    for (const segment of turn.segments) {
      if (segment.end <= position) heard = now = segment.input_end;
      else if (segment.at_samples < position || (segment.at_samples === position && this.player.report.playing)) {
        now = segment.input_end;
      }
    }
    return {
      heard: slice(points, 0, heard),
      now: slice(points, heard, now),
      waiting: slice(points, now),
      lost: "",
    };
  }
}
