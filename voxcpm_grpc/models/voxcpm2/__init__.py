"""VoxCPM2: two language models over text and latent patches, a local diffusion transformer, a streaming codec."""
