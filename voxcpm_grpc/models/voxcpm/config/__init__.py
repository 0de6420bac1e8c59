"""The configuration of a checkpoint, read and checked. No torch."""
