/** Passes the samples of the microphone to the page, in blocks of 50 ms. */

class RecorderProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Float32Array(Math.round(sampleRate / 20));
    this.filled = 0;
  }

  process(inputs) {
    for (const sample of inputs[0][0] ?? []) {
      this.block[this.filled++] = sample;
      if (this.filled === this.block.length) {
        this.port.postMessage(this.block.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("recorder", RecorderProcessor);
