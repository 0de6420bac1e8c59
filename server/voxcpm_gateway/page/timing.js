/** Times of the speech as it arrives: the first audio, the first sound, and the pace. */

const AUDIBLE = 10 ** (-45 / 20) * 32768; // root mean square of a window
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

/** The pace of the server: the time that audio takes to arrive, for each second of it. */
export class Pace {
  constructor() {
    this.busySeconds = 0;
    this.audioSeconds = 0;
    this.since = null; // time of the last chunk, unless the server had nothing to speak since
  }

  /** @param {number} now in seconds */
  arrived(seconds, now) {
    if (this.since !== null) {
      this.busySeconds += now - this.since;
      this.audioSeconds += seconds;
    }
    this.since = now;
  }

  /** The server has nothing to speak until more text arrives. */
  pause() {
    this.since = null;
  }

  /** Real-time factor: below 1 is faster than speech; null without a measurement. */
  get factor() {
    return this.audioSeconds ? this.busySeconds / this.audioSeconds : null;
  }
}

/** Times of one turn, from the last text or flush before its first audio on. */
export class FirstTimes {
  constructor() {
    this.audio = null; // seconds until the first audio
    this.sound = null; // seconds until its first sound, if all is played at once
    this.silent = 0; // samples before the first sound
  }

  /** @param {number} waited seconds since the last text or flush */
  arrived(samples, rate, waited) {
    this.audio ??= waited;
    if (this.sound !== null) return;
    const first = audible(samples, rate);
    if (first !== null) this.sound = Math.max(waited, this.audio + this.silent / rate) + first / rate;
    this.silent += samples.length;
  }
}
