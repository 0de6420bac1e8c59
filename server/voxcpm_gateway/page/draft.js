/** The text and the settings of the visitor, which survive a reload, and links that carry a text and a voice. */

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

/** The text and the voice of the page's address, which are taken out of it; null if it has none. */
export function linked() {
  const found = new URLSearchParams(location.hash.slice(1));
  if (!found.has("text") && !found.has("voice")) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return { text: found.get("text"), voice: found.get("voice") };
}

/**
 * The address of the page with a text and a voice behind the #, which browsers send to nobody. It never has a key.
 * Throws an Error if it is too long.
 *
 * @param {string} voice empty for the default one
 */
export function link(text, voice) {
  const values = new URLSearchParams({ ...(text && { text }), ...(voice && { voice }) });
  const address = `${location.origin}${location.pathname}#${values}`;
  if (address.length > LONGEST_LINK) {
    throw new Error(`The link would have ${address.length} characters; the limit is ${LONGEST_LINK}. Shorten the text.`);
  }
  return address;
}
