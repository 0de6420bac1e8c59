// java @classpath Speak ADDRESS VOICE FILE PIECE... : the dialogue of test_dialogues.py, whose outcome it prints as JSON.
import com.google.rpc.BadRequest;
import com.google.rpc.RequestInfo;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.io.FileOutputStream;
import java.util.Arrays;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Predicate;
import voxcpm_grpc.v1.*;

public final class Speak {
  private static VoxCPMServiceGrpc.VoxCPMServiceStub stub;

  /** A stream whose replies, and at last an error or END, wait in a queue. */
  static final class Call implements StreamObserver<AudioChunk> {
    private static final Object END = new Object();
    private final BlockingQueue<Object> replies = new LinkedBlockingQueue<>();
    private final StreamObserver<GenerateRequest> requests = stub.generate(this);

    Call(GenerateConfig.Builder config) {
      requests.onNext(GenerateRequest.newBuilder().setConfig(config).build());
    }

    @Override
    public void onNext(AudioChunk chunk) {
      replies.add(chunk);
    }

    @Override
    public void onError(Throwable error) {
      replies.add(error);
    }

    @Override
    public void onCompleted() {
      replies.add(END);
    }

    Call say(String... pieces) {
      for (var piece : pieces) requests.onNext(GenerateRequest.newBuilder().setText(piece).build());
      return this;
    }

    /** The next chunk, or null after the last one. */
    AudioChunk next() throws InterruptedException {
      Object reply = replies.take();
      if (reply instanceof StatusRuntimeException) throw (StatusRuntimeException) reply;
      return reply == END ? null : (AudioChunk) reply;
    }

    AudioChunk first(Predicate<AudioChunk> wanted) throws InterruptedException {
      AudioChunk chunk = next();
      while (!wanted.test(chunk)) chunk = next();
      return chunk;
    }

    com.google.rpc.Status failure() throws InterruptedException {
      requests.onCompleted();
      try {
        while (next() != null) {}
      } catch (StatusRuntimeException error) {
        return StatusProto.fromThrowable(error);
      }
      throw new AssertionError("the call ended with OK");
    }
  }

  private static GenerateConfig.Builder config(String voice) {
    var config = GenerateConfig.newBuilder();
    config.getConditioningBuilder().setVoice(voice);
    return config;
  }

  public static void main(String[] args) throws Exception {
    var pieces = Arrays.copyOfRange(args, 3, args.length);
    var channel = Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create()).build();
    stub = VoxCPMServiceGrpc.newStub(channel);

    var call = new Call(config(args[1])).say(pieces);
    call.requests.onCompleted();
    AudioChunk chunk = call.next();
    long seed = chunk.getHeader().getSeed();
    long samples = 0;
    try (var file = new FileOutputStream(args[2])) {
      for (; chunk != null; chunk = call.next()) {
        chunk.getAudio().writeTo(file);
        if (chunk.hasSummary()) samples = chunk.getSummary().getTotalSamples();
      }
    }

    var largest = config(args[1]);
    largest.getTurnBuilder().getSamplingBuilder().setSeed(Long.MAX_VALUE);
    call = new Call(largest);
    call.requests.onCompleted();
    long largestSeed = call.next().getHeader().getSeed();

    call = new Call(config(args[1])).say((String.join("", pieces) + " ").repeat(20));
    call.first(some -> !some.getAudio().isEmpty());
    var interrupt = Interrupt.newBuilder().setTag("stop").setPlayedSamples(0);
    call.requests.onNext(GenerateRequest.newBuilder().setInterrupt(interrupt).build());
    String tag = call.first(AudioChunk::hasInterrupted).getInterrupted().getTag();
    call.say(pieces).requests.onCompleted();
    int turns = call.first(AudioChunk::hasSummary).getSummary().getTurns();

    var failure = new Call(config("nobody").setRequestId("dialogue")).failure();
    var requestId = "";
    for (var detail : failure.getDetailsList()) {
      if (detail.is(RequestInfo.class)) requestId = detail.unpack(RequestInfo.class).getRequestId();
    }
    var wrong = config(args[1]);
    wrong.getTurnBuilder().getSamplingBuilder().setCfgValue(99);
    var field = "";
    for (var detail : new Call(wrong).failure().getDetailsList()) {
      if (detail.is(BadRequest.class)) field = detail.unpack(BadRequest.class).getFieldViolations(0).getField();
    }

    System.out.printf("{\"seed\": \"%d\", \"samples\": %d, \"largest_seed\": \"%d\", ", seed, samples, largestSeed);
    System.out.printf("\"tag\": \"%s\", \"turns\": %d, \"code\": %d, ", tag, turns, failure.getCode());
    System.out.printf("\"request_id\": \"%s\", \"field\": \"%s\"}%n", requestId, field);
  }
}
