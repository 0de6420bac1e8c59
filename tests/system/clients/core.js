// The calls that every client must be able to make: node core.js PROTO HOST:PORT CALL ARGUMENT...
//   clone RECORDING TEXT   stores a recording, speaks with it and deletes it
//   error ID               a call with a mistake
//   cancel ID TEXT         cancels a stream after its first audio
//   deadline ID TEXT       a stream of 3 s at most
// Prints a line of JSON: the code, the message and the details of the status, in base64, and the bytes of audio.
"use strict";
const fs = require("fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [proto, address, name, argument, text] = process.argv.slice(2);
const definition = loader.loadSync(proto, {keepCase: true, longs: String, defaults: true});
const {VoxCPMService} = grpc.loadPackageDefinition(definition).voxcpm_grpc.v1;
const client = new VoxCPMService(address, grpc.credentials.createInsecure());

function streamed(call, messages, {open = false, onChunk = () => {}} = {}) {
  return new Promise((resolve) => {
    const chunks = [];
    const answer = (code, message, metadata) => {
      const details = metadata?.get("grpc-status-details-bin")[0]?.toString("base64") ?? "";
      resolve({code, message, details, chunks, bytes: chunks.reduce((sum, chunk) => sum + chunk.audio.length, 0)});
    };
    call.on("data", (chunk) => {
      chunks.push(chunk);
      onChunk(chunk);
    });
    call.on("error", (error) => answer(error.code, error.details, error.metadata));
    call.on("end", () => answer(0, ""));
    for (const message of messages) call.write(message);
    if (!open) call.end();
  });
}

const spoken = (request_id) => ({config: {request_id, turn: {sampling: {seed: 7}}}});
const calls = {
  async clone() {
    const data = fs.readFileSync(argument);
    const stored = await streamed(client.AddReference(), [
      {config: {}},
      {audio: {data: data.subarray(0, 1000)}},
      {audio: {data: data.subarray(1000), offset_bytes: 1000}},
      {commit: {digests: [{total_bytes: data.length}]}},
    ]);
    const {id} = stored.chunks[0].handle;
    const speech = await streamed(client.Generate(), [{config: {conditioning: {voice: id}}}, {text}]);
    await new Promise((resolve) => client.DeleteVoice({id}, resolve));
    return {...speech, voice: speech.chunks[0].header.voice, id};
  },
  error() {
    const config = {request_id: argument, turn: {sampling: {temperature: 99}}};
    return streamed(client.Generate(), [{config}]);
  },
  cancel() {
    const call = client.Generate();
    const onChunk = (chunk) => chunk.audio.length && call.cancel();
    return streamed(call, [spoken(argument), {text}], {open: true, onChunk});
  },
  deadline() {
    const call = client.Generate({deadline: Date.now() + 3000});
    return streamed(call, [spoken(argument), {text}], {open: true}); // still speaks at the deadline
  },
};
calls[name]().then(({chunks, ...result}) => {
  console.log(JSON.stringify(result));
  client.close();
});
