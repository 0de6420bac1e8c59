/** The text that was sent, its audio, and what became of both. */

import { Player } from "./player.js";
import { expectedFactor, startSeconds } from "./start-buffer.js";
import { Stream } from "./stream.js";
import { Take } from "./take.js";
import { FirstTimes, Pace } from "./timing.js";
import { Turn } from "./turn.js";

const FED_SECONDS = 12; // of audio in the audio thread; the rest waits in the take
const UNKNOWN_HOLD_SECONDS = 0.3; // for a second chunk, which shows the pace of a server that is not known
const USUAL_SECONDS = 0.07; // of speech for a character, until some was heard
const KEPT_TURNS = 20;
const ESTIMATED_WORDS = "word_times"; // the kind of a warning that tells a listener nothing

/**
 * All positions are samples since the page was opened.
 *
 * Events: "change" (texts or states), "failure" (detail: the error), "warning" (detail: the warning).
 */
export class Conversation extends EventTarget {
  /** @param {() => object} config the options of a new stream */
  constructor(config) {
    super();
    this.config = config;
    this.stream = null;
    this.player = null;
    this.take = null;
    this.history = []; // turns of this stream and of those before it
    this.received = 0; // position of the end of the audio that has arrived
    this.fed = 0; // position of the end of the audio that the audio thread has
    this.furthest = 0; // position up to which the listener has heard
    this.stopping = null;
    this.earlierFactor = null; // of the text before
    this.characterSeconds = USUAL_SECONDS;
    this.pace = new Pace();
    this.first = new FirstTimes();
    this.wanted = 0;
    this.reset();
  }

  /** A new stream begins. */
  reset() {
    this.base = this.received; // position of the first sample of the stream
    this.turns = [];
    this.openTurn = null;
    this.muted = false; // after an interrupt, until its answer
    this.speaking = null; // the segment whose audio arrives
    this.flushes = 0; // that are not answered
    this.asked = 0; // time of the last text or flush before the first audio
  }

