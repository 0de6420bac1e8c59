// Calls GetModelInfo without a pause, until a line on stdin: node callers.js PROTO TARGET SERVICE_CONFIG
// Prints "calls" after the first calls, and at the end how they ended.
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [proto, target, config] = process.argv.slice(2);
const {VoxCPMService} = grpc.loadPackageDefinition(loader.loadSync(proto)).voxcpm_grpc.v1;
const client = new VoxCPMService(target, grpc.credentials.createInsecure(), {"grpc.service_config": config});
const failures = [];
let count = 0;
let over = false;

function call() {
  client.GetModelInfo({}, {deadline: Date.now() + 60000}, (error) => {
    if (error) failures.push(String(error));
    if (++count === 40) console.log("calls");
    if (!over) setImmediate(call);
  });
}

process.stdin.once("data", () => {
  over = true;
  console.log(failures.length ? failures.join("; ") : "no call failed");
  process.exit();
});
for (let caller = 0; caller < 4; caller++) call();
