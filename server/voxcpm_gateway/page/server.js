/** The gateway and the server behind it, as the page calls them: the key, the model, and the way back to a lost one. */

const KEY = "voxcpm-key"; // of the session storage
const FIRST_PAUSE_MS = 500; // before an attempt to reach the server again
const LONGEST_PAUSE_MS = 8000;
const STEADY_MS = 30_000; // after which a server that answers counts as one that stays

/**
 * Events: "ready" (the model is known), "missing" (detail: the name of the wanted model, which the server lacks), "away" and
 * "refused" (detail: the error).
 */
export class Server extends EventTarget {
  constructor() {
    super();
    this.model = null;
    this.wanted = ""; // name of the model to ask for; empty for the default one
    this.key = sessionStorage.getItem(KEY) ?? "";
    this.attempt = 0; // number of the newest attempt
    this.pause = FIRST_PAUSE_MS;
    this.awayAt = 0; // time of the last attempt to reach it again
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
    if (response.status === 502) error.code = "unavailable"; // of a proxy without the gateway
    throw Object.assign(new Error(error.message), error, { request_id: response.headers.get("x-request-id") });
  }

  /** Ask for the model, and look for the server if it does not answer. */
  async connect() {
    clearTimeout(this.timer);
    const attempt = ++this.attempt;
    try {
      const model = await this.describe();
      if (attempt !== this.attempt) return;
      this.model = model;
      this.dispatchEvent(new Event("ready"));
    } catch (error) {
      if (attempt !== this.attempt) return;
      const away = ["unavailable", "rate_limit_exceeded"].includes(error.code);
      this.dispatchEvent(new CustomEvent(away ? "away" : "refused", { detail: error }));
    }
  }

  /** The wanted model, or the default one of a server that has no model of that name. */
  async describe() {
    const address = "page/model.json";
    const { wanted } = this;
    const query = wanted && `?model=${encodeURIComponent(wanted)}`;
    const response = await this.request(`${address}${query}`).catch((error) => {
      if (error.code !== "model_not_found") throw error;
      if (this.wanted === wanted) this.miss();
      return this.request(address);
    });
    return response.json();
  }

  /** Want the default model from now on. */
  miss() {
    const { wanted } = this;
    this.wanted = "";
    this.dispatchEvent(new CustomEvent("missing", { detail: wanted }));
  }

  /** The options that choose the model, of a server that has several. */
  get modelOptions() {
    return this.model?.models.length > 1 ? { model: this.model.model } : {};
  }

  /** Try to reach a lost server again, after a pause that grows. */
  look() {
    clearTimeout(this.timer);
    if (performance.now() - this.awayAt > STEADY_MS) this.pause = FIRST_PAUSE_MS;
    this.awayAt = performance.now();
    this.timer = setTimeout(() => this.connect(), this.pause);
    this.pause = Math.min(LONGEST_PAUSE_MS, 2 * this.pause);
  }
}
