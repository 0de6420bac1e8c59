"""Qwen3-TTS at 12 Hz: a talker, a predictor of the other codes, and a streaming codec."""
