// Writes the audio of a text to stdout: speak HOST:PORT PRESET SEED TEXT
#include <iostream>
#include <string>

#include <grpcpp/grpcpp.h>

#include "voxcpm_grpc/v1/tts.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  auto stub = voxcpm_grpc::v1::VoxCPMService::NewStub(channel);
  grpc::ClientContext context;
  auto stream = stub->Generate(&context);
  voxcpm_grpc::v1::GenerateRequest request;
  request.mutable_config()->mutable_conditioning()->set_preset(argv[2]);
  request.mutable_config()->mutable_turn()->mutable_sampling()->set_seed(std::stoull(argv[3]));
  stream->Write(request);
  request.set_text(argv[4]);
  stream->Write(request);
  stream->WritesDone();
  voxcpm_grpc::v1::AudioChunk chunk;
  while (stream->Read(&chunk)) std::cout << chunk.audio();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) std::cerr << status.error_message() << std::endl;
  return status.ok() ? 0 : 1;
}
