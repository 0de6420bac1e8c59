/** The waveform of a whole take: what was played, what waits, and the place that plays now. */

import { color, fit, watchTheme } from "./colors.js";
import { COLUMNS_A_SECOND } from "./take.js";

const BAR = 3; // pixels of the style sheet
const SPACE = 2;
const SHORTEST_SECONDS = 2; // on the whole width
const LEAST_LOUD = 0.2; // amplitude that fills the height if nothing is louder

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    watchTheme(() => this.restyle());
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.restyle();
  }

  restyle() {
    this.colors = {
      played: color("--accent"),
      waiting: color("--soft"),
      line: color("--line"),
      head: color("--text"),
    };
    this.resize();
  }

  resize() {
    this.scale = fit(this.canvas);
    this.draw(this.take ?? null, this.position ?? 0, this.expected ?? 0);
  }

  /**
   * @param {Take | null} take
   * @param {number} position of the sample that plays now
   * @param {number} expected seconds that the take will have, if more of it is to come
   */
  draw(take, position, expected) {
    Object.assign(this, { take, position, expected });
    const { canvas, scale } = this;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    const seconds = Math.max(SHORTEST_SECONDS, take?.seconds ?? 0, expected);
    const bars = Math.floor(canvas.width / ((BAR + SPACE) * scale));
    const each = (seconds * COLUMNS_A_SECOND) / bars; // columns of a bar
    const head = take ? (position - take.start) / take.rate : 0;
    const played = (head / seconds) * bars;
    const loudest = take ? take.peaks.reduce((most, peak) => Math.max(most, peak), LEAST_LOUD) : 1;
    for (let bar = 0; bar < bars; bar++) {
      const first = Math.floor(bar * each);
      const columns = take?.peaks.slice(first, Math.max(first + 1, Math.floor((bar + 1) * each))) ?? [];
      const height = Math.max(2 * scale, (Math.max(0, ...columns) / loudest) * canvas.height * 0.94);
      context.fillStyle = !columns.length ? this.colors.line : bar < played ? this.colors.played : this.colors.waiting;
      context.beginPath();
      context.roundRect(bar * (BAR + SPACE) * scale, (canvas.height - height) / 2, BAR * scale, height, scale);
      context.fill();
    }
    if (!take) return;
    context.fillStyle = this.colors.head;
    const x = Math.min(canvas.width - 2 * scale, played * (BAR + SPACE) * scale);
    context.fillRect(x, 0, Math.max(1, 1.5 * scale), canvas.height);
  }
}
