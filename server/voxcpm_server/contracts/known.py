"""The contracts of other servers that a server may serve. Only those that are chosen are imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from voxcpm_grpc.settings.contracts import ContractSettings
from voxcpm_server.services.contract import Contract


def _google(settings: ContractSettings) -> Contract:
    from voxcpm_server.contracts.google.service import CONTRACT

    return CONTRACT


def _localai(settings: ContractSettings) -> Contract:
    from voxcpm_server.contracts.localai.service import contract

    return contract(settings.localai_folder)


def _riva(settings: ContractSettings) -> Contract:
    from voxcpm_server.contracts.riva.service import CONTRACT

    return CONTRACT


KNOWN: Mapping[str, Callable[[ContractSettings], Contract]] = {"google": _google, "localai": _localai, "riva": _riva}
"""The contracts by their names in the setting contracts.enabled."""


def contracts(settings: ContractSettings) -> tuple[Contract, ...]:
    """The contracts that the settings choose. Raises StartupError."""
    return tuple(KNOWN[name](settings) for name in dict.fromkeys(settings.enabled))
