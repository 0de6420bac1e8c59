/** The colors of the pictures, which the style sheet defines for both themes. */

/** Calls `onChange` when the theme changes. */
export function watchTheme(onChange) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
}

/** The value of a color of the style sheet, such as `--accent`. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** 256 colors between those of the style sheet, as the pixels of an ImageData: Uint32Array of [256]. */
export function palette(names) {
  const stops = names.map((name) => [1, 3, 5].map((at) => parseInt(color(name).slice(at, at + 2), 16) || 0));
  const bytes = new Uint8ClampedArray(4 * 256);
  for (let level = 0; level < 256; level++) {
    const place = (level / 255) * (stops.length - 1);
    const index = Math.min(stops.length - 2, Math.floor(place));
    const part = place - index;
    for (let channel = 0; channel < 3; channel++) {
      bytes[4 * level + channel] = stops[index][channel] * (1 - part) + stops[index + 1][channel] * part;
    }
    bytes[4 * level + 3] = 255;
  }
  return new Uint32Array(bytes.buffer);
}

/** Give a canvas one pixel for each of the screen. Returns the number of pixels in one of the style sheet. */
export function fit(canvas) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
  return scale;
}
