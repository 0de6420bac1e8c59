/** The dialog with programs that send the same request. */

import { copy } from "./clipboard.js";
import { client, curl, grpcurl, KEY_VARIABLE, MOST_HTTP_CHARACTERS, openai } from "./snippets.js";

const PROGRAMS = { curl, openai, client, grpcurl };
const BY_HTTP = ["curl", "openai"];
const $ = (id) => document.getElementById(id);

export class Code {
  /** @param {() => Request} request of now, see snippets.js. It throws an Error if its options are incomplete. */
  constructor(request) {
    this.request = request;
    for (const input of document.querySelectorAll("[name=program]")) input.addEventListener("change", () => this.show());
    $("code-copy").addEventListener("click", () => this.copy());
    $("code-close").addEventListener("click", () => $("code-dialog").close());
  }

  open() {
    this.shown = this.request();
    this.show();
    $("code-dialog").showModal();
  }

  get program() {
    return document.querySelector("[name=program]:checked").value;
  }

  show() {
    $("code-text").textContent = PROGRAMS[this.program](this.shown);
    $("code-notes").replaceChildren(
      ...this.notes().map((text) => Object.assign(document.createElement("p"), { textContent: text })),
    );
    $("code-copied").textContent = "";
  }

  notes() {
    const { text, options, keyed, grpc } = this.shown;
    const byHttp = BY_HTTP.includes(this.program);
    return [
      !text.trim() && "The page has no text yet: this program would have nothing to speak.",
      keyed && `The program takes your key from the variable ${KEY_VARIABLE}; the key itself is not shown.`,
      (options.prompt || options.reference) && "Save your recording as recording.wav beside the program.",
      byHttp && options.prompt && options.reference && "Over HTTP the speech continues the recording; only gRPC also takes it as reference.",
      byHttp && text.length > MOST_HTTP_CHARACTERS && `One request by HTTP takes ${MOST_HTTP_CHARACTERS} characters; send longer texts in parts, or by gRPC.`,
      !byHttp && !grpc.known && "The page does not know the gRPC address of the server: ask its operator.",
      this.program === "grpcurl" && "It needs grpcurl and jq.",
      this.program === "client" && "It needs the package voxcpm-grpc.",
      this.program === "openai" && "It needs the package openai.",
    ].filter(Boolean);
  }

  async copy() {
    const done = await copy($("code-text").textContent);
    $("code-copied").textContent = done ? "Copied." : "Select the text and copy it: the browser does not let the page do it.";
  }
}
