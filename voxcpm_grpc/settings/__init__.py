"""All settings: their schema, and the file, environment and flags they come from."""
