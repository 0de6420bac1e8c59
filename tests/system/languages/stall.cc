// Opens Generate streams and reads none of their replies until stdin ends: stall HOST:PORT STREAMS TEXT
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "voxcpm_grpc/v1/tts.grpc.pb.h"

using voxcpm_grpc::v1::AudioChunk;
using voxcpm_grpc::v1::GenerateRequest;
using voxcpm_grpc::v1::VoxCPMService;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  grpc::ChannelArguments options;
  options.SetInt("grpc.http2.bdp_probe", 0);  // else the window grows, and the engine fills it for minutes
  auto channel = grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), options);
  auto stub = VoxCPMService::NewStub(channel);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<GenerateRequest, AudioChunk>>> streams;
  GenerateRequest config, request;
  auto* output = config.mutable_config()->mutable_output();  // fills the buffers of the connection in a few seconds
  output->set_encoding(voxcpm_grpc::v1::AUDIO_ENCODING_PCM_F32LE);
  output->set_sample_rate_hz(192000);
  config.mutable_config()->mutable_turn()->mutable_sampling()->set_inference_timesteps(4);
  request.set_text(argv[3]);
  for (int n = std::stoi(argv[2]); n > 0; --n) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub->Generate(contexts.back().get()));
    streams.back()->Write(config);
    streams.back()->Write(request);
    streams.back()->WritesDone();
  }
  std::cout << "open" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  for (auto& context : contexts) context->TryCancel();
  AudioChunk chunk;
  for (auto& stream : streams) {
    while (stream->Read(&chunk)) {
    }
    stream->Finish();
  }
  return 0;
}
