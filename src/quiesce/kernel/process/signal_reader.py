"""The signals that we get, with who has sent them.

What the terminal sends, and what somebody sends with `kill`, mean different things to a process that runs another
one: Ctrl-C has reached both, `kill -INT` only one of them. A handler of Python's does not learn the difference.
So the signals stay blocked, and are read from a descriptor, which `poll` can wait for.

Linux only. Imported by programs that must start quickly: import only small modules of the standard library here.
"""

from __future__ import annotations

import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

SENT_BY_KERNEL = 0x80  # SI_KERNEL: a terminal is the only one in it that sends SIGINT, SIGHUP and the like
# What a terminal sends to all of its foreground. SIGHUP is not one of these: it may come to the session's leader alone.
FROM_TERMINAL = (
    (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH) if hasattr(signal, "SIGTSTP") else ()
)
# Not for another process: a fault is ours alone, and the last two stop a background process that uses the terminal.
_OURS_ALONE = (
    *(
        "SIGKILL",
        "SIGSTOP",
        "SIGPIPE",
        "SIGSEGV",
        "SIGBUS",
        "SIGFPE",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGSYS",
    ),
    *("SIGTTIN", "SIGTTOU"),
)
OURS_ALONE = frozenset(int(getattr(signal, name)) for name in _OURS_ALONE if hasattr(signal, name))
_BYTES_OF_A_SET = 128  # `sigset_t`, in glibc and musl
_RECORD = struct.Struct("=Iii116x")  # the first fields of `struct signalfd_siginfo`: number, errno, code


class SignalReader:
    """These signals, which have to be blocked, as a descriptor to read them from."""

    def __init__(self, numbers: Collection[int]) -> None:
        import ctypes

        words = (ctypes.c_ulong * (_BYTES_OF_A_SET // ctypes.sizeof(ctypes.c_ulong)))()
        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        for number in numbers:
            words[(number - 1) // bits] |= 1 << (number - 1) % bits
        library = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = library.signalfd(-1, words, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def read(self) -> Iterator[tuple[int, bool]]:
        """Those that have come: the number, and whether the kernel has sent it. Does not block."""
        while True:
            try:
                records = os.read(self.descriptor, 32 * _RECORD.size)
            except BlockingIOError:
                return
            for number, _, code in _RECORD.iter_unpack(records):
                yield number, code == SENT_BY_KERNEL
