// node out/speak.js ADDRESS VOICE FILE PIECE... : the dialogue of test_dialogues.py, whose outcome it prints as JSON.
import {writeFileSync} from "node:fs";
import type {MessageInitShape} from "@bufbuild/protobuf";
import {ConnectError, createClient} from "@connectrpc/connect";
import {createAsyncIterable, createWritableIterable} from "@connectrpc/connect/protocol";
import {createGrpcTransport} from "@connectrpc/connect-node";
import {BadRequestSchema, RequestInfoSchema} from "./gen/google/rpc/error_details_pb.js";
import type {AudioChunk, GenerateConfigSchema, GenerateRequestSchema} from "./gen/voxcpm_grpc/v1/tts_pb.js";
import {VoxCPMService} from "./gen/voxcpm_grpc/v1/tts_pb.js";

const [address, voice, file, ...pieces] = process.argv.slice(2);
const client = createClient(VoxCPMService, createGrpcTransport({baseUrl: `http://${address}`}));

type Request = MessageInitShape<typeof GenerateRequestSchema>;
type Config = MessageInitShape<typeof GenerateConfigSchema>;

function spoken(config: Config, ...texts: string[]): Request[] {
  const texted = texts.map((value): Request => ({request: {case: "text", value}}));
  return [{request: {case: "config", value: config}}, ...texted];
}

function said(config: Config, ...texts: string[]): AsyncIterable<AudioChunk> {
  return client.generate(createAsyncIterable(spoken(config, ...texts)));
}

async function failure(config: Config) {
  try {
    for await (const _ of said(config));
  } catch (error) {
    return ConnectError.from(error);
  }
  throw new Error("the call ended with OK");
}

const conditioning = {voice};
const chunks: AudioChunk[] = [];
for await (const chunk of said({conditioning}, ...pieces)) chunks.push(chunk);
writeFileSync(file, Buffer.concat(chunks.map((chunk) => chunk.audio)));
const outcome: Record<string, unknown> = {seed: String(chunks[0].header!.seed)};
outcome.samples = Number(chunks.at(-1)!.summary!.totalSamples);

const largest = {conditioning, turn: {sampling: {seed: 2n ** 63n - 1n}}};
for await (const {header} of said(largest)) {
  if (header) outcome.largest_seed = String(header.seed);
}

const requests = createWritableIterable<Request>();
const replies = client.generate(requests);
for (const request of spoken({conditioning}, `${pieces.join("")} `.repeat(20))) void requests.write(request);
let heard = false;
for await (const {audio, interrupted, summary} of replies) {
  if (audio.length && !heard) {
    heard = true;
    void requests.write({request: {case: "interrupt", value: {tag: "stop", playedSamples: 0n}}});
  }
  if (interrupted) {
    outcome.tag = interrupted.tag;
    for (const value of pieces) void requests.write({request: {case: "text", value}});
    requests.close();
  }
  if (summary) outcome.turns = summary.turns;
}

const missing = await failure({requestId: "dialogue", conditioning: {voice: "nobody"}});
outcome.code = missing.code;
outcome.request_id = missing.findDetails(RequestInfoSchema)[0].requestId;
const refused = await failure({turn: {sampling: {cfgValue: 99}}});
outcome.field = refused.findDetails(BadRequestSchema)[0].fieldViolations[0].field;
console.log(JSON.stringify(outcome));
process.exit();
