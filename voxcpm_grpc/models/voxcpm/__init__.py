"""VoxCPM of all generations: language models over text and latents, a diffusion transformer, a streaming codec."""
