"""Kernels that only Qwen3-TTS can use, because they know how it draws codes."""
