"""The asyncio gRPC server. Importing it never imports torch: engines live in processes of their own."""
