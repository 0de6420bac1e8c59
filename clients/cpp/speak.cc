// Speaks each line of stdin as it arrives, and writes WAV to stdout:
//   ./speak HOST:PORT VOICE < text.txt > speech.wav
// VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/error_details.h>

#include "google/rpc/error_details.pb.h"  // with these types linked, DebugString shows the details of a status
#include "google/rpc/status.pb.h"
#include "voxcpm_grpc/v1/tts.grpc.pb.h"

using namespace voxcpm_grpc::v1;

std::shared_ptr<grpc::ChannelCredentials> credentials() {
  const char* ca = std::getenv("VOXCPM_CLIENT_CA");
  if (!ca) return grpc::InsecureChannelCredentials();
  std::ifstream file(ca);
  return grpc::SslCredentials({std::string(std::istreambuf_iterator<char>(file), {}), "", ""});
}

int main(int argc, char** argv) {
  if (argc != 3) return std::cerr << "usage: speak HOST:PORT VOICE < text > wav\n", 2;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);  // notices a server that is gone
  arguments.SetMaxReceiveMessageSize(64 << 20);         // 4 MiB are too few for long latents
  auto stub = VoxCPMService::NewStub(grpc::CreateCustomChannel(argv[1], credentials(), arguments));
  grpc::ClientContext context;
  if (const char* key = std::getenv("VOXCPM_CLIENT_API_KEY"))
    context.AddMetadata("authorization", std::string("Bearer ") + key);
  auto stream = stub->Generate(&context);

  std::thread([&stream, voice = std::string(argv[2])] {
    GenerateRequest request;
    auto* config = request.mutable_config();
    config->mutable_conditioning()->set_voice(voice);
    config->mutable_turn()->mutable_sampling()->set_seed(7);  // the same seed and text give the same speech
    config->mutable_output()->set_encoding(AUDIO_ENCODING_WAV);
    stream->Write(request);
    for (std::string line; std::getline(std::cin, line);) {
      request.set_text(line + "\n");
      if (!stream->Write(request)) return;  // the call has ended; Finish has the reason
    }
    stream->WritesDone();  // the half-close: no more text. The server speaks the rest and ends the stream
  }).detach();

  for (AudioChunk chunk; stream->Read(&chunk);) std::cout << chunk.audio() << std::flush;  // every audio, in order
  const grpc::Status status = stream->Finish();
  if (!status.ok()) {
    google::rpc::Status details;
    grpc::ExtractErrorDetails(status, &details);
    std::cerr << status.error_message() << "\n" << details.DebugString();
  }
  std::_Exit(status.ok() ? 0 : 1);  // stdin may still be open
}
