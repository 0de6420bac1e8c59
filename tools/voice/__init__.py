"""The recipe of the bundled voice, from text to a checkpoint; README.md has the commands in their order."""
