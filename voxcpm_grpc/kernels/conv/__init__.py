"""Causal convolutions with memory, for any streaming codec."""
