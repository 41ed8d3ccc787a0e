"""Who may connect to a server, and what a handler can know about the client.

Every user of a machine can connect to a port on loopback, and everybody on the network to any other port. A
token keeps strangers out; TLS keeps the token from being read on the way. A socket in the file system needs
neither: the system says which user is on the other side.

Invariants
- A token is compared in constant time, before the handler sees anything of the connection.
- No client takes all connections: the number per address, or per user, is limited. Where a token is needed,
  clients that have not presented it are not counted with those that have. There is room for some of them, and
  a new one replaces the oldest, so that they cannot keep out clients with the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from quiesce._safe.printed import logger

if TYPE_CHECKING:
    from quiesce.kernel.inner import Backend

PER_PEER: Final = 256
STRANGERS: Final = 256  # connections that have not presented the token yet
SHORTEST_TOKEN: Final = 16
_LONGEST_LINE: Final = 4096
_SCHEME: Final = "bearer "
_SO_PEERCRED: Final[int | None] = getattr(socket, "SO_PEERCRED", None)  # on Linux

PeerKey: TypeAlias = "str | int"  # what connections are counted by: a network address, or a user


@dataclass(frozen=True, slots=True)
class Client:
    """Who is on the other side of a connection that a server accepted: `transport.client`.

    - `address`: where it comes from, for people to read.
    - `is_owner`: it runs as the same user; known only on a socket in the file system, where the system says
      so.
    - `has_token`: it has presented the server's token.
    - `is_remote`: it does not come from this machine's loopback.
    """

    address: str
    is_owner: bool = False
    has_token: bool = False
    is_remote: bool = False

    @property
    def is_known(self) -> bool:
        """Whether it is the owner, or has the owner's token."""
        return self.is_owner or self.has_token


class Admission:
    """What a server requires of its clients."""

    def __init__(
        self, *, token: str | None = None, owner_only: bool = False, per_peer: int = PER_PEER
    ) -> None:
        if token is not None and (not isinstance(token, str) or len(token) < SHORTEST_TOKEN):
            raise ValueError(
                f"a token must be a str of at least {SHORTEST_TOKEN} characters: "
                "secrets.token_urlsafe() makes one"
            )
        if isinstance(per_peer, bool) or not isinstance(per_peer, int) or per_peer < 1:
            raise ValueError(f"per_peer must be a whole number from 1 on, not {per_peer!r}")
        self._token = token.encode() if token is not None else None
        self._owner_only = owner_only
        self._per_peer = per_peer
        self._open: Counter[PeerKey] = Counter()
        self._complained: set[PeerKey] = set()

    @property
    def needs_token(self) -> bool:
        """Whether a client has to present a token."""
        return self._token is not None

    def accepts(self, shown: str | None) -> bool:
        """Whether this `Authorization` header has the token; always true if none is needed."""
        if self._token is None:
            return True
        given = shown[len(_SCHEME) :].strip() if shown and shown[: len(_SCHEME)].lower() == _SCHEME else ""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    # Connections

    def client_of(self, accepted: socket.socket, server: str) -> tuple[PeerKey, Client] | None:
        """Return who has connected; log it and return None if they may not."""
        key, client = _who(accepted)
        if self._owner_only and not client.is_owner:
            logger.warning("server %r refused a connection of another user (%s)", server, client.address)
            return None
        return key, client

    def count(self, key: PeerKey, client: Client, server: str) -> bool:
        """Count a connection until `forget`; log it and return False if its client has too many."""
        if self._open[key] >= self._per_peer:
            if key not in self._complained:
                self._complained.add(key)
                logger.warning(
                    "server %r has %d connections of %s, and takes no more of them",
                    server,
                    self._per_peer,
                    client.address,
                )
            return False
        self._open[key] += 1
        return True

    def forget(self, key: PeerKey) -> None:
        """Count a connection no longer, because it has ended."""
        self._open[key] -= 1
        if self._open[key] <= 0:
            del self._open[key]
            self._complained.discard(key)


def check_exposure(name: str, addresses: Sequence[Any], *, is_protected: bool, anyone: bool) -> None:
    """Raise PermissionError if strangers could use a server: off loopback, without both a token and TLS."""
    exposed = [str(address[0]) for address in addresses if not is_loopback(str(address[0]))]
    if exposed and not is_protected and not anyone:
        raise PermissionError(
            f"server {name!r} would listen at {', '.join(exposed)}, where others can reach it, without both a token "
            "and TLS: pass token= and ssl= (serve_websocket), listen on localhost, or pass anyone=True to let anybody "
            "connect"
        )


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _who(accepted: socket.socket) -> tuple[PeerKey, Client]:
    if accepted.family == getattr(socket, "AF_UNIX", None):
        user = _user_of(accepted)
        return user if user is not None else -1, Client(
            f"user {user}" if user is not None else "an unknown user", is_owner=user in (os.geteuid(), 0)
        )
    try:
        host, port = accepted.getpeername()[:2]
    except OSError:  # it has disconnected already
        return "", Client("a client that has disconnected")
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _network(host), Client(address, is_remote=not is_loopback(host))


def _network(host: str) -> str:
    """Return what to count a host by: its address; with IPv6, where a user has many, its network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback or address.ipv4_mapped is not None:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))


def _user_of(accepted: socket.socket) -> int | None:
    """Return the user on the other side of a socket in the file system; None if the system does not say."""
    try:
        if _SO_PEERCRED is not None:
            _, user, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, 12))
            return int(user)
        # LOCAL_PEERCRED of macOS and BSD: a `struct xucred`.
        version, user = struct.unpack("2I", accepted.getsockopt(0, 1, 76)[:8])
        return int(user) if version == 0 else None
    except (OSError, struct.error):
        return None


async def first_line(backend: Backend, accepted: socket.socket) -> str | None:
    """Read the first line of a client, and not a byte more; None if there is none, or it is too long."""
    line = bytearray()
    while len(line) < _LONGEST_LINE:
        await backend.wait_readable(accepted.fileno())
        try:
            seen = accepted.recv(_LONGEST_LINE, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            continue
        if not seen:
            return None
        end = seen.find(b"\n") + 1
        line += accepted.recv(end or len(seen))
        if end:
            return line.decode("utf-8", "replace").strip()
    return None
