"""Calls to a provider over HTTP: streaming, retries, deadlines and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .clients import make_http_client
    from .deadline import CallDeadline, took_too_long
    from .errors import Endpoint, bad_parameter, of_event
    from .exchange import Exchange
    from .provider_model import ProviderModel
    from .reader import CallSoFar, Reader, as_json, number, part
    from .retry import FIRST_PAUSE, LONGEST_PAUSE

offer()
