// node out/speak.js ADDRESS VOICE FILE PIECE... : the dialogue of test_dialogues.py, whose outcome it prints as JSON.
import {writeFileSync} from "node:fs";
import {credentials, type ClientDuplexStream, type ServiceError} from "@grpc/grpc-js";
import {BadRequest, RequestInfo} from "./gen/google/rpc/error_details.js";
import {Status} from "./gen/google/rpc/status.js";
import {GenerateRequest, VoxCPMServiceClient, type AudioChunk} from "./gen/voxcpm_grpc/v1/tts.js";

const [address, voice, file, ...pieces] = process.argv.slice(2);
const client = new VoxCPMServiceClient(address, credentials.createInsecure());
type Call = ClientDuplexStream<GenerateRequest, AudioChunk>;

function start(config: object): Call {
  const call = client.generate();
  call.write(GenerateRequest.fromJSON({config}));
  return call;
}

function say(call: Call, ...texts: string[]): Call {
  for (const text of texts) call.write(GenerateRequest.fromPartial({text}));
  return call;
}

async function rest(call: Call): Promise<AudioChunk[]> {
  call.end();
  const chunks: AudioChunk[] = [];
  for await (const chunk of call) chunks.push(chunk);
  return chunks;
}

async function failure(config: object): Promise<Status> {
  try {
    await rest(start(config));
  } catch (error) {
    return Status.decode((error as ServiceError).metadata.get("grpc-status-details-bin")[0] as Buffer);
  }
  throw new Error("the call ended with OK");
}

function detail<T>(status: Status, name: string, kind: {decode(bytes: Uint8Array): T}): T {
  return kind.decode(status.details.find(({typeUrl}) => typeUrl.endsWith(`/${name}`))!.value);
}

const conditioning = {voice};
const chunks = await rest(say(start({conditioning}), ...pieces));
writeFileSync(file, Buffer.concat(chunks.map(({audio}) => audio)));
const outcome: Record<string, unknown> = {seed: String(chunks[0].header!.seed)};
outcome.samples = Number(chunks.at(-1)!.summary!.totalSamples);

const call = say(start({conditioning}), `${pieces.join("")} `.repeat(20));
let heard = false;
for await (const {audio, interrupted, summary} of call as AsyncIterable<AudioChunk>) {
  if (audio.length && !heard) {
    heard = true;
    call.write(GenerateRequest.fromJSON({interrupt: {tag: "stop", playedSamples: "0"}}));
  }
  if (interrupted) {
    outcome.tag = interrupted.tag;
    say(call, ...pieces).end();
  }
  if (summary) outcome.turns = summary.turns;
}

const missing = await failure({requestId: "dialogue", conditioning: {voice: "nobody"}});
outcome.code = missing.code;
outcome.request_id = detail(missing, "google.rpc.RequestInfo", RequestInfo).requestId;
const refused = await failure({turn: {sampling: {cfgValue: 99}}});
outcome.field = detail(refused, "google.rpc.BadRequest", BadRequest).fieldViolations[0].field;

const seed = process.env.LARGEST_SEED; // that the generated types can hold
const [{header}] = await rest(start({conditioning, turn: {sampling: {seed}}}));
outcome.largest_seed = String(header!.seed);
console.log(JSON.stringify(outcome));
client.close();
