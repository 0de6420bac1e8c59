/** The playback in the audio thread of the browser. */

import { Playback } from "./playback.js";

const REPORT_SECONDS = 0.02;

class PlaybackProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.playback = new Playback(sampleRate);
    this.nextReport = 0;
    this.wasActive = false;
    this.port.onmessage = ({ data }) => {
      const answer = this.playback.handle(data, currentTime);
      if (answer) this.port.postMessage(answer);
      this.nextReport = 0;
    };
  }

  process(_, outputs) {
    const channels = outputs[0];
    this.playback.fill(channels[0], currentTime);
    for (const other of channels.slice(1)) other.set(channels[0]);
    const active = this.playback.playing || this.playback.buffered > 0;
    if (currentTime >= this.nextReport && (active || this.wasActive || !this.nextReport)) {
      this.port.postMessage({ type: "report", at: currentTime, ...this.playback.report });
      this.nextReport = currentTime + REPORT_SECONDS;
      this.wasActive = active;
    }
    return true;
  }
}

registerProcessor("playback", PlaybackProcessor);
