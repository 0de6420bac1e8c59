// Speaks each line of stdin as it arrives, and writes WAV to stdout:
//   node speak.js HOST:PORT VOICE < text.txt > speech.wav
// VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
"use strict";
const {once} = require("node:events");
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, voice] = process.argv.slice(2);
const {VOXCPM_CLIENT_API_KEY: key, VOXCPM_CLIENT_CA: ca, PROTOS} = process.env;
const definition = loader.loadSync(["voxcpm_grpc/v1/tts.proto", "google/rpc/error_details.proto", "google/rpc/status.proto"], {
  includeDirs: [PROTOS ?? path.join(__dirname, "../../protos"), path.join(__dirname, "..")],
  keepCase: true, // names as in the proto: sample_rate_hz
  longs: String, // seeds and positions have 64 bits
  enums: String,
  defaults: true, // without it, the audio of a message that has none is undefined
  oneofs: true,
});
const {VoxCPMService} = grpc.loadPackageDefinition(definition).voxcpm_grpc.v1;
const credentials = ca ? grpc.credentials.createSsl(fs.readFileSync(ca)) : grpc.credentials.createInsecure();
const client = new VoxCPMService(address, credentials, {
  "grpc.enable_http_proxy": /^(localhost|127\.[\d.]+|\[::1\]):/.test(address) ? 0 : 1, // no http_proxy for this host
  "grpc.keepalive_time_ms": 60_000, // notices a server that is gone
  "grpc.max_receive_message_length": 64 << 20, // 4 MiB are too few for long latents
});
const metadata = new grpc.Metadata();
if (key) metadata.set("authorization", `Bearer ${key}`);
const call = client.Generate(metadata);

async function send() {
  const turn = {sampling: {seed: 7}}; // the same seed and text give the same speech; without it, the server draws one
  call.write({config: {conditioning: {voice}, turn, output: {encoding: "AUDIO_ENCODING_WAV"}}});
  for await (const line of readline.createInterface({input: process.stdin})) {
    if (!call.write({text: line + "\n"})) await once(call, "drain");
  }
  call.end(); // the half-close: no more text. The server speaks the rest and ends the stream
}

async function receive() {
  for await (const {audio, header, summary, warnings} of call) {
    if (header) console.error(`voice ${header.voice}, ${header.format.sample_rate_hz} Hz, request ${header.request_id}`);
    for (const warning of warnings) console.error(`warning: ${warning.message}`);
    if (!process.stdout.write(audio)) await once(process.stdout, "drain"); // every audio, in order
    if (summary) console.error(`${summary.total_samples} samples`);
  }
}

send().catch(() => {}); // receive() reports the error of a call that has ended
receive().then(() => client.close(), (error) => {
  console.error(`${grpc.status[error.code]}: ${error.details}`);
  for (const bytes of error.metadata?.get("grpc-status-details-bin") ?? []) {
    for (const {type_url, value} of definition["google.rpc.Status"].deserialize(bytes).details) {
      console.error(type_url, JSON.stringify(definition[type_url.split("/")[1]].deserialize(value)));
    }
  }
  process.exit(1);
});
