"""Messages between fronts and engines, and the sockets and processes that carry them. No PyTorch comes in."""
