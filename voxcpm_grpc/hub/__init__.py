"""Downloads of checkpoints from the Hugging Face Hub, and the digests of their files. No model is read here."""
