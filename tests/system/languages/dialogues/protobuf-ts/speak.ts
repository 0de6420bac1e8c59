// node out/speak.js ADDRESS VOICE FILE PIECE... : the dialogue of test_dialogues.py, whose outcome it prints as JSON.
import {writeFileSync} from "node:fs";
import {credentials, status} from "@grpc/grpc-js";
import {GrpcTransport} from "@protobuf-ts/grpc-transport";
import type {IMessageType} from "@protobuf-ts/runtime";
import type {RpcError} from "@protobuf-ts/runtime-rpc";
import {Any} from "./gen/google/protobuf/any";
import {BadRequest, RequestInfo} from "./gen/google/rpc/error_details";
import {Status} from "./gen/google/rpc/status";
import {VoxCPMServiceClient} from "./gen/voxcpm_grpc/v1/tts.client";
import {Conditioning, GenerateConfig, type AudioChunk} from "./gen/voxcpm_grpc/v1/tts";

const [address, voice, file, ...pieces] = process.argv.slice(2);
const client = new VoxCPMServiceClient(
  new GrpcTransport({host: address, channelCredentials: credentials.createInsecure()}),
);

type Call = ReturnType<typeof client.generate>; // a promise, too, so that `await call` waits for the end of the call
type Config = Parameters<typeof GenerateConfig.create>[0];

function start(config: Config): Call {
  const call = client.generate();
  void call.requests.send({request: {oneofKind: "config", config: GenerateConfig.create(config)}});
  return call;
}

function say(call: Call, ...texts: string[]): Call {
  for (const text of texts) void call.requests.send({request: {oneofKind: "text", text}});
  return call;
}

async function rest(call: Call): Promise<AudioChunk[]> {
  void call.requests.complete();
  const chunks: AudioChunk[] = [];
  for await (const chunk of call.responses) chunks.push(chunk);
  return chunks;
}

async function failure(config: Config) {
  try {
    await rest(start(config));
  } catch (error) {
    const {code, meta} = error as RpcError;
    const {details} = Status.fromBinary(Buffer.from(meta["grpc-status-details-bin"] as string, "base64"));
    return {code: status[code as keyof typeof status], details};
  }
  throw new Error("the call ended with OK");
}

function detail<T extends object>(details: Any[], kind: IMessageType<T>): T {
  return Any.unpack(details.find((any) => Any.contains(any, kind))!, kind);
}

async function main() {
  const conditioning = Conditioning.create({voice});
  const chunks = await rest(say(start({conditioning}), ...pieces));
  writeFileSync(file, Buffer.concat(chunks.map(({audio}) => audio)));
  const outcome: Record<string, unknown> = {seed: String(chunks[0].header!.seed)};
  outcome.samples = Number(chunks.at(-1)!.summary!.totalSamples);

  const [{header}] = await rest(start({conditioning, turn: {sampling: {seed: 2n ** 63n - 1n}}}));
  outcome.largest_seed = String(header!.seed);

  const call = say(start({conditioning}), `${pieces.join("")} `.repeat(20));
  let heard = false;
  for await (const {audio, interrupted, summary} of call.responses) {
    if (audio.length && !heard) {
      heard = true;
      void call.requests.send({request: {oneofKind: "interrupt", interrupt: {tag: "stop", playedSamples: 0n}}});
    }
    if (interrupted) {
      outcome.tag = interrupted.tag;
      void say(call, ...pieces).requests.complete();
    }
    if (summary) outcome.turns = summary.turns;
  }

  const missing = await failure({requestId: "dialogue", conditioning: Conditioning.create({voice: "nobody"})});
  outcome.code = missing.code;
  outcome.request_id = detail(missing.details, RequestInfo).requestId;
  const refused = await failure({turn: {sampling: {cfgValue: 99}}});
  outcome.field = detail(refused.details, BadRequest).fieldViolations[0].field;
  console.log(JSON.stringify(outcome));
}

main().then(() => process.exit(), (error) => {
  console.error(error);
  process.exit(1);
});
