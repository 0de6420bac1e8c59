"""Pearson's chi-square test of draws against the probabilities of their values."""

from __future__ import annotations

import math

import numpy as np
import torch


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, int]:
    """The statistic, and its degrees of freedom. Ids that are expected less than 5 times count together."""
    expected = probabilities.astype(float) / probabilities.sum() * counts.sum()
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    found = np.append(counts[~rare], counts[rare].sum())
    used = expected > 0
    return float((((found - expected) ** 2)[used] / expected[used]).sum()), int(used.sum()) - 1


def quantile(degrees: int, significance: float) -> float:
    """The value that a chi-square statistic exceeds with this probability, by Wilson and Hilferty."""
    if not degrees:
        return 1e-9
    z = -_normal_quantile(significance)
    part = 2 / (9 * degrees)
    return degrees * (1 - part + z * math.sqrt(part)) ** 3


def _normal_quantile(share: float) -> float:
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))
