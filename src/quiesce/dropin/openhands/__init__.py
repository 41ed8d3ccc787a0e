"""openhands-sdk, where what is stopped has ended: `from quiesce.dropin.openhands import Conversation`.

Put `quiesce.dropin.` before `openhands` in your imports. Everything is the SDK's, except `Conversation` and
`LocalConversation` in `sdk`. Those have the same arguments as the SDK's.

- `interrupt()`, a cancel, a timeout and Ctrl-C stop a run: the model's answer, tools and their processes.
- `close()` stops everything that the conversation has started, and returns a report. `aclose()` is for async code.
- A conversation has a `report`: what the end of the last run has stopped, and what is left.
- In a tool, `quiesce.current_token()` is cancelled when the run is stopped.

The modules whose names begin with an underscore are ours; all other names are left to the SDK.
"""

from __future__ import annotations

from quiesce.dropin.handing import Release, hand_through

hand_through(__name__, "openhands", Release("openhands-sdk", at_least="1.50", below="1.59"))

from .sdk import Conversation as Conversation
from .sdk import LocalConversation as LocalConversation
