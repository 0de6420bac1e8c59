"""Cuts text into the segments that a model speaks at once. Nothing here knows streams."""
