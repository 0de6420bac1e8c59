"""Voices: presets, uploads, the builder that encodes recordings, and the store that servers share."""
