"""The summary of a server that its log shows when it is ready."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit, urlunsplit

from voxcpm_grpc import __version__
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.settings.schema import Settings
from voxcpm_server.models import Models

ANSWER_SECONDS = 1.0  # seconds for the sizes of an engine


class ServerSummary(LogLine):
    """A message of several lines as text, one for each of its fields. It has no secrets."""

    def __str__(self) -> str:
        width = max(map(len, self.fields))
        lines = (
            f"  {name.replace('_', ' '):{width}}  {value:,}" if isinstance(value, int) else f"  {name:{width}}  {value}"
            for name, value in self.fields.items()
            if value is not None
        )
        return "\n".join((self.event, *lines))


async def summary(
    settings: Settings,
    models: Models,
    *,
    address: str,
    metrics: str | None,
    admin: str | None,
    http: str | None,
    voices: str,
) -> ServerSummary:
    """The summary of a server that is ready.

    address, metrics, admin, http: of the service, the metrics, the admin service and HTTP; None for those that are off
    voices: the URL of the voice store
    """
    replicas = [replica for model in models for replica in model.pool.replicas if replica.ready]
    await asyncio.gather(*(replica.refresh_stats(ANSWER_SECONDS) for replica in replicas))
    found = [replica.stats.stats for replica in replicas if replica.stats]
    presets = ", ".join(
        f"{name} (default)" if name == model.catalog.default else name
        for model in models
        for name in model.catalog.presets
    )
    positions = sum(stats.pages_total * stats.page_size for stats in found)
    return ServerSummary(
        f"voxcpm-grpc {__version__} is ready",
        address=address + _fronts(settings),
        tls=_tls(settings),
        authentication=_authentication(settings),
        model="; ".join(f"{one.name}, {one.info.architecture}, {one.info.dtype}" for one in models),
        devices=", ".join(replica.info.device for replica in replicas if replica.info),
        slots=sum(replica.info.max_slots for replica in replicas if replica.info),
        kv_positions=positions or None,
        voices=public(voices),
        presets=presets or "none",
        metrics="off" if metrics is None else f"http://{metrics}/metrics",
        admin="off" if admin is None else admin,
        http="off" if http is None else f"http://{http}",
        traces=public(settings.tracing.endpoint or "off"),
    )


def _fronts(settings: Settings) -> str:
    if not settings.several_fronts:
        return ""
    return f", {settings.fronts} processes on {'this port' if settings.fronts_share_port else 'consecutive ports'}"


def _tls(settings: Settings) -> str:
    if settings.tls.cert is None:
        return "off"
    return "certificates of both sides" if settings.tls.client_ca else "certificate of the server"


def _authentication(settings: Settings) -> str:
    auth = settings.auth
    kinds = []
    if auth.keys:
        kinds.append(f"API keys of {auth.keys}")
    if auth.jwks:
        kinds.append(f"JSON web tokens, keys of {public(auth.jwks)}")
    if settings.tls.client_ca and not kinds:
        kinds.append("client certificates")
    return " and ".join(kinds) or "off"


def public(url: str) -> str:
    """A URL without what may be secret: its user, password, query and fragment."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
