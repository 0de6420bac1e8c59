"""Engines on a Ray cluster, which carries their messages."""
