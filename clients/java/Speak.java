// Speaks each line of stdin as it arrives, and writes WAV to stdout:
//   java @classpath Speak HOST:PORT VOICE < text.txt > speech.wav
// VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
import static java.nio.charset.StandardCharsets.UTF_8;

import com.google.protobuf.TextFormat;
import com.google.protobuf.TypeRegistry;
import com.google.rpc.ErrorDetailsProto;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.*;
import java.util.concurrent.TimeUnit;
import voxcpm_grpc.v1.*;

public final class Speak implements StreamObserver<AudioChunk> {
  @Override
  public void onNext(AudioChunk chunk) {
    var audio = chunk.getAudio().toByteArray();
    System.out.write(audio, 0, audio.length); // every audio, in order
  }

  @Override
  public void onError(Throwable error) {
    System.err.println(error.getMessage());
    var details = TypeRegistry.newBuilder().add(ErrorDetailsProto.getDescriptor().getMessageTypes()).build();
    System.err.println(TextFormat.printer().usingTypeRegistry(details).printToString(StatusProto.fromThrowable(error)));
    System.exit(1);
  }

  @Override
  public void onCompleted() {
    System.exit(0); // stdin may still be open
  }

  public static void main(String[] args) throws Exception {
    var ca = System.getenv("VOXCPM_CLIENT_CA");
    var key = System.getenv("VOXCPM_CLIENT_API_KEY");
    ChannelCredentials security = InsecureChannelCredentials.create();
    if (ca != null) security = TlsChannelCredentials.newBuilder().trustManager(new File(ca)).build();
    var headers = new Metadata();
    if (key != null) headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + key);
    ManagedChannel channel = Grpc.newChannelBuilder(args[0], security)
        .keepAliveTime(60, TimeUnit.SECONDS) // notices a server that is gone
        .maxInboundMessageSize(64 << 20) // 4 MiB are too few for long latents
        .intercept(MetadataUtils.newAttachHeadersInterceptor(headers))
        .build();
    StreamObserver<GenerateRequest> requests = VoxCPMServiceGrpc.newStub(channel).generate(new Speak());

    var config = GenerateConfig.newBuilder();
    config.getConditioningBuilder().setVoice(args[1]);
    config.getTurnBuilder().getSamplingBuilder().setSeed(7); // without it, the server draws one
    config.getOutputBuilder().setEncoding(AudioEncoding.AUDIO_ENCODING_WAV);
    requests.onNext(GenerateRequest.newBuilder().setConfig(config).build());
    var lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
    for (String line; (line = lines.readLine()) != null; ) {
      requests.onNext(GenerateRequest.newBuilder().setText(line + "\n").build());
    }
    requests.onCompleted(); // the half-close: no more text. The server speaks the rest and ends the stream
    Thread.currentThread().join(); // onCompleted and onError end the program
  }
}
