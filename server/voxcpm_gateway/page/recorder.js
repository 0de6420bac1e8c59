/** Recordings of the microphone, as WAV files. */

/** Records until `stop` is called, or for `mostSeconds`. */
export class Recorder {
  /**
   * @param {number} mostSeconds
   * @param {(seconds: number, level: number) => void} onProgress length so far, and the newest peak, 0 to 1
   * @param {() => void} onFull at the end of `mostSeconds`
   */
  constructor(mostSeconds, onProgress, onFull) {
    this.mostSeconds = mostSeconds;
    this.onProgress = onProgress;
    this.onFull = onFull;
    this.blocks = [];
    this.frames = 0;
  }

  static get isPossible() {
    return Boolean(navigator.mediaDevices?.getUserMedia && window.AudioWorkletNode);
  }

  /** Ask for the microphone and start. Raises the browser's error if there is none, or if the user says no. */
  async start() {
    const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    this.microphone = await navigator.mediaDevices.getUserMedia({ audio });
    this.context = new AudioContext();
    await this.context.audioWorklet.addModule(new URL("recorder-worklet.js", import.meta.url));
    const node = new AudioWorkletNode(this.context, "recorder", { numberOfOutputs: 0 });
    node.port.onmessage = ({ data }) => this.add(data);
    this.context.createMediaStreamSource(this.microphone).connect(node);
    await this.context.resume();
  }

  add(block) {
    if (this.isFull) return;
    this.blocks.push(block);
    this.frames += block.length;
    let peak = 0;
    for (const sample of block) peak = Math.max(peak, Math.abs(sample));
    this.onProgress(this.frames / this.context.sampleRate, peak);
    if (this.isFull) this.onFull();
  }

  get isFull() {
    return this.frames >= this.mostSeconds * this.context.sampleRate;
  }

  /** Stop, and release the microphone. Returns the recording. */
  async stop() {
    for (const track of this.microphone.getTracks()) track.stop();
    const { sampleRate } = this.context;
    await this.context.close();
    return { blob: wav(this.blocks, this.frames, sampleRate), seconds: this.frames / sampleRate };
  }
}

/** A WAV file of 16-bit samples. */
function wav(blocks, frames, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * frames));
  const write = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + 2 * frames, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, 2 * frames, true);
  let at = 44;
  for (const block of blocks) {
    for (const sample of block) {
      view.setInt16(at, 32767 * Math.max(-1, Math.min(1, sample)), true);
      at += 2;
    }
  }
  return new Blob([view], { type: "audio/wav" });
}
