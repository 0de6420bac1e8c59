/** Recordings of the microphone, as WAV files. */

import { encodeWav, integers } from "./wav.js";

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
    return { blob: encodeWav(this.blocks.map(integers), sampleRate), seconds: this.frames / sampleRate };
  }
}
