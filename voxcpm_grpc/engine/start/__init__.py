"""The parts of an engine's start: its device, its memory, compilation, warm-up. Nothing here runs while streams do."""
