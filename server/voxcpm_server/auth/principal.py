"""The identity of a caller, and what it may do with voices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, who owns voices and has quotas.

    name: its kind and its name, such as `key:billing`, `jwt:alice` or `cert:gateway`
    admin: True if it may see and change the voices of all principals
    """

    name: str
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a call, as far as shares and voices are concerned.

    Voices belong to the principal that stores them. Those of an admin, and those that were stored without
    authentication, have no owner: everyone sees them.

    key: stands for the caller in the shares of streams, uploads and voices: its principal, or its address
    principal: owns the voices that the caller stores; empty for an admin and without authentication
    admin: True if the caller sees and may change all voices
    """

    key: str
    principal: str = ""
    admin: bool = False

    @classmethod
    def of(cls, principal: Principal | None, address: str) -> Caller:
        """The caller of a principal, or the one at an address if callers have no identity."""
        if principal is None:
            return cls(address)
        return cls(principal.name, "" if principal.admin else principal.name, principal.admin)

    @property
    def may_administer(self) -> bool:
        """True for admins, and for everyone if callers have no identity."""
        return self.admin or not self.principal

    def sees(self, owner: str) -> bool:
        """True if the caller may use the voices of this owner."""
        return self.admin or owner in ("", self.principal)

    def owns(self, owner: str) -> bool:
        """True if the voices of this owner are the caller's own."""
        return owner == self.principal

    def may_change(self, owner: str) -> bool:
        """True if the caller may change and delete the voices of this owner."""
        return self.admin or self.owns(owner)


OPERATOR = Caller("operator", admin=True)
"""The operator of the server, who adds the presets."""
