"""What a process inherits from whoever starts it: put in order, so that the tests are the same however they are started.

A signal that is ignored or blocked stays so in every program that is started from there: `nohup` ignores SIGHUP, a shell
without job control ignores SIGINT and SIGQUIT in what it runs in the background, and a supervisor may leave others. Tests
send such signals to themselves and to the programs they start. How a program behaves that was started so is a test's
own matter: it starts one.
"""

from __future__ import annotations

import signal

KEPT_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}  # by every Python, which gives them back to what it starts


def put_in_order() -> None:
    """Every signal has the effect that it has in a program started at a terminal."""
    for number in signal.valid_signals() - KEPT_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
