"""`agents.realtime`, with sessions whose `close()` waits for what they have started."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "agents.realtime")

from ._sessions import RealtimeRunner as RealtimeRunner
from ._sessions import RealtimeSession as RealtimeSession
from agents.realtime import *  # type: ignore[assignment, unused-ignore]
from ._sessions import RealtimeRunner as RealtimeRunner
from ._sessions import RealtimeSession as RealtimeSession
