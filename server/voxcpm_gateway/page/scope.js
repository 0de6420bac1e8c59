/** The waveform and the spectrogram of the audio, drawn as it plays. */

const COLUMNS_A_SECOND = 50;
const SECONDS_BEFORE = 8; // of the playhead
const SECONDS_AFTER = 2;
const BANDS = 72;
const LOWEST_HZ = 70;
const HIGHEST_HZ = 8000;
const FLOOR_DB = -75;
const RING = 1024; // columns of the spectrogram that are kept as an image
const REDUCED_FPS = 5;

export class Scope {
  constructor(wave, spectrum) {
    this.wave = wave;
    this.spectrum = spectrum;
    this.image = document.createElement("canvas");
    this.image.width = RING;
    this.image.height = BANDS;
    this.columns = []; // {low, high, bands} of COLUMNS_A_SECOND
    this.cuts = []; // positions of interrupts, in seconds
    this.base = 0; // place on the picture of the sample `from`
    this.from = 0;
    this.rate = 0;
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.lastDrawn = 0;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.restyle());
    new ResizeObserver(() => this.resize()).observe(wave);
    this.restyle();
  }

  configure(rate) {
    if (rate === this.rate) return;
    this.rate = rate;
    this.hop = Math.round(rate / COLUMNS_A_SECOND);
    this.size = 2 ** Math.ceil(Math.log2(this.hop * 1.5));
    this.window = Float32Array.from({ length: this.size }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / this.size));
    const top = Math.min(HIGHEST_HZ, rate / 2);
    this.edges = Array.from({ length: BANDS + 1 }, (_, i) => {
      const hertz = LOWEST_HZ * (top / LOWEST_HZ) ** (i / BANDS);
      return Math.min(this.size / 2, (hertz * this.size) / rate);
    });
    this.tail = new Float32Array(this.size); // the newest samples
    this.rest = new Float32Array(0); // those of an unfinished column
  }

  /** Seconds of the picture at a position in the stream. */
  seconds(position) {
    return this.base + (position - this.from) / this.rate;
  }

  add(samples, rate) {
    this.configure(rate);
    const all = new Float32Array(this.rest.length + samples.length);
    all.set(this.rest);
    all.set(samples, this.rest.length);
    let start = 0;
    for (; start + this.hop <= all.length; start += this.hop) this.addColumn(all.subarray(start, start + this.hop));
    this.rest = all.slice(start);
  }

  addColumn(samples) {
    let low = 0;
    let high = 0;
    for (const sample of samples) {
      if (sample < low) low = sample;
      else if (sample > high) high = sample;
    }
    this.tail.copyWithin(0, samples.length);
    this.tail.set(samples, this.tail.length - samples.length);
    this.columns.push({ low, high, bands: this.bands() });
    this.paint(this.columns.length - 1);
  }

  bands() {
    const real = this.tail.map((sample, i) => sample * this.window[i]);
    const power = powers(real);
    return Uint8Array.from({ length: BANDS }, (_, band) => {
      const [from, to] = [this.edges[band], this.edges[band + 1]];
      let most = 0;
      for (let bin = Math.floor(from); bin <= Math.max(Math.floor(from), Math.ceil(to) - 1); bin++) {
        most = Math.max(most, power[bin] ?? 0);
      }
      const level = 10 * Math.log10(most / (this.size * this.size * 0.06) + 1e-12);
      return 255 * Math.min(1, Math.max(0, 1 - level / FLOOR_DB));
    });
  }

  paint(index) {
    const context = this.image.getContext("2d");
    const pixels = context.createImageData(1, BANDS);
    const { bands } = this.columns[index];
    for (let band = 0; band < BANDS; band++) {
      pixels.data.set(this.palette[bands[band]], 4 * (BANDS - 1 - band));
    }
    context.putImageData(pixels, index % RING, 0);
  }

  /** The audio after this position was dropped; what follows is drawn behind it. */
  cut(position) {
    if (!this.rate) return;
    const end = Math.max(0, Math.min(this.seconds(position), this.columns.length / COLUMNS_A_SECOND));
    this.columns.length = Math.min(this.columns.length, Math.round(end * COLUMNS_A_SECOND));
    this.rest = new Float32Array(0);
    this.cuts = [...this.cuts.slice(-50), this.columns.length / COLUMNS_A_SECOND];
  }

  /** Position in the stream of the end of the picture. */
  get end() {
    return this.from + (this.columns.length / COLUMNS_A_SECOND - this.base) * this.rate;
  }

  /** The next audio has this position in its stream. */
  restart(position) {
    this.base = this.columns.length / COLUMNS_A_SECOND;
    this.from = position;
  }

  resize() {
    for (const canvas of [this.wave, this.spectrum]) {
      const scale = devicePixelRatio || 1;
      canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
      canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
    }
    this.draw(this.lastPosition ?? 0, true);
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    this.colors = {
      played: color("--accent"),
      waiting: color("--soft"),
      line: color("--line"),
      head: color("--text"),
      cut: color("--cut"),
    };
    this.palette = palette([color("--spectrum-0"), color("--spectrum-1"), color("--spectrum-2"), color("--spectrum-3")]);
    const first = Math.max(0, this.columns.length - RING);
    for (let index = first; index < this.columns.length; index++) this.paint(index);
    this.resize();
  }

  /** @param {number} position in the stream, of the sample that plays */
  draw(position, force = false) {
    this.lastPosition = position;
    const now = performance.now();
    if (!force && this.calm.matches && now - this.lastDrawn < 1000 / REDUCED_FPS) return;
    this.lastDrawn = now;
    const head = this.rate ? Math.min(this.seconds(position), this.columns.length / COLUMNS_A_SECOND) : 0;
    const left = Math.max(0, head - SECONDS_BEFORE);
    this.drawWave(left, head);
    this.drawSpectrum(left, head);
  }

  place(canvas, left, seconds) {
    return ((seconds - left) / (SECONDS_BEFORE + SECONDS_AFTER)) * canvas.width;
  }

  drawWave(left, head) {
    const canvas = this.wave;
    const context = canvas.getContext("2d");
    const middle = canvas.height / 2;
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = this.colors.line;
    context.fillRect(0, Math.round(middle), canvas.width, 1);
    const step = canvas.width / (SECONDS_BEFORE + SECONDS_AFTER) / COLUMNS_A_SECOND;
    const first = Math.floor(left * COLUMNS_A_SECOND);
    const last = Math.min(this.columns.length, first + (SECONDS_BEFORE + SECONDS_AFTER) * COLUMNS_A_SECOND + 1);
    for (let index = first; index < last; index++) {
      const { low, high } = this.columns[index];
      const x = this.place(canvas, left, index / COLUMNS_A_SECOND);
      const top = middle - Math.min(1, high * 1.4) * (middle - 2);
      const bottom = middle - Math.max(-1, low * 1.4) * (middle - 2);
      context.fillStyle = index / COLUMNS_A_SECOND < head ? this.colors.played : this.colors.waiting;
      context.fillRect(x, top, Math.max(1, step * 0.72), Math.max(1, bottom - top));
    }
    this.drawMarks(canvas, left, head);
  }

  drawSpectrum(left, head) {
    const canvas = this.spectrum;
    const context = canvas.getContext("2d");
    context.fillStyle = `rgb(${[...this.palette[0]].slice(0, 3).join(" ")})`;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const first = Math.max(Math.floor(left * COLUMNS_A_SECOND), this.columns.length - RING, 0);
    const last = Math.min(this.columns.length, first + (SECONDS_BEFORE + SECONDS_AFTER) * COLUMNS_A_SECOND + 1);
    for (let from = first; from < last; ) {
      const to = Math.min(last, from + RING - (from % RING));
      const x = this.place(canvas, left, from / COLUMNS_A_SECOND);
      const width = this.place(canvas, left, to / COLUMNS_A_SECOND) - x;
      context.drawImage(this.image, from % RING, 0, to - from, BANDS, x, 0, width, canvas.height);
      from = to;
    }
    const waits = this.place(canvas, left, head);
    context.globalAlpha = 0.55;
    context.fillRect(waits, 0, canvas.width - waits, canvas.height);
    context.globalAlpha = 1;
    this.drawMarks(canvas, left, head);
  }

  drawMarks(canvas, left, head) {
    const context = canvas.getContext("2d");
    const width = Math.max(1, Math.round(devicePixelRatio || 1));
    context.fillStyle = this.colors.cut;
    for (const cut of this.cuts) {
      if (cut >= left) context.fillRect(this.place(canvas, left, cut), 0, 2 * width, canvas.height);
    }
    if (!this.columns.length) return;
    context.fillStyle = this.colors.head;
    context.fillRect(Math.min(canvas.width - width, this.place(canvas, left, head)), 0, width, canvas.height);
  }
}

