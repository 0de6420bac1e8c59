"""Products with the LoRA adapters of each row."""
