"""Speech from engines on this host for Python programs, without a server."""
