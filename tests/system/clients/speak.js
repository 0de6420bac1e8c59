// Writes the audio of a text to stdout: node speak.js PROTO HOST:PORT PRESET SEED TEXT
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [proto, address, preset, seed, text] = process.argv.slice(2);
const definition = loader.loadSync(proto, {keepCase: true, longs: String, defaults: true});
const {VoxCPMService} = grpc.loadPackageDefinition(definition).voxcpm_grpc.v1;
const client = new VoxCPMService(address, grpc.credentials.createInsecure());
const call = client.Generate();
const audio = [];
call.on("data", (chunk) => audio.push(chunk.audio));
call.on("error", (error) => {
  console.error(String(error));
  process.exit(1);
});
call.on("end", () => process.stdout.write(Buffer.concat(audio), () => client.close()));
call.write({config: {conditioning: {preset}, turn: {sampling: {seed}}}});
call.write({text});
call.end();
