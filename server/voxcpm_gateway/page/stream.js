/** The WebSocket of the gateway, see docs/websocket.md. One socket is one stream. */

const PATH = "v1/audio/stream";

export class Stream {
  /**
   * @param {object} config the first message, without its type
   * @param {(event: object) => void} onEvent for JSON events, and for {type: "audio", samples} and {type: "closed"}
   */
  constructor(config, onEvent) {
    const address = new URL(PATH, document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    this.onEvent = onEvent;
    this.socket = new WebSocket(address);
    this.socket.binaryType = "arraybuffer";
    this.outbox = [JSON.stringify({ type: "config", ...config })];
    this.open = true;
    this.failed = false;
    this.socket.onopen = () => {
      for (const message of this.outbox) this.socket.send(message);
      this.outbox = [];
    };
    this.socket.onmessage = ({ data }) => this.receive(data);
    this.socket.onclose = ({ code, reason }) => this.end(code, reason);
  }

  send(type, fields = {}) {
    const message = JSON.stringify({ type, ...fields });
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(message);
    else if (this.socket.readyState === WebSocket.CONNECTING) this.outbox.push(message);
  }

  receive(data) {
    if (data instanceof ArrayBuffer) {
      const integers = new Int16Array(data);
      const samples = new Float32Array(integers.length);
      for (let i = 0; i < integers.length; i++) samples[i] = integers[i] / 32768;
      this.onEvent({ type: "audio", samples });
      return;
    }
    const event = JSON.parse(data);
    if (event.type === "error") this.failed = true;
    if (event.type === "error" || event.type === "summary") this.open = false;
    this.onEvent(event);
  }

  end(code, reason) {
    const lost = this.open;
    this.open = false;
    if (lost && !this.failed) {
      const message = reason || `the connection to the gateway was lost (code ${code}); it may have ended`;
      this.onEvent({ type: "error", error: { message, request_id: "" } });
    }
    this.onEvent({ type: "closed" });
  }

  /** End the stream without an error. */
  close() {
    this.open = false;
    this.onEvent = () => {};
    this.socket.close(1000);
  }
}
