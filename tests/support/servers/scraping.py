"""Pages for Prometheus, as tests compare them."""

from __future__ import annotations

import re
import urllib.request

from support.servers.waiting import HANG_SECONDS


def scraped(url: str) -> dict[str, float]:
    """The samples of a page, by their names with labels as the page has them, such as `up{engine="a"}`."""
    with urllib.request.urlopen(url, timeout=HANG_SECONDS) as page:
        lines = page.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def total(samples: dict[str, float], name: str, **labels: str) -> float:
    """The sum of the samples of a name that have all of these labels."""
    wanted = {f'{label}="{value}"' for label, value in labels.items()}
    found = ((re.match(r"(\w+)(?:\{(.*)\})?$", key), value) for key, value in samples.items())
    return sum(value for key, value in found if key and key[1] == name and wanted <= set((key[2] or "").split(",")))
