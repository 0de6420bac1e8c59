/** OpenAI's package as a program of node and as a page use it. Prints what it got as JSON. */

const { readFileSync } = require("node:fs");
const { OpenAI, toFile } = require("openai");

const [url, origin, recording] = process.argv.slice(2);

const SAFE = ["accept", "accept-language", "content-language"];
const SAFE_TYPES = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];
const READABLE = ["cache-control", "content-length", "content-type", "expires", "last-modified"];

const words = (response, name) => (response.headers.get(name) ?? "").toLowerCase().split(/,\s*/);

const check = (holds, reason) => {
  if (!holds) throw new TypeError(`Failed to fetch: ${reason}`);
};

const checkOrigin = (response) => {
  check(["*", origin].includes(response.headers.get("access-control-allow-origin")), "no access-control-allow-origin");
};

/** As `fetch` of a page of `origin` in a browser: it asks first, and shows only what the answers allow. */
async function pageFetch(address, init) {
  const request = new Request(address, { ...init, duplex: "half" });
  const type = (request.headers.get("content-type") ?? "").split(";")[0];
  const asked = [...request.headers.keys()]
    .filter((name) => !SAFE.includes(name) && !(name === "content-type" && SAFE_TYPES.includes(type)))
    .sort();
  const preflight = await fetch(address, {
    method: "OPTIONS",
    headers: {
      origin,
      "access-control-request-method": request.method,
      "access-control-request-headers": asked.join(","),
      "access-control-request-private-network": "true",
    },
  });
  check(preflight.ok, `the preflight has status ${preflight.status}`);
  checkOrigin(preflight);
  check(preflight.headers.get("access-control-allow-private-network") === "true", "a private network");
  const methods = words(preflight, "access-control-allow-methods");
  check(["GET", "POST"].includes(request.method) || methods.includes(request.method.toLowerCase()), request.method);
  const allowed = words(preflight, "access-control-allow-headers");
  for (const name of asked) {
    check(allowed.includes(name) || (allowed.includes("*") && name !== "authorization"), `header ${name}`);
  }
  request.headers.set("origin", origin);
  const response = await fetch(request);
  checkOrigin(response);
  const exposed = [...READABLE, ...words(response, "access-control-expose-headers")];
  const headers = [...response.headers].filter(([name]) => exposed.includes(name));
  return new Response(response.body, { status: response.status, headers });
}

async function errorOf(work) {
  try {
    await work;
  } catch (error) {
    const { status, code, param, message, requestID } = error;
    return { kind: error.constructor.name, status, code, param, message, requestID };
  }
  throw new Error("it did not fail");
}

async function main() {
  const sent = [];
  const page = (address, init) => {
    sent.push(...new Headers(init.headers).keys());
    return pageFetch(address, init);
  };
  const options = origin ? { fetch: page, dangerouslyAllowBrowser: true } : {};
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, ...options });
  const speech = { model: "gpt-4o-mini-tts", voice: "miles", input: "Good morning.", response_format: "pcm", seed: 1 };

  const models = [];
  for await (const model of await client.models.list()) models.push(model.id);
  const whole = Buffer.from(await (await client.audio.speech.create(speech)).arrayBuffer());
  let streamed = 0;
  for await (const part of (await client.audio.speech.create(speech)).body) streamed += part.length;
  const file = await toFile(readFileSync(recording), "miles.flac", { type: "audio/flac" });
  const voice = await client.audio.voices.create({ name: `Ada ${origin}`, audio_sample: file, consent: "signed" });
  const deleted = await client.audio.voices.delete(voice.id);
  const wrong = await errorOf(client.audio.speech.create({ ...speech, voice: "nobody" }));
  const empty = await errorOf(client.audio.speech.create({ ...speech, input: "" }));
  const result = { models, bytes: whole.length, streamed, voice, deleted, wrong, empty, sent: [...new Set(sent)] };
  console.log(JSON.stringify(result));
}

main();
