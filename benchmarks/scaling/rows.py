"""Rows of the table: one for each server and count of fronts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.capacity.conditions import device_count
from benchmarks.scaling import usage
from benchmarks.scaling.usage import RoleUsage, Sample
from benchmarks.serving import rows

BUSY = 0.9  # share of the time that a thread at its limit runs, at least
FULL = 0.95  # share of all cores, or of a GPU's time, that is used at the limit, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One server at saturation.

    host_cores: cores of the host that worked, of `host_cores_there`. gpu_share: utilization of its GPUs, 0 to 1.
    """

    devices: str
    device_count: int
    fronts: int
    load: rows.Row
    uses: dict[str, RoleUsage]
    host_cores: float
    host_cores_there: int
    gpu_share: float | None
    limit: str


def limit(uses: dict[str, RoleUsage], host_share: float, gpu_share: float | None) -> str:
    """The part that limits a server.

    Clients and fronts come before the GPUs: a GPU is also busy with a small batch while its other streams wait for
    them.
    """
    if host_share >= FULL:
        return "the host's cores"
    for role in ("clients", "fronts"):
        if uses[role].busiest_thread >= BUSY:
            return role
    if gpu_share is not None and gpu_share >= FULL:
        return "GPUs"
    return "not seen"


def efficiencies(measured: Sequence[Row]) -> list[float]:
    """The audio per device of each row, over that of the best row with the fewest devices."""
    each = [row.load.audio_s_per_s / row.device_count for row in measured]
    fewest = min(row.device_count for row in measured)
    best = max(rate for row, rate in zip(measured, each, strict=True) if row.device_count == fewest)
    return [rate / best for rate in each]


def row(devices: str, fronts: int, load: rows.Row, samples: Sequence[Sample]) -> Row:
    uses = usage.usage(samples[0], samples[-1])
    cores, there = usage.host_cores(samples[0], samples[-1]), os.cpu_count() or 1
    numbers = [part.removeprefix("cuda:") for part in devices.split(",")]
    share = usage.gpu_share(samples, [int(number) for number in numbers if number.isdecimal()])
    return Row(
        devices=devices,
        device_count=device_count(devices),
        fronts=fronts,
        load=load,
        uses=uses,
        host_cores=cores,
        host_cores_there=there,
        gpu_share=share,
        limit=limit(uses, cores / there, share),
    )


def line(row: Row) -> str:
    """A row under the HEADINGS of `serving.rows`."""
    uses = ", ".join(f"{role} {use.cores:.1f} cores ({use.busiest_thread:.2f})" for role, use in row.uses.items())
    return f"{rows.line(row.load)}  devices {row.devices}, fronts {row.fronts}: {uses}, limit: {row.limit}"


def table(measured: Sequence[Row], capacities: Sequence[Mapping[str, Any]], *, together: bool) -> dict[str, Any]:
    """The part of the table that holds the rows. together: all servers ran at the same time."""
    shares = zip(measured, efficiencies(measured), strict=True)
    return {
        "together": together,
        "rows": [asdict(row) | {"efficiency": share} for row, share in shares],
        "capacities": list(capacities),
    }
