/** A turn: the text that was sent up to the end of a turn, its segments, and what became of both. */

/** The characters of a text by code points, as the gateway counts them. */
function slice(points, start, end) {
  return points.slice(start, end).join("");
}

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
    this.ended = false; // all of its audio has arrived
    this.heardEnd = null; // code points that were heard, after an interrupt
    this.estimated = false;
    this.brokenAt = null; // code points that were spoken, if the stream failed before the rest
    this.limited = null; // text of a segment that a limit cut off
  }

  /** Code points whose audio has arrived whole. */
  get spokenEnd() {
    return Math.max(0, ...this.segments.filter(({ end }) => end < Infinity).map(({ input_end }) => input_end));
  }

  /** Code points whose audio has not arrived. */
  get missing() {
    return this.ended || this.heardEnd !== null || this.brokenAt !== null ? 0 : this.points.length - this.spokenEnd;
  }

  /** The stream ends without the rest of the text. */
  breakOff() {
    if (this.ended || this.heardEnd !== null) return;
    if (slice(this.points, this.spokenEnd).trim()) this.brokenAt = this.spokenEnd;
    else this.ended = true;
  }

  /** The text that was not spoken because the stream failed. */
  get rest() {
    return this.brokenAt === null ? "" : slice(this.points, this.brokenAt).trim();
  }

  /** The last words of the text before a place in it. */
  wordsBefore(end) {
    return slice(this.points, 0, end).trim().split(/\s+/).slice(-6).join(" ");
  }

  /**
   * Text that was heard, that plays now, that waits, and that is lost.
   *
   * @param {number} position of the sample that plays now
   * @param {boolean} playing
   */
  parts(position, playing) {
    const end = this.heardEnd ?? this.brokenAt ?? this.points.length;
    const lost = slice(this.points, end);
    if (this.heardEnd !== null) return { heard: slice(this.points, 0, end), now: "", waiting: "", lost };
    let heard = 0;
    let now = 0;
    for (const segment of this.segments) {
      if (segment.end <= position) heard = now = segment.input_end;
      else if (segment.at_samples < position || (segment.at_samples === position && playing)) now = segment.input_end;
    }
    heard = Math.min(heard, end);
    now = Math.min(now, end);
    return { heard: slice(this.points, 0, heard), now: slice(this.points, heard, now), waiting: slice(this.points, now, end), lost };
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
