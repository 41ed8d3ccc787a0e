"""The report of `quiesce exec`, as JSON, in a file that is replaced as a whole, or in what is no file."""

from __future__ import annotations

import errno
import os
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .front import Front


class Report:
    """Where the report goes: a path."""

    def __init__(self, text: str) -> None:
        """Open what is not an ordinary file: by the end, `/dev/fd/3` would be something else. Raises OSError."""
        self.path = path = Path(text).absolute()  # the command may not change our folder, but the guard does
        self._fd = -1
        path.parent.stat()
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            mode = stat.S_IFREG
        if path.is_symlink() or not stat.S_ISREG(mode):
            # Without O_NONBLOCK, a pipe that nobody reads is waited for.
            self._fd = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK, 0o666
            )
            os.set_blocking(self._fd, True)
        elif not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def write(
        self, argv: Sequence[str], front: Front, problem: str = "", exit_code: int | None = None
    ) -> None:
        """Write it. `problem`: the command could not be started. Raises OSError, and keeps the old content."""
        import json

        text = json.dumps(_data(argv, front, problem, exit_code), indent=2) + "\n"
        if self._fd >= 0:
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.ftruncate(self._fd, 0)
            with os.fdopen(self._fd, "w", encoding="utf-8") as opened:
                opened.write(text)
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _data(argv: Sequence[str], front: Front, problem: str, exit_code: int | None) -> dict[str, object]:
    status = front.status
    by_signal = status is not None and os.WIFSIGNALED(status)
    if status is not None and not by_signal:
        exit_code = os.waitstatus_to_exitcode(status)
    kind, message = front.reason or (None, None)
    return {
        "command": argv,
        **({"error": problem} if problem else {}),
        "exit_code": exit_code,
        "signal": name_of_signal(os.WTERMSIG(status)) if status is not None and by_signal else None,
        "reason": {"kind": kind, "message": message} if kind else None,
        "elapsed": round(front.seconds, 3),
        "killed": front.killed,
        "left": [
            {"kind": "process", "pid": proc.pid, "name": proc.describe(), "stuck_at": f"state {proc.state}"}
            for proc in front.left
        ],
        "unseen": [front.unseen] if front.unseen else [],
        "clean": not front.left and not front.unseen,
    }


def name_of_signal(number: int) -> str:
    """As `kill -l` has it."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, or one of the two that the C library keeps for itself
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else str(number)
