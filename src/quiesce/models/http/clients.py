"""The HTTP clients that the official clients use, where quiesce makes them itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

MOST_CONNECTIONS = 1000
MOST_IDLE = 100


def make_http_client(default: Any, keeps_connections: bool) -> Any:
    """Make an HTTP client with the defaults of an official client, which keeps connections between calls or does not.

    `default` is the official client's own HTTP client class. Which HTTP library that comes from depends
    on the official client's version.
    """
    # `default` is a subclass that the official package defines; its first base is the client class of the HTTP library.
    library = default.__mro__[1].__module__.partition(".")[0]
    limits = import_module(library).Limits(
        max_connections=MOST_CONNECTIONS,
        max_keepalive_connections=MOST_IDLE if keeps_connections else 0,
    )
    return default(limits=limits, verify=_certificates(library))


@cache
def _certificates(library: str) -> Any:
    """Return the trusted certificates. Loading them takes a tenth of a second, so all clients share one context."""
    make = getattr(import_module(library), "create_ssl_context", None)
    return True if make is None else make()
