/** The spectrogram of the seconds around the sample that plays now, whatever has arrived beyond them. */

import { color, fit, palette, watchTheme } from "./colors.js";
import { powers } from "./fourier.js";
import { COLUMNS_A_SECOND } from "./take.js";

const SECONDS_BEFORE = 7; // of the playhead
const SECONDS_AFTER = 3;
const COLUMNS = (SECONDS_BEFORE + SECONDS_AFTER) * COLUMNS_A_SECOND;
const NEW_COLUMNS = 120; // computed in a frame: more would delay it
const BANDS = 72;
const LOWEST_HZ = 70;
const HIGHEST_HZ = 8000;
const FLOOR_DB = -75;
const PALETTE = ["--spectrum-0", "--spectrum-1", "--spectrum-2", "--spectrum-3"];

export class Spectrogram {
  constructor(canvas) {
    this.canvas = canvas;
    this.image = document.createElement("canvas");
    this.image.width = COLUMNS;
    this.image.height = BANDS;
    this.take = null;
    this.bands = new Map(); // of columns by their number
    watchTheme(() => this.restyle());
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.restyle();
  }

  restyle() {
    this.palette = palette(PALETTE);
    this.ground = color("--spectrum-0");
    this.head = color("--text");
    this.resize();
  }

  resize() {
    this.scale = fit(this.canvas);
    this.draw(this.take, this.position ?? 0);
  }

  /** Forget what was computed if the audio is another one. */
  follow(take) {
    if (take === this.take && take?.version === this.version) return;
    this.take = take;
    this.version = take?.version;
    this.bands.clear();
    if (!take) return;
    this.size = 2 ** Math.ceil(Math.log2(take.hop * 1.5));
    this.window = Float32Array.from({ length: this.size }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / this.size));
    const top = Math.min(HIGHEST_HZ, take.rate / 2);
    this.edges = Array.from({ length: BANDS + 1 }, (_, i) => {
      const hertz = LOWEST_HZ * (top / LOWEST_HZ) ** (i / BANDS);
      return Math.min(this.size / 2, (hertz * this.size) / take.rate);
    });
  }

  /** Levels of the bands of a column, 0 to 255. */
  column(index) {
    const { take, size } = this;
    const samples = take.read(take.start + (index + 1) * take.hop - size, size);
    const power = powers(samples.map((sample, i) => sample * this.window[i]));
    return Uint8Array.from({ length: BANDS }, (_, band) => {
      const first = Math.floor(this.edges[band]);
      const last = Math.max(first, Math.ceil(this.edges[band + 1]) - 1);
      let most = 0;
      for (let bin = first; bin <= last; bin++) most = Math.max(most, power[bin] ?? 0);
      const level = 10 * Math.log10(most / (size * size * 0.06) + 1e-12);
      return 255 * Math.min(1, Math.max(0, 1 - level / FLOOR_DB));
    });
  }

  /**
   * Returns true if the picture is complete; false if another call has to add to it.
   *
   * @param {Take | null} take
   * @param {number} position of the sample that plays now
   */
  draw(take, position) {
    this.follow(take);
    this.position = position;
    const head = take ? Math.max(0, (position - take.start) / take.hop) : 0; // in columns
    const left = Math.max(0, Math.floor(head) - SECONDS_BEFORE * COLUMNS_A_SECOND);
    const complete = this.paint(left);
    const { canvas } = this;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = true;
    context.drawImage(this.image, 0, 0, canvas.width, canvas.height);
    if (!take) return true;
    const x = Math.min(canvas.width - 2 * this.scale, ((head - left) / COLUMNS) * canvas.width);
    context.fillStyle = this.ground; // what is not played yet is pale
    context.globalAlpha = 0.5;
    context.fillRect(x, 0, canvas.width - x, canvas.height);
    context.globalAlpha = 1;
    context.fillStyle = this.head;
    context.fillRect(x, 0, Math.max(1, 1.5 * this.scale), canvas.height);
    return complete;
  }

  /** Paint the columns from `left` on into the image. */
  paint(left) {
    const context = this.image.getContext("2d");
    const picture = context.createImageData(COLUMNS, BANDS);
    const pixels = new Uint32Array(picture.data.buffer).fill(this.palette[0]);
    const last = this.take ? Math.min(left + COLUMNS, this.take.peaks.length) : left;
    let computed = 0;
    for (let index = left; index < last; index++) {
      let bands = this.bands.get(index);
      if (!bands) {
        if (computed === NEW_COLUMNS) break;
        computed += 1;
        bands = this.column(index);
        this.bands.set(index, bands);
      }
      for (let band = 0; band < BANDS; band++) {
        pixels[(BANDS - 1 - band) * COLUMNS + index - left] = this.palette[bands[band]];
      }
    }
    context.putImageData(picture, 0, 0);
    for (const index of this.bands.keys()) if (index < left - COLUMNS) this.bands.delete(index);
    return computed < NEW_COLUMNS;
  }
}
