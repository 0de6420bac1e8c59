"""Addresses, proxies, origins and credentials as people write them. Nothing here opens a connection."""
