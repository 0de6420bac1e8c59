"""The engines of a model as a front sees them: choice, calls, moves and estimates. No PyTorch comes in."""
