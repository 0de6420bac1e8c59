// ./speak ADDRESS VOICE FILE PIECE... : the dialogue of test_dialogues.py, whose outcome it prints as JSON.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/error_details.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "voxcpm_grpc/v1/tts.grpc.pb.h"

using namespace voxcpm_grpc::v1;

std::unique_ptr<VoxCPMService::Stub> stub;

struct Call {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<GenerateRequest, AudioChunk>> stream = stub->Generate(&context);
  AudioChunk chunk;

  explicit Call(const GenerateConfig& config) {
    GenerateRequest request;
    *request.mutable_config() = config;
    stream->Write(request);
  }

  void Say(const std::vector<std::string>& pieces) {
    GenerateRequest request;
    for (const auto& piece : pieces) {
      request.set_text(piece);
      stream->Write(request);
    }
  }

  // Reads up to the first chunk that is wanted; the chunk is in `chunk`.
  void First(const std::function<bool()>& wanted) {
    do {
      if (!stream->Read(&chunk)) throw std::runtime_error(stream->Finish().error_message());
    } while (!wanted());
  }

  // The details of the error with which the call ends.
  google::rpc::Status Failure() {
    stream->WritesDone();
    while (stream->Read(&chunk)) {}
    google::rpc::Status details;
    grpc::ExtractErrorDetails(stream->Finish(), &details);
    return details;
  }
};

GenerateConfig Config(const std::string& voice) {
  GenerateConfig config;
  config.mutable_conditioning()->set_voice(voice);
  return config;
}

int main(int argc, char** argv) {
  const std::string voice = argv[2];
  const std::vector<std::string> pieces(argv + 4, argv + argc);
  stub = VoxCPMService::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));

  Call spoken(Config(voice));
  spoken.Say(pieces);
  spoken.stream->WritesDone();
  std::ofstream file(argv[3], std::ios::binary);
  uint64_t seed = 0;
  spoken.First([&] {
    if (spoken.chunk.has_header()) seed = spoken.chunk.header().seed();
    file << spoken.chunk.audio();
    return spoken.chunk.has_summary();
  });
  std::cout << "{\"seed\": \"" << seed << "\", \"samples\": " << spoken.chunk.summary().total_samples();

  GenerateConfig largest = Config(voice);
  largest.mutable_turn()->mutable_sampling()->set_seed(INT64_MAX);
  Call seeded(largest);
  seeded.stream->WritesDone();
  seeded.First([&] { return seeded.chunk.has_header(); });
  std::cout << ", \"largest_seed\": \"" << seeded.chunk.header().seed() << "\"";

  Call stopped(Config(voice));
  std::string text;
  for (int count = 0; count < 20; ++count, text += " ")
    for (const auto& piece : pieces) text += piece;
  stopped.Say({text});
  stopped.First([&] { return !stopped.chunk.audio().empty(); });
  GenerateRequest interrupt;
  interrupt.mutable_interrupt()->set_tag("stop");
  interrupt.mutable_interrupt()->set_played_samples(0);
  stopped.stream->Write(interrupt);
  stopped.First([&] { return stopped.chunk.has_interrupted(); });
  std::cout << ", \"tag\": \"" << stopped.chunk.interrupted().tag() << "\"";
  stopped.Say(pieces);
  stopped.stream->WritesDone();
  stopped.First([&] { return stopped.chunk.has_summary(); });
  std::cout << ", \"turns\": " << stopped.chunk.summary().turns();

  GenerateConfig unknown = Config("nobody");
  unknown.set_request_id("dialogue");
  const google::rpc::Status missing = Call(unknown).Failure();
  google::rpc::RequestInfo info;
  for (const auto& detail : missing.details()) detail.UnpackTo(&info);
  std::cout << ", \"code\": " << missing.code() << ", \"request_id\": \"" << info.request_id() << "\"";

  GenerateConfig wrong = Config(voice);
  wrong.mutable_turn()->mutable_sampling()->set_cfg_value(99);
  const google::rpc::Status refused = Call(wrong).Failure();
  google::rpc::BadRequest fault;
  for (const auto& detail : refused.details()) detail.UnpackTo(&fault);
  std::cout << ", \"field\": \"" << fault.field_violations(0).field() << "\"}" << std::endl;
  std::_Exit(0);  // the streams that were not read to their ends are not waited for
}
