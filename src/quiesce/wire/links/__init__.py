"""Links: frames in both directions over bytes, with buffers, backpressure and an orderly end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .admission import (
        PER_PEER,
        SHORTEST_TOKEN,
        STRANGERS,
        Admission,
        Client,
        PeerKey,
        check_exposure,
        first_line,
    )
    from .async_close import ClosingChannel
    from .channel_link import Channel, ChannelLink
    from .descriptors import DescriptorChannel, SocketTransport, descriptor_link, socket_link
    from .link import CHUNK, Link, Receiver
    from .selector_link import SelectorLink, hung_up
    from .transport import ChannelTransport, Transport, as_transport

offer()
