/** The discrete Fourier transform, as far as a spectrogram needs it. */

/** Powers of the frequencies 0 to size / 2 of real samples, whose number is a power of two. */
export function powers(real) {
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
