"""The trace of the caller, which the server continues."""

from __future__ import annotations

import sys

Metadata = tuple[tuple[str, str], ...]


def with_trace(metadata: Metadata) -> Metadata:
    """The metadata of a call, with the context of OpenTelemetry's current span, if the program uses it.

    Names that the metadata has already stay as they are.
    """
    if "opentelemetry.trace" not in sys.modules:  # then no span can be current
        return metadata
    from opentelemetry import propagate, trace

    if not trace.get_current_span().get_span_context().is_valid:
        return metadata
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    given = {name for name, _ in metadata}
    return metadata + tuple((name.lower(), value) for name, value in carrier.items() if name.lower() not in given)
