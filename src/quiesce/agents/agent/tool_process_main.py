"""The other side of a tool with `isolation="process"`: a fresh interpreter that calls one function, and
exits.

It is run by its path and imports nothing of quiesce, so that a small tool starts fast. The request comes over
stdin, which is empty after that. The result goes into a file, so that stdout and stderr belong to the
function. SIGTERM raises `SystemExit` in the function: it may clean up until SIGKILL comes.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
from types import FrameType, ModuleType
from typing import Any

importing: str | None = None
"""The tool whose function is being imported here.

A program that starts tools while it is imported would start itself for ever.
"""


def main() -> None:
    """Read the request, call the function, write the result."""
    # The function's module may import quiesce, which then finds this very module, and not a second one in
    # which `importing` is None.
    sys.modules["quiesce.agents.agent.tool_process_main"] = sys.modules["__main__"]
    signal.signal(signal.SIGTERM, _exit)
    request: dict[str, Any] = pickle.loads(sys.stdin.buffer.read())
    # The function gets an empty stdin, and not our pipe.
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    # From here on the file has no name: however this process exits, nothing is left in the directory.
    result = os.open(request["result"], os.O_WRONLY | os.O_CLOEXEC)
    os.unlink(request["result"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    outcome = _outcome_of(request)
    with os.fdopen(result, "wb") as file:
        file.write(outcome)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the clean-up
    sys.exit(128 + number)


def _outcome_of(request: dict[str, Any]) -> bytes:
    try:
        function = _import_function(request)
        args, kwargs = pickle.loads(request["arguments"])
        returned = function(*args, **kwargs)
    except Exception as error:
        return _pickled_error(error)
    try:
        return pickle.dumps(("returned", pickle.dumps(returned)))
    except Exception as error:
        complaint = TypeError(
            f"tool {request['tool']!r} returned {type(returned).__name__}, which cannot leave its process: {error}; "
            "return plain data"
        )
        return _pickled_error(complaint)


def _import_function(request: dict[str, Any]) -> Any:
    global importing
    importing = request["tool"]
    sys.path[:] = request["path"]
    sys.argv[:] = request["argv"]
    if request["main"] is not None:
        _import_program(*request["main"])
    found: Any = importlib.import_module(request["module"])
    for name in request["qualname"].split("."):
        found = getattr(found, name)
    importing = None
    if type(found).__name__ == "FunctionTool" and type(found).__module__.startswith("quiesce."):
        found = found.function  # its decorator has run here too
    return found


def _import_program(kind: str, where: str) -> None:
    """Import the program's own module under another name than `__main__`.

    So what the program does when it is started is not done here.
    """
    import runpy

    module = ModuleType("__mp_main__")  # the name that multiprocessing has made known
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    if kind == "module":
        content = runpy.run_module(where, run_name="__mp_main__", alter_sys=True)
    else:
        content = runpy.run_path(where, run_name="__mp_main__")
    module.__dict__.update(content)


def _pickled_error(error: Exception) -> bytes:
    import traceback

    told = "".join(traceback.format_exception(_without_our_frames(error)))
    summary = (type(error).__qualname__, str(error))
    try:
        whole = pickle.dumps(error)
        pickle.loads(whole)  # fails only here if its constructor takes other arguments
    except Exception:
        whole = b""
    return pickle.dumps(("raised", whole, summary, told))


def _without_our_frames(error: Exception) -> Exception:
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    return error


if __name__ == "__main__":
    main()
