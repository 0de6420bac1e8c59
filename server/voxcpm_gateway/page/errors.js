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
  first_segment: { label: "Start within the first sentence", input: "eager" },
  style: { label: "Description", input: "style" },
  voice: { label: "Voice", input: "" },
  no_voice: { label: "Voice", input: "" },
  text: { label: "Text", input: "text" },
  key: { label: "Key", input: "" },
};
const NAMES = Object.keys(FIELDS).sort((one, other) => other.length - one.length);
const INTERNAL = /unix:|\/[\w.-]+\/|\b[A-Z]+_[A-Z_]+\b|\b0x|Traceback|\bcode\b|\bgateway|\brequest id\b|\d+\.\d+\.\d+\.\d+/;
const QUOTED = /'[^']*'/g;

/** Sentences for errors whose message is about the works of the server. `again`: the same text can be tried again. */
const BY_CODE = {
  [LOST]: { sentence: "The connection to the server was lost.", lost: true },
  unavailable: { sentence: "The server cannot be reached.", lost: true },
  aborted: { sentence: "The speech broke off on the server. Try again.", again: true },
  deadline_exceeded: { sentence: "The server took too long. Speak less text at a time, or try again.", again: true },
  rate_limit_exceeded: { sentence: "The server is busy.", again: true },
  invalid_api_key: { sentence: "This server needs a valid key.", key: true },
};
const FAULT = {
  sentence: "Something went wrong on the server. Try again; if it happens again, tell its operator what Details says.",
  again: true,
};

/**
 * An error for the visitor.
 *
 * sentence: what is wrong and what to do. input: id of the element of the field at fault, empty for none.
 * lost: the connection is gone. key: a key is needed. again: to try again may help. details: for the operator.
 *
 * @param {object} error as the gateway sends it, or an Error
 */
export function explain(error) {
  const { message = "", param = "", code = "", request_id: id = "", retry_after: after = null } = error;
  const field = FIELDS[param];
  const known = BY_CODE[code] ?? (error.type === "server_error" ? FAULT : {});
  const usable = message && !INTERNAL.test(message.replaceAll(QUOTED, ""));
  const keeps = usable && code !== LOST && !known.lost && !known.key && known !== FAULT; // the message says more
  let sentence = keeps ? asSentence(message, param) : (known.sentence ?? FAULT.sentence);
  if (known.again && keeps && after) sentence += ` Try again in ${Math.ceil(after)} s.`;
  const details = [message, code && `Code: ${code}`, id && `Request: ${id}`].filter((line) => line && line !== sentence);
  return {
    sentence,
    input: field?.input ?? "",
    lost: Boolean(known.lost),
    key: Boolean(known.key),
    again: Boolean(known.again),
    details: error instanceof Error && !error.code ? [] : details,
  };
}

/** A message of the server with the labels of the page, as a sentence. */
function asSentence(message, param) {
  const quotes = message.match(QUOTED) ?? [];
  const names = FIELDS[param] ? [param, ...NAMES] : NAMES.filter((name) => /[._]/.test(name)); // others are words
  let text = message.replaceAll(QUOTED, "''");
  for (const name of new Set(names)) {
    if (name !== param && !/[._]/.test(name)) continue;
    text = text.replaceAll(new RegExp(`(?<![\\w.])${name.replace(".", "\\.")}(?![\\w])`, "g"), FIELDS[name].label);
  }
  text = text.replaceAll("''", () => quotes.shift()).trim();
  text = text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/** What to do about a microphone that the browser does not give. */
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
