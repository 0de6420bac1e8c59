/** A turn: its text, its segments, and what became of both. */

export class Turn {
  /**
   * @param {number} index of the turn in its stream
   * @param {object} stream that speaks it
   */
  constructor(index, stream) {
    this.index = index;
    this.stream = stream;
    this.points = []; // code points of its text
    this.segments = []; // {segment, at_samples, end, input_end, text}; positions are those of the page
    this.words = []; // {start, end, input_start, input_end}; positions are those of the page, in order
    this.ended = false; // all of its audio has arrived
    this.heardEnd = null; // code points that were heard, after an interrupt
    this.estimated = false;
    this.brokenAt = null; // code points that were spoken, if the stream failed before the rest
    this.limited = null; // text of a segment that a limit cut off
  }

  add(text) {
    for (const point of text) this.points.push(point);
  }

  /** A part of the text, by code points. */
  slice(start, end) {
    return this.points.slice(start, end).join("");
  }

  /** Code points whose audio has arrived whole. */
  get spokenEnd() {
    return this.segments.reduce((most, { end, input_end }) => (end < Infinity ? Math.max(most, input_end) : most), 0);
  }

  /** Code points whose audio has not arrived. */
  get missing() {
    return this.ended || this.heardEnd !== null || this.brokenAt !== null ? 0 : this.points.length - this.spokenEnd;
  }

  /** The stream ends without the rest of the text. */
  breakOff() {
    if (this.ended || this.heardEnd !== null) return;
    if (this.slice(this.spokenEnd).trim()) this.brokenAt = this.spokenEnd;
    else this.ended = true;
  }

  /** The text that was not spoken because the stream failed. */
  get rest() {
    return this.brokenAt === null ? "" : this.slice(this.brokenAt).trim();
  }

  /** The last words of the text before a place in it. */
  wordsBefore(end) {
    return this.slice(Math.max(0, end - 100), end).trim().split(/\s+/).slice(-6).join(" ");
  }

  /**
   * Places in the text, in code points: the ends of what was heard, of what plays now, and of what is spoken at all.
   *
   * @param {number} position of the sample that plays now
   * @param {boolean} playing
   */
  places(position, playing) {
    const end = this.heardEnd ?? this.brokenAt ?? this.points.length;
    if (this.heardEnd !== null) return { heard: end, now: end, end };
    let heard = 0;
    let now = 0;
    for (const segment of this.segments) {
      if (segment.end <= position) heard = now = segment.input_end;
      else if (segment.at_samples < position || (segment.at_samples === position && playing)) now = segment.input_end;
    }
    return { heard: Math.min(heard, end), now: Math.min(now, end), end };
  }

  /** The word that is heard at a position of the page, or null. */
  wordAt(position) {
    let low = 0;
    let high = this.words.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.words[middle].start <= position) low = middle + 1;
      else high = middle;
    }
    const word = this.words[low - 1];
    return word && position < word.end ? word : null;
  }

  /** Mark what was heard up to a position by segments, where no stream is left that could say it. */
  guess(position) {
    const heard = this.segments.filter((segment) => segment.end <= position).map((segment) => segment.input_end);
    const end = Math.max(0, ...heard);
    if (this.heardEnd === null && end < this.points.length) {
      this.heardEnd = end;
      this.estimated = true;
    }
  }
}
