"""Attention and the writes of its KV cache, for any transformer."""
