"""A network namespace with nothing but loopback, for this process and all that it will start; and who is in it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
NOWHERE = ("192.0.2.1", 9)  # an address that is reserved for documentation


def enter() -> None:
    """Be alone with loopback; OSError if that is not possible here. Only in a process with one thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET):
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"no network namespace can be made here: {os.strerror(code)}")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        try:
            control.connect(NOWHERE)
        except OSError as error:
            if error.errno != errno.ENETUNREACH:
                raise
        else:
            raise OSError("the new network namespace has a way out")


def everybody() -> Iterator[tuple[int, str]]:
    """The living processes of this namespace, but for this one, with their command lines; and this one's dead
    children.
    """
    here = os.readlink("/proc/self/ns/net")
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            if pid == os.getpid():
                continue
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == os.getpid():
                yield pid, "zombie"
            elif state != "Z" and os.readlink(path / "ns" / "net") == here:
                yield pid, (path / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
        except OSError:
            continue  # gone meanwhile
