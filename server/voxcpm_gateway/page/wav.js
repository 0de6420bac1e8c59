/** WAV files of 16-bit samples. */

const HEADER_BYTES = 44;

/**
 * @param {Int16Array[]} pieces of the samples, one after the other
 * @param {number} rate in Hz
 */
export function encodeWav(pieces, rate) {
  const bytes = 2 * pieces.reduce((sum, piece) => sum + piece.length, 0);
  const view = new DataView(new ArrayBuffer(HEADER_BYTES));
  const write = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, HEADER_BYTES - 8 + bytes, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, bytes, true);
  return new Blob([view, ...pieces], { type: "audio/wav" });
}

/** Floats of -1 to 1 as 16-bit samples. */
export function integers(samples) {
  return Int16Array.from(samples, (sample) => 32767 * Math.max(-1, Math.min(1, sample)));
}
