"""The step of VoxCPM from hidden states to a patch: diffusion, local transformers and their fast forms."""
