"""Recordings on their way to a server."""
