/** The audio of a text, which the page keeps: it can be heard again, searched and saved without being spoken again. */

import { encodeWav } from "./wav.js";

export const COLUMNS_A_SECOND = 50; // of the pictures
const MOST_SECONDS = 30 * 60; // of audio that was heard; older audio is dropped

export class Take {
  /**
   * @param {number} rate of the samples, in Hz
   * @param {number} start position of the first sample
   */
  constructor(rate, start) {
    this.rate = rate;
    this.start = this.end = start;
    this.hop = Math.round(rate / COLUMNS_A_SECOND); // samples of a column
    this.chunks = []; // {start, samples}
    this.peaks = []; // the largest amplitude of each whole column, 0 to 1
    this.version = 0; // grows when audio that was there is dropped
  }

  get seconds() {
    return (this.end - this.start) / this.rate;
  }

  /** @param {Int16Array} samples that follow those that are there */
  add(samples) {
    this.chunks.push({ start: this.end, samples });
    this.end += samples.length;
    while ((this.peaks.length + 1) * this.hop <= this.end - this.start) {
      const column = this.read(this.start + this.peaks.length * this.hop, this.hop);
      this.peaks.push(column.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0));
    }
  }

  /** Samples from a position on, as floats; zeros where there is none. */
  read(from, count) {
    const found = new Float32Array(count);
    for (let index = this.find(from); index < this.chunks.length; index++) {
      const { start, samples } = this.chunks[index];
      if (start >= from + count) break;
      const first = Math.max(0, from - start);
      const last = Math.min(samples.length, from + count - start);
      for (let i = first; i < last; i++) found[start + i - from] = samples[i] / 32768;
    }
    return found;
  }

  /** Index of the chunk with the sample at a position, or of the first one after it. */
  find(position) {
    let low = 0;
    let high = this.chunks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const { start, samples } = this.chunks[middle];
      if (start + samples.length <= position) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Drop the audio after a position. */
  truncate(position) {
    const end = Math.max(this.start, Math.min(this.end, Math.round(position)));
    this.chunks.length = Math.min(this.chunks.length, this.find(end) + 1);
    const last = this.chunks.at(-1);
    if (last) last.samples = last.samples.subarray(0, Math.max(0, end - last.start));
    this.end = end;
    this.peaks.length = Math.min(this.peaks.length, Math.floor((end - this.start) / this.hop));
    this.version += 1;
  }

  /** Drop the oldest audio if more than half an hour before a position is kept. */
  forget(position) {
    while (this.chunks.length && position - this.start > MOST_SECONDS * this.rate) {
      const columns = Math.ceil((this.chunks[0].start + this.chunks[0].samples.length - this.start) / this.hop);
      this.start += columns * this.hop;
      this.peaks.splice(0, columns);
      while (this.chunks.length && this.chunks[0].start + this.chunks[0].samples.length <= this.start) this.chunks.shift();
      this.version += 1;
    }
  }

  /** The samples as 16-bit integers, little-endian, in pieces. */
  pieces() {
    const skipped = this.chunks.length ? Math.max(0, this.start - this.chunks[0].start) : 0;
    return this.chunks.map(({ samples }, index) => (index ? samples : samples.subarray(skipped)));
  }

  /** A WAV file. */
  wav() {
    return encodeWav(this.pieces(), this.rate);
  }
}
