"""The methods of ACP, and the conversion of messages to and from bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .codec import decode, encode, from_dict, to_dict
    from .dispatch import answer_of, caller, decoder, handler_of
    from .elicitation import mode_of, request_of
    from .interfaces import Agent, Client
    from .meta import AGENT_METHODS, CLIENT_METHODS, PROTOCOL_VERSION
    from .methods import AGENT, CLIENT, Method

offer()
