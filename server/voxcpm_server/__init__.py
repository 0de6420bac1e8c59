"""The asyncio gRPC server. Importing it never imports torch, because engines run in their own processes."""
