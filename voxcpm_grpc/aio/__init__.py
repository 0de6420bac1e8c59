"""Queues, tasks, threads and loops of asyncio. Nothing here knows speech, engines or gRPC."""
