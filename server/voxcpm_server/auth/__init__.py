"""The identity of callers: API keys, JSON web tokens and client certificates."""
