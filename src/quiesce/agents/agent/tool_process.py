"""A sync function in a child process that can be killed, for code that never looks at a token.

Each call starts a fresh interpreter (see `tool_process_main`), which imports the function by its module and
name. Arguments and result are pickled. stdin carries the request, and a file without a name the result, so
that nothing that the function prints can be taken for either. What it prints is given to `progress` as it
comes.

Whatever ends the call, its process and everything that this process has started have ended when control is
back: a stop sends SIGTERM at once, and SIGKILL when the `Grace` says so.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from quiesce import PipeClosed, Process, Scope

from . import tool_process_main
from .errors import AgentsException, UserError

_TAIL = 2000  # how much of stderr an error quotes, in characters


class ToolProcessError(AgentsException):
    """The process of a tool exited before its function returned.

    `returncode` is its exit status, or minus the number of the signal.
    """

    def __init__(self, tool_name: str, message: str, returncode: int | None, stderr: str) -> None:
        super().__init__(f"tool {tool_name!r} has not returned: its process {message}")
        self.tool_name = tool_name
        self.returncode = returncode
        self.stderr = stderr


class RemoteToolError(AgentsException):
    """The function of a tool raised an error in its process that cannot be sent to this one.

    The message has the name of its type and its message.
    """


class ProcessFunction:
    """A function that another interpreter can find by its name, and that is called there."""

    __slots__ = ("_checked", "_fn", "_module", "_qualname", "_tool")

    def __init__(self, fn: Callable[..., Any], tool: str) -> None:
        module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
        bound_to = getattr(fn, "__self__", None)  # for a builtin function, its module
        is_plain = bound_to is None or isinstance(bound_to, ModuleType)
        if not is_plain or not isinstance(module, str) or not isinstance(qualname, str):
            raise _cannot_be_found(tool, f"{fn!r} is not a plain function")
        if "<lambda>" in qualname:
            raise _cannot_be_found(tool, "a lambda has no name")
        if "<locals>" in qualname:
            raise _cannot_be_found(tool, f"{qualname} was made inside another function")
        self._fn = fn
        self._tool = tool
        self._module = module
        self._qualname = qualname
        self._checked = False

    async def call(self, args: list[Any], kwargs: dict[str, Any], progress: Callable[[str], None]) -> Any:
        """Call it there, and return what it returns or raise what it raises.

        Raises `ToolProcessError` if its process exits before that.
        """
        self._check()
        try:
            arguments = pickle.dumps((args, kwargs))
        except Exception as error:
            raise UserError(
                f"the arguments of tool {self._tool!r} cannot be sent to its process: {error}; use plain data, or "
                "classes at the top level of a module"
            ) from error
        # A file, and not a pipe, which a process that the function has started might hold open.
        result, where = tempfile.mkstemp(prefix=f"quiesce-tool-{os.getpid()}-")
        try:
            returncode, stderr = await self._run(self._request(arguments, where), progress)
            outcome = _read_all(result)
        finally:
            os.close(result)
            with contextlib.suppress(FileNotFoundError):  # its process has removed it, if it came that far
                os.unlink(where)
        if not outcome:
            raise self._lost(returncode, stderr)
        return self._result_of(outcome)

    async def _run(self, request: bytes, progress: Callable[[str], None]) -> tuple[int | None, str]:
        text = codecs.getincrementaldecoder("utf-8")("replace")
        child = Process(_command(), stdin="pipe", name=self._tool)
        try:
            async with child, Scope(self._tool) as scope:
                scope.spawn(_end_with_its_first_process, child, name="until its end")
                try:
                    await child.write(request)
                    child.close_stdin()
                except (BrokenPipeError, PipeClosed):
                    pass  # it has exited, or is being stopped: its status says more
                while data := await child.read():
                    progress(text.decode(data))
        finally:
            # Some output may not have been read when it exited. Reading it does not wait, unless a process of
            # the tree is left over.
            is_gone = child.report is not None and not child.report.left
            while is_gone and (data := await child.read()):
                progress(text.decode(data))
        return child.returncode, child.stderr_tail.decode(errors="replace")

    def _request(self, arguments: bytes, result: str) -> bytes:
        return pickle.dumps(
            {
                "tool": self._tool,
                "module": self._module,
                "qualname": self._qualname,
                "arguments": arguments,
                "result": result,
                # An empty entry means the current folder of this process.
                "path": [os.getcwd() if entry == "" else entry for entry in sys.path],
                "argv": sys.argv,
                "main": _program() if self._module == "__main__" else None,
            }
        )

    def _check(self) -> None:
        if tool_process_main.importing is not None:
            raise RuntimeError(
                f"tool {self._tool!r} was called while a process of tool {tool_process_main.importing!r} imports "
                "the program: put what starts the program under `if __name__ == '__main__':`"
            )
        if self._checked:
            return
        if self._module == "__main__" and _program() is None:
            raise _cannot_be_found(self._tool, "it was typed in, and is in no file")
        found: Any = sys.modules.get(self._module) or import_module(self._module)
        for name in self._qualname.split("."):
            found = getattr(found, name, None)
        # A decorated function is found as its tool.
        if found is not self._fn and getattr(found, "function", None) is not self._fn:
            raise _cannot_be_found(self._tool, f"{self._module}.{self._qualname} is {found!r}")
        self._checked = True

    def _lost(self, returncode: int | None, stderr: str) -> ToolProcessError:
        return ToolProcessError(self._tool, how_it_ended(returncode, stderr), returncode, stderr)

    def _result_of(self, outcome: bytes) -> Any:
        told = pickle.loads(outcome)
        if told[0] == "returned":
            try:
                return _Unpickler(io.BytesIO(told[1])).load()
            except Exception as error:
                raise RemoteToolError(
                    f"what tool {self._tool!r} returned cannot be read outside its process: {error}"
                ) from error
        _, whole, (kind, message), remote_traceback = told
        raised: Exception = RemoteToolError(f"{kind}: {message}")
        with contextlib.suppress(Exception):
            raised = _Unpickler(io.BytesIO(whole)).load() if whole else raised
        raised.add_note(f"In the process of tool {self._tool!r}:\n{remote_traceback.rstrip()}")
        raise raised


class _Unpickler(pickle.Unpickler):
    """Knows under which name the program's own module was imported there."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


