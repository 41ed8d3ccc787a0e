"""`Client` of mcp 2.x: a transport and a session in one."""

from __future__ import annotations

from mcp import Client as _Client

from quiesce.dropin.handing import replaces
from quiesce.dropin.owned import OwnedClass


@replaces(_Client)
class Client(OwnedClass, _Client):
    """A client that any task may close; a server that it has started ends with it, with its whole tree."""
