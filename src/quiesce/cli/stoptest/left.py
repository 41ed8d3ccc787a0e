"""What a program left: processes, what they listen on, and files in its folder for temporary files."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from quiesce._safe.printed import printed_line
from quiesce.kernel.inner import procfs

_LISTENS = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}  # the state, as /proc/net has it
_MOST_FILES = 1000


def processes(found: list[procfs.Proc]) -> list[str]:
    """The processes in words, with what they listen on."""
    listening = _listening_sockets()
    lines = []
    for proc in found:
        sockets = sorted({listening[inode] for inode in _sockets_of(proc.pid) if inode in listening})
        lines.append(proc.describe() + (f", listens on {', '.join(sockets)}" if sockets else ""))
    return lines


def files(folder: Path) -> list[str]:
    """The files below a folder that was empty when the program was started."""
    found: list[str] = []
    for where, folders, names in os.walk(folder):
        found += [_describe(Path(where, name), folder) for name in names]
        if not folders and not names and Path(where) != folder:
            found.append(_describe(Path(where), folder))
        if len(found) > _MOST_FILES:
            break
    return sorted(found)


def _describe(path: Path, folder: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except OSError:
        mode = 0
    kind = "socket" if stat.S_ISSOCK(mode) else "folder" if stat.S_ISDIR(mode) else "file"
    return f"{kind} {printed_line(path.relative_to(folder))}"


def _listening_sockets() -> dict[str, str]:
    """The inodes of all sockets that are listened on, with their addresses."""
    found = {}
    for table, state in _LISTENS.items():
        for fields in _rows(f"/proc/net/{table}"):
            if fields[3] == state:
                found[fields[9]] = f"{'UDP ' if table.startswith('udp') else ''}{_address(fields[1])}"
    for fields in _rows("/proc/net/unix"):
        if len(fields) > 7 and int(fields[3], 16) & 0x10000:  # __SO_ACCEPTCON
            found[fields[6]] = printed_line(fields[7])
    return found


def _rows(path: str) -> Iterator[list[str]]:
    try:
        lines = Path(path).read_text(errors="replace").splitlines()[1:]
    except OSError:
        return
    yield from (line.split() for line in lines)


def _address(text: str) -> str:
    """`0100007F:1F90` as `127.0.0.1:8080`: the address is in 32-bit words of the machine's byte order."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[place : place + 8])[::-1] for place in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    shown = socket.inet_ntop(family, b"".join(words))
    return f"{shown if len(words) == 1 else f'[{shown}]'}:{int(port, 16)}"


def _sockets_of(pid: int) -> Iterator[str]:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]
