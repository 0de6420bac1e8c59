"""The terminal and the connection of a command, for all commands."""
