"""The audio codec of VoxCPM, plain and fast. Nothing here knows requests."""
