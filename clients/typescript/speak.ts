// Speaks each line of stdin as it arrives, and writes WAV to stdout:
//   node out/speak.js HOST:PORT VOICE < text.txt > speech.wav
// VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
import {once} from "node:events";
import {readFileSync} from "node:fs";
import {createInterface} from "node:readline";
import {createRegistry, toJsonString, type MessageInitShape} from "@bufbuild/protobuf";
import {Code, ConnectError, createClient} from "@connectrpc/connect";
import {createGrpcTransport} from "@connectrpc/connect-node";
import {file_google_rpc_error_details} from "./gen/google/rpc/error_details_pb.js";
import {AudioEncoding, GenerateRequestSchema, VoxCPMService} from "./gen/voxcpm_grpc/v1/tts_pb.js";

const [address, voice] = process.argv.slice(2);
const {VOXCPM_CLIENT_API_KEY: key, VOXCPM_CLIENT_CA: ca} = process.env;
const transport = createGrpcTransport({
  baseUrl: `${ca ? "https" : "http"}://${address}`,
  nodeOptions: ca ? {ca: readFileSync(ca)} : {},
  pingIntervalMs: 60_000, // notices a server that is gone
});
const client = createClient(VoxCPMService, transport);

async function* requests(): AsyncGenerator<MessageInitShape<typeof GenerateRequestSchema>> {
  const turn = {sampling: {seed: 7n}}; // the same seed and text give the same speech; without it, the server draws one
  const output = {encoding: AudioEncoding.WAV};
  yield {request: {case: "config", value: {conditioning: {voice}, turn, output}}};
  for await (const line of createInterface({input: process.stdin})) {
    yield {request: {case: "text", value: line + "\n"}};
  }
} // its end is the half-close: no more text. The server speaks the rest and ends the stream

try {
  const headers = key ? {authorization: `Bearer ${key}`} : undefined;
  for await (const {audio, header, summary, warnings} of client.generate(requests(), {headers})) {
    if (header) console.error(`voice ${header.voice}, ${header.format?.sampleRateHz} Hz, request ${header.requestId}`);
    for (const warning of warnings) console.error(`warning: ${warning.message}`);
    if (!process.stdout.write(audio)) await once(process.stdout, "drain"); // every audio, in order
    if (summary) console.error(`${summary.totalSamples} samples`);
  }
} catch (thrown) {
  const error = ConnectError.from(thrown);
  console.error(`${Code[error.code]}: ${error.rawMessage}`);
  const known = createRegistry(file_google_rpc_error_details);
  for (const detail of error.findDetails(known)) {
    console.error(detail.$typeName, toJsonString(known.getMessage(detail.$typeName)!, detail));
  }
  process.exitCode = 1;
}
process.exit(); // stdin may still be open
