"""Stored voices as objects under a URL, which several servers share. No recording is read here."""
