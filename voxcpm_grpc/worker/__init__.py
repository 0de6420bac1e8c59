"""The process around an engine: commands in, results and heartbeats out. No gRPC comes in."""
