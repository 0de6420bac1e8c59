# ruby speak.rb ADDRESS VOICE FILE PIECE... : the dialogue of test_dialogues.py, whose outcome it prints as JSON.
$LOAD_PATH.unshift File.join(__dir__, "gen")
require "google/protobuf/well_known_types"
require "google/rpc/error_details_pb"
require "json"
require "voxcpm_grpc/v1/tts_services_pb"

V1 = VoxcpmGrpc::V1
address, voice, file, *pieces = ARGV
STUB = V1::VoxCPMService::Stub.new(address, :this_channel_is_insecure)

# Replies to requests that are pushed to a queue, until nil closes it.
def start(config)
  queue = Queue.new << V1::GenerateRequest.new(config: config)
  [queue, STUB.generate(Enumerator.new { |sent| while (request = queue.pop) do sent << request end })]
end

def say(queue, *pieces)
  pieces.each { |piece| queue << V1::GenerateRequest.new(text: piece) }
end

def details(config, kind)
  queue, replies = start(config)
  queue << nil
  replies.to_a
  raise "the call ended with OK"
rescue GRPC::BadStatus => error
  [error.code, error.to_rpc_status.details.find { |detail| detail.is(kind) }.unpack(kind)]
end

conditioning = {voice: voice}
queue, replies = start({conditioning: conditioning})
say(queue, *pieces)
queue << nil
chunks = replies.to_a
File.binwrite(file, chunks.map(&:audio).join)
outcome = {seed: chunks.first.header.seed.to_s, samples: chunks.last.summary.total_samples}

queue, replies = start({conditioning: conditioning, turn: {sampling: {seed: 2**63 - 1}}})
queue << nil
outcome[:largest_seed] = replies.to_a.first.header.seed.to_s

queue, replies = start({conditioning: conditioning})
say(queue, "#{pieces.join} " * 20)
heard = false
replies.each do |chunk|
  if !heard && !chunk.audio.empty?
    heard = true
    queue << V1::GenerateRequest.new(interrupt: {tag: "stop", played_samples: 0})
  elsif chunk.interrupted
    outcome[:tag] = chunk.interrupted.tag
    say(queue, *pieces)
    queue << nil
  end
  outcome[:turns] = chunk.summary.turns if chunk.summary
end

outcome[:code], info = details({request_id: "dialogue", conditioning: {voice: "nobody"}}, Google::Rpc::RequestInfo)
outcome[:request_id] = info.request_id
_, fault = details({turn: {sampling: {cfg_value: 99}}}, Google::Rpc::BadRequest)
outcome[:field] = fault.field_violations.first.field
puts outcome.to_json
