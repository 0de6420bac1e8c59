/** Plays the samples of a stream one after the other and counts them. It runs in the audio thread. */

const REBUFFER_SECONDS = 0.3; // after the first gap; twice as much after each further one
const LONGEST_REBUFFER_SECONDS = 2.4;
const FADE_SECONDS = 0.005; // at an interrupt, against a click

export class Playback {
  /** @param {number} rate of the samples and of the output, in Hz */
  constructor(rate) {
    this.rate = rate;
    this.chunks = [];
    this.taken = 0; // samples of the first chunk that were played
    this.buffered = 0;
    this.position = 0; // of the next sample to play
    this.playing = false;
    this.held = false; // a pause of the listener
    this.wanted = 0; // seconds of audio before the playback starts
    this.expecting = false; // more audio is due: to run dry is a gap
    this.afterGap = false;
    this.rebuffer = REBUFFER_SECONDS;
    this.gaps = 0;
    this.gapSeconds = 0;
    this.start = null; // {arrived, sounded}: times of the first chunk and of its first sample
    this.silence = null; // {asked, silent}: times of an interrupt and of the silence
    this.fading = new Float32Array(0);
    this.playedSamples = 0; // since the page was opened, for tests of the whole path
  }

  /**
   * @param {Float32Array} samples
   * @param {number} offset position of the first sample
   * @param {number} arrived time of the audio clock at which the chunk arrived, in seconds
   */
  push(samples, offset, arrived) {
    if (!samples.length) return;
    if (!this.buffered) this.position = offset;
    if (!this.buffered && !this.playing) this.waitingSince = arrived;
    this.chunks.push(samples);
    this.buffered += samples.length;
  }

  /** @param {boolean} more true while audio is due that has not arrived */
  expect(more) {
    this.expecting = more;
    if (!more) this.afterGap = false;
  }

  /**
   * Drop all audio that waits, at once.
   *
   * @param {number} asked time of the audio clock at which the listener asked for it
   * @param {number} now time of the next output sample
   * @returns {number} position up to which the audio was played
   */
  clear(asked, now) {
    const played = this.position;
    if (this.playing && !this.held) {
      this.fading = new Float32Array(Math.min(this.buffered, Math.round(FADE_SECONDS * this.rate)));
      this.take(this.fading);
      for (let i = 0; i < this.fading.length; i++) this.fading[i] *= 1 - (i + 1) / this.fading.length;
    }
    this.chunks = [];
    this.taken = this.buffered = 0;
    this.playing = this.held = this.expecting = this.afterGap = false;
    this.position = played;
    this.rebuffer = REBUFFER_SECONDS;
    this.silence = { asked, silent: now + this.fading.length / this.rate };
    return played;
  }

  /**
   * @param {Float32Array} output to fill
   * @param {number} now time of its first sample
   */
  fill(output, now) {
    output.fill(0);
    let from = 0;
    if (this.fading.length) {
      from = Math.min(this.fading.length, output.length);
      output.set(this.fading.subarray(0, from));
      this.fading = this.fading.slice(from);
    }
    if (this.held) return;
    if (!this.playing && this.buffered && this.isReady()) {
      this.playing = true;
      if (this.afterGap) this.rebuffer = Math.min(LONGEST_REBUFFER_SECONDS, 2 * this.rebuffer);
      else this.start = { arrived: this.waitingSince, sounded: now + from / this.rate };
      this.afterGap = false;
    }
    if (this.playing) {
      const played = this.take(output.subarray(from));
      this.playedSamples += played;
      if (from + played < output.length) {
        this.playing = false;
        if (this.expecting) {
          this.afterGap = true;
          this.gaps += 1;
          this.gapSeconds += (output.length - from - played) / this.rate;
        }
      }
    } else if (this.afterGap) {
      this.gapSeconds += output.length / this.rate;
    }
  }

  isReady() {
    const wanted = this.afterGap ? Math.max(this.rebuffer, this.wanted) : this.wanted;
    return this.buffered >= wanted * this.rate || !this.expecting;
  }

  /** Move samples to the output. Returns their number. */
  take(output) {
    let filled = 0;
    while (filled < output.length && this.chunks.length) {
      const chunk = this.chunks[0];
      const count = Math.min(chunk.length - this.taken, output.length - filled);
      output.set(chunk.subarray(this.taken, this.taken + count), filled);
      filled += count;
      this.taken += count;
      if (this.taken === chunk.length) {
        this.chunks.shift();
        this.taken = 0;
      }
    }
    this.buffered -= filled;
    this.position += filled;
    return filled;
  }

  get report() {
    const { position, buffered, playing, held, gaps, gapSeconds, start, silence, playedSamples } = this;
    return { position, buffered, playing, held, gaps, gapSeconds, start, silence, playedSamples };
  }

  /**
   * Handle a message of the page. Returns the answer, if it has one.
   *
   * @param {number} now time of the next output sample
   */
  handle(message, now) {
    switch (message.type) {
      case "push":
        this.push(message.samples, message.offset, message.arrived);
        return null;
      case "expect":
        this.expect(message.more);
        return null;
      case "want":
        this.wanted = message.seconds;
        return null;
      case "hold":
        this.held = message.held;
        return null;
      default:
        return { type: "cleared", position: this.clear(message.asked, now) };
    }
  }
}
