"""For tests of realtime agents, without a network: a model that answers from a script, and a local server.

`ScriptedRealtimeModel` replaces the model, also in virtual time. `LocalRealtimeServer` replaces the provider,
on a real socket, and misbehaves as you ask it to (`Faults`).
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
