"""The services of a port, and the server that serves them."""
