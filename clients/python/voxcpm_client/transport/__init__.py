"""The channel to a server: target, security, deadlines, retries, status. Nothing here knows speech."""
