"""A warning about servers that anybody on the network can use or overhear."""

from __future__ import annotations

from voxcpm_grpc.network.addresses import is_loopback, is_unix
from voxcpm_grpc.settings.schema import Settings


def exposure(settings: Settings) -> str:
    """The fault of a server that other hosts reach without TLS or without authentication; empty if there is none.

    It covers the port of the service, that of the admin service and that of HTTP.
    """
    faults = (_grpc_exposure(settings), _http_exposure(settings))
    return "; ".join(fault for fault in faults if fault)


def _http_exposure(settings: Settings) -> str:
    """The gateway has no TLS of its own, and no client certificates."""
    listen = settings.http.listen
    if listen is None or is_local(listen):
        return ""
    open_to_all = (
        "" if settings.auth.keys or settings.auth.jwks else ", and without authentication (auth.keys or auth.jwks)"
    )
    return f"{listen} (http.listen) is open to other hosts without encryption (a proxy with TLS){open_to_all}"


def _grpc_exposure(settings: Settings) -> str:
    admin = settings.admin.listen
    exposed = [] if is_local(settings.listen) else [settings.listen]
    if admin is not None and not is_local(admin):
        exposed.append(f"{admin} (admin.listen)")
    if not exposed:
        return ""
    missing = []
    if settings.tls.cert is None:
        missing.append("encryption (tls.cert and tls.key)")
    if not (settings.auth.keys or settings.auth.jwks or settings.tls.client_ca):
        missing.append("authentication (auth.keys, auth.jwks or tls.client_ca)")
    if not missing:
        return ""
    verb = "are" if len(exposed) > 1 else "is"
    return f"{' and '.join(exposed)} {verb} open to other hosts without {' and without '.join(missing)}"


def is_local(listen: str) -> bool:
    """True if only programs of this host can reach an address such as 127.0.0.1:50051, [::1]:0 or unix:/run/x."""
    if is_unix(listen):
        return True
    return is_loopback(listen.rpartition(":")[0].strip("[]"))
