"""The configuration of a checkpoint and of its codec, read and checked. No network is built here."""