/** Powers of the frequencies 0 to size / 2 of real samples, whose number is a power of two. */
function powers(real) {
  const size = real.length;
  const imaginary = new Float32Array(size);
  for (let i = 1, j = 0; i < size; i++) {
    let bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) [real[i], real[j]] = [real[j], real[i]];
  }
  for (let length = 2; length <= size; length *= 2) {
    const angle = (-2 * Math.PI) / length;
    const half = length / 2;
    for (let k = 0; k < half; k++) {
      const cosine = Math.cos(angle * k);
      const sine = Math.sin(angle * k);
      for (let i = k; i < size; i += length) {
        const j = i + half;
        const re = real[j] * cosine - imaginary[j] * sine;
        const im = real[j] * sine + imaginary[j] * cosine;
        real[j] = real[i] - re;
        imaginary[j] = imaginary[i] - im;
        real[i] += re;
        imaginary[i] += im;
      }
    }
  }
  return real.slice(0, size / 2 + 1).map((value, i) => value * value + imaginary[i] * imaginary[i]);
}

/** 256 colors [r, g, b, 255] between colors written as #rrggbb. */
function palette(names) {
  const stops = names.map((name) => [1, 3, 5].map((at) => parseInt(name.slice(at, at + 2), 16) || 0));
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (stops.length - 1);
    const index = Math.min(stops.length - 2, Math.floor(place));
    const part = place - index;
    return Uint8ClampedArray.from([0, 1, 2, 3], (channel) =>
      channel === 3 ? 255 : stops[index][channel] * (1 - part) + stops[index + 1][channel] * part,
    );
  });
}
