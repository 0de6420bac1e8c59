/** Errors of the gateway, the server and the browser, in words for the visitor of the page. */

import { LOST } from "./stream.js";

/** The labels of the page by the names of fields that errors use. `input` is the element of the field. */
export const FIELDS = {
  "prompt.audio": { label: "Recording", input: "file" },
  "reference.audio": { label: "Recording", input: "file" },
  "prompt.transcript": { label: "Words of the recording", input: "transcript" },
  audio_sample: { label: "Recording", input: "file" },
  ref_text: { label: "Words of the recording", input: "transcript" },
  prompt: { label: "Recording", input: "file" },
  reference: { label: "Recording", input: "file" },
  name: { label: "Store it as", input: "voice-name" },
  consent: { label: "Consent", input: "consent" },
  cfg_value: { label: "Guidance", input: "cfg" },
  timesteps: { label: "Timesteps", input: "timesteps" },
  temperature: { label: "Temperature", input: "temperature" },
  seed: { label: "Seed", input: "seed" },
  speed: { label: "Speed", input: "speed" },
  volume_gain_db: { label: "Volume", input: "volume" },
  language: { label: "Language", input: "language" },
  speech_language: { label: "Language", input: "speech-language" },
  first_segment: { label: "Start within the first sentence", input: "eager" },
  style: { label: "Description", input: "style" },
  voice: { label: "Voice", input: "" },
  no_voice: { label: "Voice", input: "" },
  text: { label: "Text", input: "text" },
  key: { label: "Key", input: "" },
};
const NAMES = Object.keys(FIELDS).sort((one, other) => other.length - one.length); // longer ones contain shorter ones
const QUOTED = /'[^']*'/g;
/** Words that only programmers know: addresses, paths, names of fields and codes. */
const INTERNAL = /unix:|\/[\w.-]+\/|\b[A-Za-z]+_[A-Za-z_]+\b|\b0x|Traceback|\bcode\b|\bgateway|\brequest id\b|\d+\.\d+\.\d+\.\d+/;

/** Sentences for errors whose message is about the works of the server. `lost`: the page looks for the server. */
const BY_CODE = {
  [LOST]: { sentence: "The connection to the server was lost.", lost: true },
  unavailable: { sentence: "The server cannot be reached.", lost: true },
  aborted: { sentence: "The speech broke off on the server.", lost: true },
  deadline_exceeded: { sentence: "The server took too long. Speak less text at a time, or try again." },
  invalid_api_key: { sentence: "This server needs a valid key.", key: true },
};
const BUSY = "The server is busy. Try again in a moment.";
const FAULT = "Something went wrong on the server. Try again; if it happens again, tell its operator what Details says.";
const UNKNOWN = "The server does not accept this. Details has its reason.";

/**
 * An error for the visitor.
 *
 * sentence: what is wrong and what to do. input: id of the element of the field at fault, empty for none.
 * lost: the connection is gone. key: a key is needed. details: lines for the operator.
 *
 * @param {object} error as the gateway sends it, or an Error of the page itself
 */
export function explain(error) {
  const { message = "", param = "", code = "", type = "", request_id: id = "", retry_after: after = null } = error;
  const known = BY_CODE[code];
  const own = error instanceof Error && !type && !code; // of the page, which speaks to its visitor
  const said = own ? message : asSentence(message, param);
  const usable = own || (said && type !== "server_error" && !INTERNAL.test(said.replaceAll(QUOTED, "")));
  let sentence = known?.sentence ?? (usable ? said : instead(type, param));
  if (after && !known) sentence += ` It has room in ${Math.ceil(after)} s.`;
  const details = [message, code && `Code: ${code}`, id && `Request: ${id}`].filter(Boolean);
  return {
    sentence,
    input: FIELDS[param]?.input ?? "",
    lost: Boolean(known?.lost),
    key: Boolean(known?.key),
    details: own ? [] : details,
  };
}

/** A sentence in place of a message for programmers. */
function instead(type, param) {
  if (type === "server_error") return FAULT;
  if (type === "rate_limit_error") return BUSY;
  return FIELDS[param] ? `${FIELDS[param].label} cannot be used as it is. Details has the reason.` : UNKNOWN;
}

/** A message of the server with the labels of the page, as a sentence. */
function asSentence(message, param) {
  const quotes = message.match(QUOTED) ?? [];
  let text = message.replaceAll(QUOTED, "''").replaceAll(/(\d)\.0\b/g, "$1").trim();
  for (const name of NAMES) {
    if (name !== param && !/[._]/.test(name)) continue; // a word of the language, too
    const { label } = FIELDS[name];
    const inside = label[0].toLowerCase() + label.slice(1);
    const word = new RegExp(`(?<![\\w.])${name.replace(".", "\\.")}(?!\\w)`, "g");
    text = text.replaceAll(word, (_, at) => (at ? inside : label));
  }
  text = text.replaceAll("''", () => quotes.shift());
  text = text.slice(0, 1).toUpperCase() + text.slice(1);
  return !text || /[.!?]$/.test(text) ? text : `${text}.`;
}

const LANGUAGES = /(?<=claims to speak )[\w, -]+?(?= only)/;

/** A warning of the server as a sentence, with the names of languages instead of their tags. */
export function asNote({ message }) {
  const names = new Intl.DisplayNames("en", { type: "language" });
  return asSentence(message.replace(LANGUAGES, (tags) => tags.replaceAll(/[a-z]{2,3}(-\w+)*(?=,|$| and)/g, (tag) => names.of(tag))));
}

/** The reason why the browser gives no microphone, with the remedy. */
export function microphoneFault(error) {
  switch (error.name) {
    case "NotAllowedError":
    case "SecurityError":
      return "The browser does not let this page use the microphone. Allow it beside the address, then record again.";
    case "NotFoundError":
      return "The browser finds no microphone. Connect one, or choose a file.";
    default:
      return "The microphone cannot be used; another program may have it. Close that program, or choose a file.";
  }
}
