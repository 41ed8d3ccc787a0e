"""`openhands.sdk`, with conversations that have ended when they are stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.dropin.handing import hand_through

hand_through(__name__, "openhands.sdk")

from ._conversation import Conversation as Conversation
from ._conversation import LocalConversation as LocalConversation

if TYPE_CHECKING:  # among its names are deprecated ones, which warn when they are looked up
    from openhands.sdk import *  # type: ignore[assignment, unused-ignore]
    from ._conversation import Conversation as Conversation
    from ._conversation import LocalConversation as LocalConversation
