"""For tests of realtime agents: a model that answers from a script, and a server that speaks the wire, both without a network.

`ScriptedRealtimeModel` takes the place of the model, in virtual time if you like; `LocalRealtimeServer` takes the place of the provider, on a real socket, and
does wrong what you ask it to (`Faults`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._extras import require
from quiesce._lazy import offer

require("msgspec", "agents", "quiesce.realtime.testing")

if TYPE_CHECKING:
    from .scripted import ScriptedRealtimeModel as ScriptedRealtimeModel
    from .server import Faults as Faults
    from .server import LocalRealtimeServer as LocalRealtimeServer
    from .speech import Speech as Speech

offer()
