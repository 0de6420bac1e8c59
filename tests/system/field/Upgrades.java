// java Upgrades.java HOST:PORT : speaks with java.net.http as it is by default, which offers h2c with each request.
// Prints a line for each call: its name, the status, and the SHA-256 of the body.

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.WebSocket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;

public class Upgrades {
    static final String SPEECH =
            "{\"input\": \"The train arrived ten minutes late.\", \"voice\": \"miles\", \"seed\": 7, \"response_format\": \"pcm\"}";

    static HttpClient client = HttpClient.newHttpClient();

    public static void main(String[] arguments) throws Exception {
        String host = arguments[0];
        URI speech = URI.create("http://" + host + "/v1/audio/speech");
        send("string", HttpRequest.newBuilder(speech), BodyPublishers.ofString(SPEECH));
        send("again", HttpRequest.newBuilder(speech), BodyPublishers.ofString(SPEECH));
        send("chunked", HttpRequest.newBuilder(speech), BodyPublishers.ofInputStream(
                () -> new ByteArrayInputStream(SPEECH.getBytes(StandardCharsets.UTF_8))));
        send("expect", HttpRequest.newBuilder(speech).expectContinue(true), BodyPublishers.ofString(SPEECH));
        send("old", HttpRequest.newBuilder(speech).version(HttpClient.Version.HTTP_1_1), BodyPublishers.ofString(SPEECH));
        HttpResponse<String> models = client.send(
                HttpRequest.newBuilder(URI.create("http://" + host + "/v1/models")).build(), BodyHandlers.ofString());
        print("models", models.statusCode(), models.body().substring(0, 16).getBytes(StandardCharsets.UTF_8));
        socket(URI.create("ws://" + host + "/v1/audio/stream"));
    }

    static void send(String name, HttpRequest.Builder request, BodyPublisher body) throws Exception {
        request.header("content-type", "application/json").POST(body);
        HttpResponse<byte[]> response = client.send(request.build(), BodyHandlers.ofByteArray());
        print(name, response.statusCode(), response.body());
    }

    static void print(String name, int status, byte[] body) throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(body);
        System.out.println(name + " " + status + " " + HexFormat.of().formatHex(digest));
    }

    /** Speaks the same through the WebSocket, and prints the code of its close as the status. */
    static void socket(URI address) throws Exception {
        ByteArrayOutputStream audio = new ByteArrayOutputStream();
        CompletableFuture<Integer> closed = new CompletableFuture<>();
        WebSocket socket = client.newWebSocketBuilder().buildAsync(address, new WebSocket.Listener() {
            @Override
            public CompletionStage<?> onBinary(WebSocket socket, ByteBuffer data, boolean last) {
                byte[] bytes = new byte[data.remaining()];
                data.get(bytes);
                audio.writeBytes(bytes);
                socket.request(1);
                return null;
            }

            @Override
            public CompletionStage<?> onClose(WebSocket socket, int code, String reason) {
                closed.complete(code);
                return null;
            }

            @Override
            public void onError(WebSocket socket, Throwable error) {
                closed.completeExceptionally(error);
            }
        }).get();
        for (String message : new String[] {
            "{\"type\": \"config\", \"voice\": \"miles\", \"seed\": 7, \"sample_rate\": 24000, \"max_wait\": 0}",
            "{\"type\": \"text\", \"text\": \"The train arrived ten minutes late.\"}",
            "{\"type\": \"finish\"}"
        }) {
            socket.sendText(message, true).get();
        }
        int code = closed.get();
        print("socket", code, audio.toByteArray());
    }
}
