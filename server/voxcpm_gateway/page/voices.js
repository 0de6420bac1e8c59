/** The voice of the speech: stored voices, a description, or a recording. */

import { Recorder } from "./recorder.js";

const VOICES = "v1/audio/voices";
const SHORTEST_SECONDS = 2; // of a recording that gives a good voice
const MOST_RECORDED_SECONDS = 30;
const $ = (id) => document.getElementById(id);

export class Voices {
  /**
   * @param {(path: string, options?: object) => Promise<Response>} fetch with the key of the caller
   * @param {(text: string) => void} announce
   * @param {(error: {message: string}) => void} fail
   */
  constructor(fetch, announce, fail) {
    Object.assign(this, { fetch, announce, fail });
    this.recording = null; // {blob, base64, seconds}
    this.recorder = null;
    for (const input of document.querySelectorAll("[name=source]")) input.addEventListener("change", () => this.show());
    for (const input of document.querySelectorAll("[name=mode]")) input.addEventListener("change", () => this.show());
    for (const id of ["consent", "transcript", "voice-name"]) $(id).addEventListener("input", () => this.show());
    $("voice").addEventListener("change", () => this.show());
    $("file").addEventListener("change", () => this.takeFile());
    $("record").addEventListener("click", () => this.toggleRecording());
    $("save").addEventListener("click", () => this.save());
    $("delete").addEventListener("click", () => this.remove());
    $("record").disabled = !Recorder.isPossible;
    $("no-microphone").hidden = Recorder.isPossible;
    this.show();
  }

  get source() {
    return document.querySelector("[name=source]:checked").value;
  }

  get mode() {
    return document.querySelector("[name=mode]:checked").value;
  }

  configure(model) {
    this.model = model;
    this.mostSeconds = Math.min(MOST_RECORDED_SECONDS, model.max_recording_seconds || MOST_RECORDED_SECONDS);
  }

  /** Show the list of voices again. */
  async load(chosen = $("voice").value) {
    const response = await this.fetch(VOICES);
    const { voices } = await response.json();
    const presets = new Set(this.model.presets);
    const isPreset = (voice) => voice.preset ?? presets.has(voice.id);
    const option = ({ name, value }) => new Option(name, value);
    const stored = voices.flatMap((voice) => choices(voice, isPreset(voice)));
    const group = (label, found) => {
      const element = document.createElement("optgroup");
      element.label = label;
      element.append(...found);
      return found.length ? [element] : [];
    };
    const fallback = this.model.default_voice ? `Default (${this.model.default_voice})` : "Default";
    $("voice").replaceChildren(
      new Option(fallback, ""),
      ...group(
        "Presets",
        voices.filter(isPreset).map(({ name, id }) => option({ name, value: id })),
      ),
      ...group("Stored voices", stored.map(option)),
      ...group("No recording", [new Option("The model chooses", "\0none")]),
    );
    this.stored = new Set(stored.map(({ value }) => value));
    $("voice").value = chosen;
    if ($("voice").selectedIndex < 0) $("voice").value = "";
    this.show();
  }

  show() {
    for (const source of ["list", "describe", "clone"]) $(`source-${source}`).hidden = this.source !== source;
    const needsTranscript = this.mode !== "reference";
    $("transcript-field").hidden = !needsTranscript;
    $("clone-style-field").hidden = needsTranscript;
    const problem = this.problem();
    $("save").disabled = Boolean(problem) || !$("voice-name").value.trim();
    $("clone-hint").textContent = problem ?? "Ready. Press Speak to use the recording without storing it.";
    $("delete").hidden = !this.stored?.has($("voice").value);
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
    if (this.source === "list") {
      const voice = $("voice").value;
      return voice === "\0none" ? { no_voice: true } : voice ? { voice } : {};
    }
    if (this.source === "describe") {
      const style = $("style").value.trim();
      if (!style) throw new Error("Describe the voice first, or choose one from the list.");
      return { style };
    }
    const problem = this.problem();
    if (problem) throw new Error(problem);
    const audio = this.recording.base64;
    const transcript = `${$("transcript").value.trim()} `; // the text follows without a separator
    const style = $("clone-style").value.trim();
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
    if (this.model && file.size > this.model.max_recording_bytes) {
      const mebibytes = (size) => (size / 2 ** 20).toFixed(1);
      this.fail({
        message: `The file has ${mebibytes(file.size)} MiB; the limit is ${mebibytes(this.model.max_recording_bytes)} MiB.`,
      });
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
      this.mostSeconds ?? MOST_RECORDED_SECONDS,
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
      this.fail({ message: `The microphone cannot be used: ${error.message}` });
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
    if (this.mode !== "reference") form.append("ref_text", $("transcript").value.trim());
    $("save").disabled = true;
    try {
      const voice = await (await this.fetch(VOICES, { method: "POST", body: form })).json();
      document.querySelector("[name=source][value=list]").checked = true;
      await this.load(choices(voice).find(({ name }) => name === voice.name).value);
      $("voice").focus();
      this.announce(`Stored ${voice.name}.`);
    } catch (error) {
      this.fail(error);
    }
    this.show();
  }

  async remove() {
    const { value, selectedOptions } = $("voice");
    if (!confirm(`Delete the voice ${selectedOptions[0].text} from the server?`)) return;
    try {
      await this.fetch(`${VOICES}/${encodeURIComponent(value)}`, { method: "DELETE" });
      await this.load("");
      this.announce("Deleted.");
    } catch (error) {
      this.fail(error);
    }
  }
}

/** The names of a stored voice: the only one stands for its id, and each of several ones for itself. */
function choices(voice, preset = false) {
  const names = (voice.names ?? []).map(({ name }) => name).slice(preset ? 1 : 0); // the first is that of the preset
  return names.length > 1 || preset
    ? names.map((name) => ({ name, value: name }))
    : [{ name: voice.name, value: voice.id }];
}

function toBase64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
