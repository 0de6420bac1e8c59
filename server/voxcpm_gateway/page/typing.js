/** Text that is sent while it is typed. */

const WORD_MS = 200; // pause after which whole words are sent
const REST_MS = 800; // pause after which an unfinished word is sent, too
const FLUSH_MS = 2500; // pause after which text is spoken although its sentence has no end

/** True if a place in a text is between the halves of one character. */
const isInside = (text, at) => (text.codePointAt(at - 1) ?? 0) > 0xffff;

/**
 * Watches a text area, and passes on what is typed behind the text that was sent. Text that was sent cannot be taken
 * back: edits before its end are not spoken.
 */
export class Typing {
  /**
   * @param {HTMLTextAreaElement} area
   * @param {{text: (text: string) => void, flush: () => void}} sink
   */
  constructor(area, sink) {
    this.area = area;
    this.sink = sink;
    this.value = area.value;
    this.sent = area.value.length; // end of the text that was sent, or needs not be
    this.enabled = true;
    this.timers = [];
    area.addEventListener("input", () => this.changed());
    this.composing = false; // an input method is at work: the text may still change
    area.addEventListener("compositionstart", () => (this.composing = true));
    area.addEventListener("compositionend", () => {
      this.composing = false;
      this.changed();
    });
  }

  /** Everything in the text area counts as sent. */
  skip() {
    this.cancel();
    this.value = this.area.value;
    this.sent = this.value.length;
  }

  get rest() {
    return this.area.value.slice(this.sent);
  }

  changed() {
    const before = this.value;
    const after = (this.value = this.area.value);
    let start = 0;
    const shortest = Math.min(before.length, after.length);
    while (start < shortest && before[start] === after[start]) start++;
    if (isInside(before, start) || isInside(after, start)) start--;
    let same = 0;
    while (same < shortest - start && before[before.length - 1 - same] === after[after.length - 1 - same]) same++;
    const end = before.length - same; // of the text that was replaced
    if (start < this.sent && end <= this.sent) this.sent += after.length - before.length;
    else this.sent = Math.min(this.sent, start);
    this.cancel();
    if (!this.enabled || !this.rest) return;
    this.timers = [
      setTimeout(() => this.send(this.rest.search(/\S*$/)), WORD_MS),
      setTimeout(() => this.send(this.rest.length), REST_MS),
      setTimeout(() => this.sink.flush(), FLUSH_MS),
    ];
  }

  /** Send this many characters of the rest. */
  send(count) {
    if (this.composing || count <= 0) return;
    const text = this.rest.slice(0, count);
    this.sent += text.length;
    this.sink.text(text);
  }

  cancel() {
    for (const timer of this.timers) clearTimeout(timer);
    this.timers = [];
  }
}
