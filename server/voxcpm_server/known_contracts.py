"""The contracts of other servers that a server may serve. Only those that are chosen are imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from voxcpm_server.rpc.contract import Contract


def _google() -> Contract:
    from voxcpm_server.contracts.google.service import CONTRACT

    return CONTRACT


def _riva() -> Contract:
    from voxcpm_server.contracts.riva.service import CONTRACT

    return CONTRACT


KNOWN: Mapping[str, Callable[[], Contract]] = {"google": _google, "riva": _riva}
"""By the name in the setting contracts.enabled."""


def contracts(names: Iterable[str]) -> tuple[Contract, ...]:
    """The contracts of these names, each once."""
    return tuple(KNOWN[name]() for name in dict.fromkeys(names))
