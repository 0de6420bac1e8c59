"""The kernels of Qwen3-TTS."""
