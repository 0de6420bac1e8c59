"""LoRA adapters that admins register while a server runs."""
