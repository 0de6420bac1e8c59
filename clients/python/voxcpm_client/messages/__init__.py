"""Options and results as protobuf messages, and back. Nothing here calls a server."""
