/** The text and the settings of the visitor, which survive a reload, and links that carry a text, a voice and a model. */

const DRAFT = "voxcpm-draft"; // of the session storage
const LONGEST_LINK = 8000; // characters; some programs cut longer ones

/** @returns {object} what `keep` was given last in this tab; empty if nothing */
export function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(DRAFT)) ?? {};
  } catch {
    return {};
  }
}

/** @param {object} values that JSON can write; they join those that are kept */
export function keep(values) {
  try {
    sessionStorage.setItem(DRAFT, JSON.stringify({ ...kept(), ...values }));
  } catch {
    // the storage is full or switched off: the page works without it
  }
}

/** The text, the voice and the model of the page's address, which are taken out of it; null if it has none. */
export function linked() {
  const found = new URLSearchParams(location.hash.slice(1));
  if (!["text", "voice", "model"].some((name) => found.has(name))) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return { text: found.get("text"), voice: found.get("voice"), model: found.get("model") };
}

/**
 * The address of the page with what is given behind the #, which browsers send to nobody. It never has a key.
 * Throws an Error if it is too long.
 *
 * @param {{text: string, voice: string, model?: string}} given the voice and the model are empty for the default ones
 */
export function link(given) {
  const values = new URLSearchParams(Object.entries(given).filter(([, value]) => value));
  const address = `${location.origin}${location.pathname}#${values}`;
  if (address.length > LONGEST_LINK) {
    throw new Error(`The link would have ${address.length} characters; the limit is ${LONGEST_LINK}. Shorten the text.`);
  }
  return address;
}
