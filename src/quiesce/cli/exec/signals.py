"""The signals that we get, with who has sent them.

What the terminal sends, and what somebody sends with `kill`, mean different things: Ctrl-C is for the command
alone, which may handle it and go on; `kill -INT` asks us to stop. A handler of Python's does not learn the
difference. So the signals stay blocked, and are read from a descriptor, which `poll` can wait for.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

SENT_BY_KERNEL = 0x80  # SI_KERNEL: a terminal is the only one in it that sends SIGINT, SIGHUP and the like
_BYTES_OF_A_SET = 128  # `sigset_t`, in glibc and musl
_RECORD = struct.Struct("=Iii116x")  # the first fields of `struct signalfd_siginfo`: number, errno, code


class Signals:
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
