/** The gateway and the server behind it, as the page calls them: the key, the model, and the way back to a lost one. */

const KEY = "voxcpm-key"; // of the session storage
const FIRST_PAUSE_MS = 500; // between attempts to reach the server
const LONGEST_PAUSE_MS = 8000;

/** Events: "ready" (the model is known), "away" (the server cannot be reached), "refused" (detail: the error). */
export class Server extends EventTarget {
  constructor() {
    super();
    this.model = null;
    this.key = sessionStorage.getItem(KEY) ?? "";
    this.attempt = 0; // number of the attempts in progress; 0 for none
    addEventListener("online", () => this.attempt && this.try());
  }

  use(key) {
    this.key = key;
    sessionStorage.setItem(KEY, key);
  }

  /** The response to a request. Raises an Error with the fields of the gateway's error. */
  async request(path, options = {}) {
    const headers = { ...options.headers, ...(this.key && { authorization: `Bearer ${this.key}` }) };
    const address = new URL(path, document.baseURI);
    const response = await fetch(address, { ...options, headers }).catch((error) => {
      throw Object.assign(new Error(error.message), { code: "unavailable" });
    });
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    const error = body.error ?? { message: `status ${response.status}`, type: "server_error" };
    if (response.status === 502) error.code = "unavailable"; // a proxy without the gateway
    throw Object.assign(new Error(error.message), error, { request_id: response.headers.get("x-request-id") });
  }

  /** Ask for the model until the server answers. */
  connect() {
    this.pause = FIRST_PAUSE_MS;
    return this.try();
  }

  async try() {
    const attempt = (this.attempt = this.attempt + 1);
    clearTimeout(this.timer);
    try {
      const model = await (await this.request("page/model.json")).json();
      if (attempt !== this.attempt) return;
      this.model = model;
      this.attempt = 0;
      this.dispatchEvent(new Event("ready"));
    } catch (error) {
      if (attempt !== this.attempt) return;
      if (["unavailable", "rate_limit_exceeded"].includes(error.code)) {
        this.dispatchEvent(new Event("away"));
        this.timer = setTimeout(() => this.try(), this.pause);
        this.pause = Math.min(LONGEST_PAUSE_MS, 2 * this.pause);
      } else {
        this.attempt = 0;
        this.dispatchEvent(new CustomEvent("refused", { detail: error }));
      }
    }
  }
}
