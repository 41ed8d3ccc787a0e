"""For tests of realtime agents: a model that answers from a script, and a server that speaks the wire, both without a network.

`ScriptedRealtimeModel` takes the place of the model, in virtual time if you like; `LocalRealtimeServer` takes the place of the provider, on a real socket, and
does wrong what you ask it to (`Faults`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce._extras import require

require("msgspec", "agents", "quiesce.realtime.testing")

from ._faults import Faults  # noqa: E402
from ._scripted import ScriptedRealtimeModel  # noqa: E402
from ._speech import Speech  # noqa: E402

if TYPE_CHECKING:
    from ._server import LocalRealtimeServer

__all__ = ["Faults", "LocalRealtimeServer", "ScriptedRealtimeModel", "Speech"]


def __getattr__(name: str) -> Any:
    if name == "LocalRealtimeServer":  # needs websockets, which a scripted model does not
        from ._server import LocalRealtimeServer

        return LocalRealtimeServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
