"""The codec of Qwen3-TTS: decoder, encoder, and the encoder of speakers. Nothing here knows requests."""
