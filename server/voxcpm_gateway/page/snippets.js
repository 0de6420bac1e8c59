/** Programs that send a request of the page: text for people who copy it, which nothing here executes. */

export const MOST_HTTP_CHARACTERS = 4096;
export const KEY_VARIABLE = "VOXCPM_CLIENT_API_KEY";
const RECORDING = "recording.wav";
const MARK = "\uFDD0"; // stands for the data of the recording; no character of a text
const ENCODINGS = { wav: "wav", mp3: "mp3", flac: "flac", opus: "ogg_opus" }; // the server's names of the formats

/**
 * A request of the page.
 *
 * @typedef {object} Request
 * @property {string} text
 * @property {object} options of the stream; `prompt` and `reference` are recordings
 * @property {string} format wav, mp3, flac or opus
 * @property {boolean} keyed the server asks for a key; the programs take it from a variable
 * @property {string} http address of the gateway, without a slash at its end
 * @property {{address: string, tls: boolean}} grpc
 */

/** A value as a literal of Python. */
function python(value) {
  if (value instanceof Expression) return value.code;
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${python(name)}: ${python(one)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

class Expression {
  constructor(code) {
    this.code = code;
  }
}

/** A text as a word of a shell. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A text as a line between EOF and EOF, in which a shell reads the recording. */
function heredoc(text) {
  const plain = text.replaceAll(/[\\$`]/g, "\\$&");
  return plain.replaceAll(MARK, () => `$(base64 < ${RECORDING} | tr -d '\\n')`);
}

/** The fields of the HTTP request. @param {unknown} recording stands for the data of the recording */
function httpFields({ text, options, format }, recording) {
  const { cfg_value, timesteps, temperature, voice, no_voice, style, prompt, reference, ...others } = options;
  const extra = { cfg_value, inference_timesteps: timesteps, temperature };
  return defined({
    input: text,
    voice,
    no_voice,
    instructions: style,
    ref_audio: prompt || reference ? recording : undefined,
    ref_text: prompt?.transcript.trim(),
    response_format: format,
    ...others,
    extra_params: Object.keys(defined(extra)).length ? defined(extra) : undefined,
  });
}

function defined(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));
}

/** @param {Request} request */
export function curl(request) {
  const { options, format, keyed, http } = request;
  const body = JSON.stringify(httpFields(request, `data:audio/wav;base64,${MARK}`));
  const lines = [
    `curl ${http}/v1/audio/speech --fail-with-body`,
    ...(keyed ? [`-H "authorization: Bearer $${KEY_VARIABLE}"`] : []),
    `-H 'content-type: application/json'`,
    `--output speech.${format}`,
  ];
  const recorded = options.prompt || options.reference;
  if (recorded) return `${[...lines, "--data-binary @- <<EOF"].join(" \\\n  ")}\n${heredoc(body)}\nEOF`;
  return [...lines, `--data-raw ${quoted(body)}`].join(" \\\n  ");
}

/** @param {Request} request */
export function openai(request) {
  const { keyed, http, format } = request;
  const data = new Expression('"data:audio/wav;base64," + base64.b64encode(recording).decode()');
  const fields = httpFields(request, data);
  const { model = "tts-1", input, voice = "default", response_format, instructions, speed, ...extra } = fields;
  const known = defined({ model, voice, input, instructions, speed, response_format });
  const recorded = "ref_audio" in extra;
  return [
    ...(recorded ? ["import base64"] : []),
    ...(keyed ? ["import os"] : []),
    ...(recorded || keyed ? [""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${python(`${http}/v1`)}, api_key=${keyed ? `os.environ["${KEY_VARIABLE}"]` : '"none"'})`,
    ...(recorded ? [`recording = open("${RECORDING}", "rb").read()`] : []),
    "with client.audio.speech.with_streaming_response.create(",
    ...Object.entries(known).map(([name, value]) => `    ${name}=${python(value)},`),
    ...(Object.keys(extra).length ? [`    extra_body=${python(extra)},`] : []),
    ") as response:",
    `    response.stream_to_file("speech.${format}")`,
  ].join("\n");
}

/** @param {Request} request */
export function client({ text, options, format, keyed, grpc }) {
  const { prompt, reference, ...others } = options;
  const values = defined({
    ...others,
    prompt: prompt && new Expression(`Prompt("${RECORDING}", ${python(prompt.transcript)})`),
    reference: reference && RECORDING,
    format: ENCODINGS[format],
  });
  const connection = [
    python(grpc.address),
    ...(grpc.tls ? ["tls=True"] : []),
    ...(keyed ? [`api_key=os.environ["${KEY_VARIABLE}"]`] : []),
  ];
  return [
    ...(keyed ? ["import os", ""] : []),
    `from voxcpm_client import Client${prompt ? ", Prompt" : ""}`,
    "",
    `with Client(${connection.join(", ")}) as client:`,
    "    speech = client.say(",
    `        ${python(text)},`,
    ...Object.entries(values).map(([name, value]) => `        ${name}=${python(value)},`),
    "    )",
    `speech.save("speech.${format}")`,
  ].join("\n");
}

/** @param {Request} request */
export function grpcurl({ text, options, format, keyed, grpc }) {
  const { cfg_value, temperature, seed, timesteps, style, speed, volume_gain_db, language, speech_language, first_segment } = options;
  const sampling = defined({ cfg_value, temperature, seed, inference_timesteps: timesteps });
  const audio = { audio: { data: MARK } };
  const some = (values) => (Object.keys(defined(values)).length ? defined(values) : undefined);
  const config = defined({
    model: options.model,
    conditioning: some({
      voice: options.voice,
      no_voice: options.no_voice,
      inline_prompt: options.prompt && { ...audio, transcript: options.prompt.transcript },
      inline_reference: options.reference && audio,
    }),
    turn: some({ style, language: speech_language, speed, volume_gain_db, sampling: some(sampling) }),
    segmentation: some({ language, first_segment: first_segment && `FIRST_SEGMENT_${first_segment.toUpperCase()}` }),
    output: { encoding: `AUDIO_ENCODING_${ENCODINGS[format].toUpperCase()}` },
  });
  const recorded = options.prompt || options.reference;
  const lines = [{ config }, { text }].map((message) => JSON.stringify(message)).map((line) => (recorded ? heredoc(line) : line));
  const flags = [
    ...(grpc.tls ? [] : ["-plaintext"]),
    ...(keyed ? [`-H "authorization: Bearer $${KEY_VARIABLE}"`] : []),
  ];
  return [
    `grpcurl ${[...flags, "-d @", grpc.address].join(" ")} voxcpm_grpc.v1.VoxCPMService/Generate <<${recorded ? "EOF" : "'EOF'"} \\`,
    `  | jq -r '.audio // empty' | base64 -d > speech.${format}`,
    ...lines,
    "EOF",
  ].join("\n");
}
