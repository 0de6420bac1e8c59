"""The quotas of callers, which hold for all fronts together."""

from __future__ import annotations

import msgspec

from voxcpm_server.rpc.fronts import Fronts
from voxcpm_server.speech.character_quota import CharacterQuotas

TOPIC = "characters"  # of messages between fronts


def character_quotas(per_minute: int, fronts: Fronts | None) -> CharacterQuotas | None:
    """The quotas of text, which callers share among all fronts; None without a limit.

    Each front keeps the buckets, and takes what the others spend from its own. A front that is restarted begins with
    full ones.
    """
    if not per_minute:
        return None
    if fronts is None:
        return CharacterQuotas(per_minute)
    quotas = CharacterQuotas(per_minute, lambda *spent: fronts.send_others(TOPIC, msgspec.msgpack.encode(spent)))
    fronts.receive(TOPIC, lambda body: quotas.take(*msgspec.msgpack.decode(body, type=tuple[str, int])))
    return quotas
