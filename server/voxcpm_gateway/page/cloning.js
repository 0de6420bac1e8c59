/** A voice from a recording: a file or the microphone, its words, and the consent of its speaker. */

import { microphoneFault } from "./errors.js";
import { Recorder } from "./recorder.js";

const VOICES = "v1/audio/voices";
const SHORTEST_SECONDS = 2; // of a recording that gives a good voice
const MOST_RECORDED_SECONDS = 30;
const $ = (id) => document.getElementById(id);

/** Event "stored" (detail: the voice). Event "failure" (detail: the error). */
export class Cloning extends EventTarget {
  /**
   * @param {Server} server
   * @param {(text: string) => void} announce
   */
  constructor(server, announce) {
    super();
    Object.assign(this, { server, announce });
    this.recording = null; // {blob, base64, seconds}
    this.recorder = null;
    this.styles = true; // until the model is known
    for (const input of document.querySelectorAll("[name=mode]")) input.addEventListener("change", () => this.show());
    for (const id of ["consent", "transcript", "voice-name"]) $(id).addEventListener("input", () => this.show());
    $("file").addEventListener("change", () => this.takeFile());
    $("record").addEventListener("click", () => this.toggleRecording());
    $("save").addEventListener("click", () => this.save());
    $("record").disabled = !Recorder.isPossible;
    $("no-microphone").hidden = Recorder.isPossible;
    this.show();
  }

  fail(error) {
    this.dispatchEvent(new CustomEvent("failure", { detail: error }));
  }

  /** Offer what the model takes from a recording. */
  describe({ voice_kinds: kinds, styles }) {
    const modes = [...document.querySelectorAll("[name=mode]")];
    const offered = modes.filter(({ value }) => kinds.includes(value));
    for (const input of modes) input.closest("label").hidden = !offered.includes(input);
    if (offered.length && !offered.some(({ checked }) => checked)) offered[0].checked = true;
    $("modes").hidden = offered.length < 2;
    this.styles = styles;
    this.show();
  }

  get mode() {
    return document.querySelector("[name=mode]:checked").value;
  }

  get mostSeconds() {
    return Math.min(MOST_RECORDED_SECONDS, this.server.model?.max_recording_seconds || MOST_RECORDED_SECONDS);
  }

  show() {
    const needsTranscript = this.mode !== "reference";
    $("transcript-field").hidden = !needsTranscript;
    $("clone-style-field").hidden = needsTranscript || !this.styles;
    const problem = this.problem();
    $("save").disabled = Boolean(problem) || !$("voice-name").value.trim();
    $("clone-hint").textContent = problem ?? "Ready. Press Speak to use the recording without storing it.";
  }

  /** The reason why the recording cannot be used; null if it can. */
  problem() {
    if (!this.recording) return "Choose a file or record a few seconds.";
    if (this.mode !== "reference" && !$("transcript").value.trim()) return "Write the words of the recording.";
    if (!$("consent").checked) return "The speaker must have agreed: tick the box.";
    return null;
  }

  /** The options of a stream. Throws an Error with the reason if something is missing. */
  options() {
    const problem = this.problem();
    if (problem) throw new Error(problem);
    const audio = this.recording.base64;
    const transcript = `${$("transcript").value.trim()} `; // the text follows without a separator
    const style = this.styles ? $("clone-style").value.trim() : "";
    switch (this.mode) {
      case "reference":
        return { reference: { audio }, ...(style && { style }) };
      case "prompt":
        return { prompt: { audio, transcript } };
      default:
        return { prompt: { audio, transcript }, reference: { audio } };
    }
  }

  async takeFile() {
    const [file] = $("file").files;
    if (!file) return;
    const most = this.server.model?.max_recording_bytes ?? Infinity;
    if (file.size > most) {
      const mebibytes = (size) => (size / 2 ** 20).toFixed(1);
      this.fail(new Error(`The file has ${mebibytes(file.size)} MiB; the limit is ${mebibytes(most)} MiB. Choose a shorter one.`));
      $("file").value = "";
      return;
    }
    await this.use(file, null);
  }

  async toggleRecording() {
    if (this.recorder) {
      await this.finishRecording();
      return;
    }
    this.recorder = new Recorder(
      this.mostSeconds,
      (seconds, level) => {
        $("record-time").textContent = `${seconds.toFixed(1)} s`;
        $("level").value = level;
      },
      () => this.finishRecording(),
    );
    try {
      await this.recorder.start();
    } catch (error) {
      this.recorder = null;
      this.fail(new Error(microphoneFault(error)));
      return;
    }
    $("record").setAttribute("aria-pressed", "true");
    $("record-label").textContent = "Stop recording";
    $("recording-meter").hidden = false;
    this.announce("Recording.");
  }

  async finishRecording() {
    const recorder = this.recorder;
    if (!recorder) return;
    this.recorder = null;
    const { blob, seconds } = await recorder.stop();
    $("record").setAttribute("aria-pressed", "false");
    $("record-label").textContent = "Record";
    $("recording-meter").hidden = true;
    $("file").value = "";
    await this.use(blob, seconds);
    this.announce(`Recorded ${seconds.toFixed(1)} seconds.`);
  }

  async use(blob, seconds) {
    this.recording = { blob, base64: await toBase64(blob), seconds };
    URL.revokeObjectURL($("recording").src);
    $("recording").src = URL.createObjectURL(blob);
    $("recording").hidden = false;
    $("recording").onloadedmetadata = () => {
      const length = seconds ?? $("recording").duration;
      $("recording-length").textContent =
        length < SHORTEST_SECONDS ? `${length.toFixed(1)} s: short, 5 to 15 s are better.` : `${length.toFixed(1)} s`;
    };
    this.show();
  }

  async save() {
    const form = new FormData();
    form.append("audio_sample", this.recording.blob, this.recording.blob.name ?? "recording.wav");
    form.append("name", $("voice-name").value.trim());
    form.append("consent", `confirmed on the web page, ${new Date().toISOString().slice(0, 10)}`);
    for (const [name, value] of Object.entries(this.server.modelOptions)) form.append(name, value);
    if (this.mode !== "reference") form.append("ref_text", $("transcript").value.trim());
    $("save").disabled = true;
    try {
      const voice = await (await this.server.request(VOICES, { method: "POST", body: form })).json();
      this.dispatchEvent(new CustomEvent("stored", { detail: voice }));
    } catch (error) {
      this.fail(error);
    }
    this.show();
  }
}

function toBase64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
