"""What a process inherits from whoever starts it, put in order: tests are the same however they are started.

A signal that is ignored or blocked stays so in every program that is started from there: `nohup` ignores SIGHUP, a shell
without job control ignores SIGINT and SIGQUIT in what it runs in the background, and a supervisor may leave others. Tests
send such signals to themselves and to the programs they start. Variables about the terminal, the language and the network
change what programs write and whom they reach. The workers of xdist inherit what is put in order here, their encoding too.

A test about a program that was started otherwise starts one so.
"""

from __future__ import annotations

import os
import signal

KEPT_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}  # by every Python, which gives them back to what it starts

TERMINAL = ("COLORTERM", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "PYTHON_COLORS", "TTY_COMPATIBLE")
NETWORK = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL")
PYTHON = (
    "PYTHONASYNCIODEBUG",
    "PYTHONCOERCECLOCALE",
    "PYTHONDEVMODE",
    "PYTHONINSPECT",
    "PYTHONIOENCODING",
    "PYTHONOPTIMIZE",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
    "PYTHONWARNINGS",
)


def put_in_order() -> None:
    """Signals, their mask and the environment as in a program that was started at a plain terminal."""
    for number in signal.valid_signals() - KEPT_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for name in (*TERMINAL, *NETWORK, *(name.lower() for name in NETWORK), *KEYS, *PYTHON, "QUIESCE_TREE"):
        os.environ.pop(name, None)
    os.environ |= {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
