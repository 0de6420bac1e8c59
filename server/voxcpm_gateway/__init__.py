"""The HTTP gateway: an ASGI application that is a client of a VoxCPM server and knows nothing else of it."""
