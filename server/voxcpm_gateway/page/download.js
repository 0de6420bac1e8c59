/** Files of what was spoken. WAV is written here; other formats come from the gateway, which encodes the same samples. */

export const NAME_CHARS = 40;

/** A name for a file with the first words of a text, without its extension. */
export function fileName(text) {
  const words = text.normalize("NFC").toLowerCase().replaceAll(/[^\p{L}\p{N}]+/gu, "-");
  return words.replaceAll(/^-+|-+$/g, "") || "speech";
}

/**
 * The file of a take. Throws an Error if the gateway does not make it.
 *
 * @param {Take} take
 * @param {string} format wav, mp3, flac or opus
 * @param {Server} server
 */
export async function encoded(take, format, server) {
  if (format === "wav") return take.wav();
  const body = new Blob(take.pieces(), { type: "application/octet-stream" });
  const most = server.model.max_encoded_bytes;
  if (body.size > most) {
    const minutes = (bytes) => (bytes / 2 / take.rate / 60).toFixed(1);
    throw new Error(
      `The speech has ${minutes(body.size)} minutes; the limit for ${format.toUpperCase()} is ${minutes(most)}. Choose WAV.`,
    );
  }
  const path = `page/encode?${new URLSearchParams({ format, sample_rate: take.rate })}`;
  return (await server.request(path, { method: "POST", body })).blob();
}

/** Let the browser save a file. */
export function save(blob, name, format) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = `${name}.${format}`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
}
