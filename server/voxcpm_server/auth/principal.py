"""The identity of a caller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, who owns voices and has quotas.

    name: its kind and its name, such as `key:billing`, `jwt:alice` or `cert:gateway`
    admin: True if it may see and change the voices of all principals and call VoxCPMAdminService
    """

    name: str
    admin: bool = False
