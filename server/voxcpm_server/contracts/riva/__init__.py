"""The interface of NVIDIA Riva for speech synthesis."""
