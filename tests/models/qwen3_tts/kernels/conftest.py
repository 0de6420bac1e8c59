"""The fixtures of tests of kernels."""

from support.engines.kernels import agree, compiles, device, poisoned_outputs, replays_equal_calls, target

__all__ = ["agree", "compiles", "device", "poisoned_outputs", "replays_equal_calls", "target"]