async def _end_with_its_first_process(child: Process) -> None:
    """End the processes that it has left behind, as they may hold its stdout open and keep us waiting."""
    await child.wait()
    child.cancel("its function has returned")


def _command() -> list[str]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing
    return [sys.executable, *flags, "-P", tool_process_main.__file__]


def _program() -> tuple[str, str] | None:
    """How the program's own module can be imported again; None if it cannot."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "module", spec.name
    file = getattr(main, "__file__", None)
    if file is None or not os.path.exists(file):
        return None
    return "path", os.path.abspath(file)


def _cannot_be_found(tool: str, why: str) -> UserError:
    return UserError(
        f'tool {tool!r} has isolation="process", and another process cannot find its function: {why}. Define it '
        "with `def` at the top level of a module"
    )


def how_it_ended(returncode: int | None, stderr: str) -> str:
    """How a process exited, in words, with the end of its stderr."""
    if returncode is not None and returncode < 0:
        how = f"was ended by {_name_of_signal(-returncode)}"
    else:
        how = f"exited with status {returncode}"
    tail = stderr.strip()[-_TAIL:]
    return how + (f"; the end of its stderr:\n{tail}" if tail else ", and wrote nothing to stderr")


def _name_of_signal(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _read_all(file: int) -> bytes:
    size, pieces, at = os.fstat(file).st_size, [], 0
    while at < size and (piece := os.pread(file, size - at, at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)
