"""The interface of the backends of LocalAI."""
