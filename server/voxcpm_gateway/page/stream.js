/** The WebSocket of the gateway, see docs/websocket.md. One socket is one stream. */

const PATH = "v1/audio/stream";
const MESSAGE_CHARACTERS = 64 << 10; // the gateway limits a message
/** The code of the error of a stream whose connection ended before the stream did. */
export const LOST = "connection_lost";

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

  /** Send a text of any length. The gateway joins characters that are cut in two. */
  sendText(text) {
    for (let at = 0; at < text.length; at += MESSAGE_CHARACTERS) {
      this.send("text", { text: text.slice(at, at + MESSAGE_CHARACTERS) });
    }
  }

  receive(data) {
    if (data instanceof ArrayBuffer) {
      this.onEvent({ type: "audio", samples: new Int16Array(data) });
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
      this.onEvent({ type: "error", error: { code: LOST, message: `close code ${code} ${reason}` } });
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
