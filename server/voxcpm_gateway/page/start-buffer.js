/** The audio that the page waits for before it plays: as little as the pace of the server allows. */

const LEAST_SECONDS = 0.1;
const FAST = 0.25; // real-time factor up to which the least is enough
const MARGIN_SECONDS = 0.8; // for each further 1 of the factor: a busy server is an uneven one
const LONGEST_SECONDS = 10;
const MEASURED_SECONDS = 0.5; // of audio, after which the pace of this text replaces that of earlier ones

/**
 * Seconds of audio to have before the playback starts.
 *
 * A server that needs `factor` seconds for a second of speech falls behind by 1 - 1 / factor of what is still expected.
 *
 * @param {number} factor real-time factor of the server
 * @param {number} expected seconds of speech that are still to be played
 */
export function startSeconds(factor, expected) {
  const behind = factor > 1 ? expected * (1 - 1 / factor) : 0;
  const margin = MARGIN_SECONDS * Math.max(0, Math.min(1, factor) - FAST);
  return Math.min(LONGEST_SECONDS, LEAST_SECONDS + margin + behind);
}

/**
 * The factor that counts before the playback starts; null if nothing is known yet.
 *
 * @param {Pace} pace of this text
 * @param {number | null} earlier factor of the text before it
 */
export function expectedFactor(pace, earlier) {
  if (pace.factor === null) return earlier;
  return pace.audioSeconds >= MEASURED_SECONDS ? pace.factor : Math.max(pace.factor, earlier ?? 0);
}
