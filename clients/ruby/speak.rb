# Speaks each line of stdin as it arrives, and writes WAV to stdout:
#   ruby speak.rb HOST:PORT VOICE < text.txt > speech.wav
# VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
$LOAD_PATH.unshift File.join(__dir__, "gen")
require "google/rpc/error_details_pb"
require "voxcpm_grpc/v1/tts_services_pb"

V1 = VoxcpmGrpc::V1 # not `include VoxcpmGrpc::V1`: Interrupt is also the exception that Ctrl-C raises
address, voice = ARGV
ca, key = ENV.values_at("VOXCPM_CLIENT_CA", "VOXCPM_CLIENT_API_KEY")
security = ca ? GRPC::Core::ChannelCredentials.new(File.read(ca)) : :this_channel_is_insecure
stub = V1::VoxCPMService::Stub.new(
  address, security,
  channel_args: {
    "grpc.keepalive_time_ms" => 60_000, # notices a server that is gone
    "grpc.max_receive_message_length" => 64 << 20 # 4 MiB are too few for long latents
  }
)

requests = Enumerator.new do |sent| # read in a thread of its own; its end is the half-close
  sent << V1::GenerateRequest.new(config: {
    conditioning: {voice: voice},
    turn: {sampling: {seed: 7}}, # the same seed and text give the same speech; without it, the server draws one
    output: {encoding: :AUDIO_ENCODING_WAV}
  })
  $stdin.each_line { |line| sent << V1::GenerateRequest.new(text: line) }
end

$stdout.binmode.sync = true
begin
  stub.generate(requests, metadata: key ? {"authorization" => "Bearer #{key}"} : {}).each do |chunk|
    $stdout.write(chunk.audio) # every audio, in order
  end
rescue GRPC::BadStatus => error
  warn "#{error.class}: #{error.details}"
  error.to_rpc_status&.details&.each do |detail|
    name = detail.type_url.split("/").last
    kind = Google::Protobuf::DescriptorPool.generated_pool.lookup(name)
    warn "#{name} #{kind&.msgclass&.decode(detail.value)&.to_h}"
  end
  exit 1
end