  /** Call it from a handler of a key or a click, the first time. */
  prepare(rate) {
    if (!this.player || this.player.rate !== rate) {
      this.player?.close();
      this.player = new Player(rate);
      this.player.addEventListener("report", () => this.reported());
    }
    this.player.resume();
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  reported() {
    this.furthest = Math.max(this.furthest, Math.min(this.player.report.position, this.received));
    this.take?.forget(Math.min(this.furthest, this.fed));
    this.feed();
    this.changed();
  }

  /** True while text is to be spoken, or speech is to be heard for the first time. */
  get active() {
    const unheard = this.take !== null && this.furthest < this.take.end;
    return unheard || this.speaking !== null || this.flushes > 0 || this.openTurn !== null;
  }

  get playing() {
    return Boolean(this.player?.report.playing && !this.player.report.held);
  }

  get position() {
    const position = this.player?.position ?? 0;
    return this.take ? Math.max(this.take.start, Math.min(this.take.end, position)) : position;
  }

  /** Seconds of audio that wait to be played. */
  get ahead() {
    return this.take ? (this.take.end - this.position) / this.take.rate : 0;
  }

  /** Seconds that the take will have when all text is spoken. */
  get expectedSeconds() {
    const characters = this.turns.reduce((sum, turn) => sum + turn.missing, 0);
    return (this.take?.seconds ?? 0) + characters * this.characterSeconds;
  }

  /** The text that was not spoken because the stream failed. */
  get rest() {
    return this.turns.map((turn) => turn.rest).filter(Boolean).join(" ");
  }

  /** Open a stream with the options of now, unless one of the same options is open. */
  async connect() {
    await this.stopping;
    const config = this.config();
    const signature = JSON.stringify(config);
    if (this.stream?.open && (signature === this.signature || this.openTurn)) return;
    if (this.stream) {
      const cutOff = this.stream.open && this.active; // other options: what they do not concern ends here
      this.stream.close();
      if (cutOff) {
        const position = Math.max(this.furthest, await this.player.clear());
        for (const turn of this.turns) turn.guess(position);
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
    const before = (this.sending ?? Promise.resolve()).catch(() => {}); // a text that failed stops no other
    this.sending = before.then(async () => {
      await this.connect();
      if (text) {
        if (!this.openTurn) this.open();
        this.openTurn.add(text);
        this.stream.sendText(text);
      }
      if (flush && this.openTurn) {
        this.flushes += 1;
        this.stream.send("flush", { end_turn: endTurn, tag: endTurn ? String(this.openTurn.index) : "" });
        if (endTurn) this.openTurn = null;
        this.expect();
      }
      if (this.speaking === null) this.asked = performance.now();
      this.changed();
    });
    return this.sending;
  }

  open() {
    if (!this.active || !this.take) this.begin();
    this.openTurn = new Turn(this.turns.length, this.stream);
    this.turns.push(this.openTurn);
    this.history = [...this.history.slice(1 - KEPT_TURNS), this.openTurn];
    this.first = new FirstTimes();
  }

  /** A take begins: what the listener plays again ends. */
  begin() {
    this.player.clear();
    this.take = new Take(this.player.rate, this.received);
    this.fed = this.furthest = this.received;
    this.earlierFactor = this.pace.factor ?? this.earlierFactor;
    this.pace = new Pace();
    this.firstAt = null; // time of its first chunk
  }

  /** Barge-in: silence at once, and the server says which text was heard. */
  stop() {
    if (!this.stream || !this.active || this.muted) return;
    this.muted = true;
    const cleared = this.player.clear();
    this.stopping = cleared.then((played) => {
      const position = Math.min(Math.max(Math.round(played), this.furthest), this.received);
      this.stream.send("interrupt", { played_samples: Math.max(0, position - this.base) });
      this.openTurn = this.speaking = null;
      this.flushes = 0;
      this.pace.pause();
      this.cut(position);
      if (!this.stream.open) {
        this.muted = false;
        for (const turn of this.turns) turn.guess(position);
      }
      this.changed();
    });
  }

  /** The audio after a position is dropped. */
  cut(position) {
    this.take?.truncate(position);
    this.fed = this.furthest = this.take?.end ?? position;
  }

  handle(event) {
    switch (event.type) {
      case "header":
        if (event.sample_rate !== this.player.rate) this.prepare(event.sample_rate);
        if (this.take && this.take.rate !== event.sample_rate) this.take = new Take(event.sample_rate, this.received);
        break;
      case "audio":
        this.hear(event.samples);
        break;
      case "segment":
        this.segment({ ...event, at_samples: this.base + event.at_samples });
        break;
      case "words":
        for (const word of event.words) {
          const { start_samples: start, end_samples: end } = word;
          this.turns[word.turn]?.words.push({ ...word, start: this.base + start, end: this.base + end });
        }
        break;
      case "flush_done":
        this.flushes = Math.max(0, this.flushes - 1);
        if (event.tag) this.turns[Number(event.tag)].ended = true;
        if (!this.flushes) this.pace.pause();
        this.expect();
        break;
      case "interrupted":
        this.interrupted(event);
        break;
      case "warning":
        if (event.kind !== ESTIMATED_WORDS) this.dispatchEvent(new CustomEvent("warning", { detail: event }));
        break;
      case "error":
        this.over();
        this.dispatchEvent(new CustomEvent("failure", { detail: event.error }));
        break;
      case "summary":
      case "closed":
        this.over();
        break;
    }
    this.changed();
  }

  /** @param {Int16Array} samples */
  hear(samples) {
    this.received += samples.length;
    if (this.muted || !this.take) return;
    const now = performance.now();
    this.firstAt ??= now;
    this.first.arrived(samples, this.take.rate, (now - this.asked) / 1000);
    this.pace.arrived(samples.length / this.take.rate, now / 1000);
    this.take.add(samples);
    this.want();
    this.feed();
  }

  /** Say how much audio to wait for before the playback starts, by the pace of the server. */
  want() {
    const factor = expectedFactor(this.pace, this.earlierFactor);
    const held = (performance.now() - this.firstAt) / 1000;
    if (factor === null && held < UNKNOWN_HOLD_SECONDS) {
      this.player.want(FED_SECONDS);
      const take = this.take;
      setTimeout(() => take === this.take && this.want(), 1000 * (UNKNOWN_HOLD_SECONDS - held));
      return;
    }
    const left = this.expectedSeconds - (this.furthest - this.take.start) / this.take.rate;
    this.wanted = startSeconds(factor ?? held / this.take.seconds, left);
    this.player.want(this.wanted);
  }

  /** Pass audio of the take on to the audio thread, as much as it needs. */
  feed() {
    if (!this.take || this.muted) return;
    const { end, rate } = this.take;
    const most = FED_SECONDS * rate;
    while (this.fed < end && this.player.report.buffered < most) {
      const count = Math.min(end - this.fed, rate);
      this.player.push(this.take.read(this.fed, count), this.fed);
      this.fed += count;
    }
    this.expect();
  }

  segment(event) {
    const turn = this.turns[event.turn];
    if (!turn) return;
    if (event.event === "started") {
      this.speaking = event;
      turn.segments.push({ ...event, end: Infinity });
    } else {
      const found = turn.segments.find((one) => one.segment === event.segment);
      if (found && event.event === "finished") this.finished(turn, found, event);
      this.speaking = null;
      if (!this.flushes) this.pace.pause(); // the server waits for text
    }
    this.expect();
  }

  finished(turn, segment, { at_samples: end, finish_reason: reason }) {
    segment.end = end;
    if (reason === "max_steps") turn.limited = segment.text;
    const seconds = (end - segment.at_samples) / this.player.rate;
    if (reason === "complete" && segment.text.length) this.characterSeconds = seconds / segment.text.length;
  }

  expect() {
    if (this.player && !this.muted) {
      this.player.expect(this.speaking !== null || this.flushes > 0 || (this.take !== null && this.fed < this.take.end));
    }
  }

  interrupted(event) {
    this.muted = false;
    this.received = this.base + event.sent_samples;
    if (this.take?.seconds === 0) this.begin(); // it begins behind the audio that was on its way
    if (event.heard_turn === null || event.heard_turn === undefined) return;
    for (const turn of this.turns.slice(event.heard_turn)) {
      if (turn.heardEnd !== null) continue;
      turn.heardEnd = turn.index === event.heard_turn ? event.heard_input_end : 0;
      turn.estimated = turn.index === event.heard_turn && event.heard_estimated;
    }
  }

  /** The stream has ended. Its audio may still play. */
  over() {
    for (const turn of this.turns) turn.breakOff();
    this.openTurn = this.speaking = null;
    this.flushes = 0;
    this.muted = false;
    this.pace.pause();
    this.expect();
  }

  // ---- what was spoken, again

  /** Play the take from a position on. */
  seek(position) {
    if (!this.take || this.muted) return;
    const { held } = this.player.report;
    this.player.clear();
    if (held) this.player.hold(true);
    this.fed = Math.max(this.take.start, Math.min(this.take.end, Math.round(position)));
    this.player.report.position = this.fed;
    this.feed();
    this.changed();
  }

  /** Pause, go on, or play the take again. */
  toggle() {
    const { report } = this.player;
    if (report.held) this.player.hold(false);
    else if (report.playing || this.active) this.player.hold(true);
    else this.seek(this.position < this.take.end ? this.position : this.take.start);
    this.changed();
  }
}
