"""VoxCPM speech over gRPC: the library. Importing it never imports torch."""

__version__ = "0.1.0"
