"""Differences of 16-bit audio between runs of one model on one machine, in units of the last bit."""

ALONE = 4  # two calls that are alone: 1e-4, and the rounding to 16 bits
IN_A_BATCH = 330  # beside other streams a rounding of the quantizer may flip: docs/official-package.md
