"""A normaliser of tests."""

from __future__ import annotations

from collections.abc import Mapping


class Reader:
    """Replaces parts of the text, as a normaliser does."""

    def __init__(self, readings: Mapping[str, str]) -> None:
        self._readings = readings

    async def normalize(self, text: str, language: str = "") -> str:
        for part, reading in self._readings.items():
            text = text.replace(part, reading)
        return text
