"""The HTTP clients under the official ones, where we make them ourselves."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

MOST_CONNECTIONS = 1000
MOST_KEPT = 100


def make_http_client(default: Any, keeps_connections: bool) -> Any:
    """An HTTP client with an official client's own defaults, which keeps connections between calls or does not.

    Which HTTP library that is depends on the official client's version: it is the one that its default comes from.
    """
    library = default.__mro__[1].__module__.partition(".")[0]
    limits = import_module(library).Limits(
        max_connections=MOST_CONNECTIONS,
        max_keepalive_connections=MOST_KEPT if keeps_connections else 0,
    )
    return default(limits=limits, verify=_certificates(library))


@cache
def _certificates(library: str) -> Any:
    """Whom to trust. Reading that takes a tenth of a second, and would be done for every client anew."""
    make = getattr(import_module(library), "create_ssl_context", None)
    return True if make is None else make()
