"""Text as the token ids of VoxCPM."""
