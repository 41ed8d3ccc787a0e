"""Finds what a run leaves over in the process: threads, children, descriptors, and complaints of the interpreter.

One `Watch` serves a whole sweep. Its hooks cost nothing until they are called, and reading threads, children and
descriptors costs about ten microseconds together. These three may take a moment to disappear after a run. So if
something is new the watch waits and reads again, and it waits longest for leftovers that it has not seen before.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from time import sleep  # the real one, even while `Clocks` replaces it for a scenario
from types import CoroutineType
from typing import Any, Self, TextIO
from weakref import WeakSet

from quiesce._safe.secrets import command_without_secrets
from quiesce.audit.model import (
    Chain,
    Place,
    Schedule,
    Sighting,
    await_chain,
    name_of,
    record_temporary_names,
    steady,
    steady_object,
    traceback_chain,
)

from .processes import children_of, guardian, kill_tree
from .silence import OwnSilence
from .threads import busy_threads

_FD = re.compile(r"\bfd=\d+")


class Watch:
    """Observes the process during a sweep.

    Use it as a context manager around the sweep, and call `start()` before and `finish()` after each run.
    """

    _busy_before: set[threading.Thread] | WeakSet[threading.Thread]

    def __init__(self, *, patience: float = 0.2) -> None:
        self.sightings: list[Sighting] = []
        self.is_muted = False
        # The schedule of the current run.
        self.schedule: Schedule | None = None
        self._patience = patience
        # Kind and name of leftovers that did not disappear in time in an earlier run.
        self._persistent: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        self._open()
        self._hooks = _Hooks(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hooks.undo()
        self._close()

    def _open(self) -> None:
        self._fds = _Descriptors()
        self._children = _Children()

    def _close(self) -> None:
        self._fds.close()
        self._children.close()

    def start(self, schedule: Schedule | None = None) -> None:
        """Record the state of the process before a run."""
        self.schedule = schedule
        self.sightings = []
        self.is_muted = False
        self._busy_before = {thread for thread, _ in busy_threads()}
        self._children_before = self._children.read()
        self._fds_before = self._fds.read()

    def see(self, sighting: Sighting) -> None:
        """Record a sighting, unless the watch is muted."""
        if not self.is_muted:
            self.sightings.append(sighting)

    def see_unclosed(self, sighting: Sighting) -> None:
        """Record an object that was not closed, once per descriptor.

        A stream, its transport and its socket each warn for themselves. Only the outermost of them is recorded.
        """
        if fd := _FD.search(sighting.detail):
            for other in self.sightings:
                if (
                    other.kind == "unclosed"
                    and other.what != sighting.what
                    and fd[0] in _FD.findall(other.detail)
                ):
                    # The repr of the outer object contains that of the inner one.
                    if other.detail.count("<") >= sighting.detail.count("<"):
                        return
                    self.sightings.remove(other)
                    break
        self.see(sighting)

    def finish(self) -> list[Sighting]:
        """Look for leftovers, kill leftover processes, and return all sightings since `start()`."""
        self.schedule = None
        if not self.is_muted:
            outside = self._look_outside()
            self.sightings += outside
            for sighting in outside:
                # Reported, and no longer useful: neither the next run nor the user should have to deal with it.
                if sighting.kind == "process":
                    kill_tree(sighting.detail.removeprefix("pid ").partition(":")[0])
        return self.sightings

    def _look_outside(self) -> list[Sighting]:
        found = self._look()
        if not found:
            return found
        # A sweep makes hundreds of runs. Waiting in full for a leftover that stayed before would dominate their time.
        is_new = any((s.kind, s.what) not in self._persistent for s in found)
        limit = self._patience if is_new else self._patience / 10
        silence = OwnSilence(lambda: self._children.read() - self._children_before)
        pause = 0.001
        while found and silence.look() < limit:
            sleep(pause)
            pause = min(pause * 2, 0.02)
            found = self._look()
        self._persistent.update((s.kind, s.what) for s in found)
        return found

    def busy_thread(self) -> str:
        """The name of a thread that went to work during the run and still is; "" if there is none."""
        return next((thread.name for thread, _ in self._busy_threads()), "")

    def _busy_threads(self) -> list[tuple[threading.Thread, Chain]]:
        return busy_threads(self._busy_before)

    def _look(self) -> list[Sighting]:
        found: list[Sighting] = []
        for thread, stack in self._busy_threads():
            # asyncio has one such thread per child process up to 3.12; the process itself is reported.
            if not thread.name.startswith(("waitpid-", "asyncio-waitpid-")):
                what = steady(thread.name)
                found.append(Sighting("thread", what, stuck_at=stack[::-1], detail=_target_of(thread)))
        found += [
            Sighting("process", steady(command), detail=f"pid {pid}: {command}")
            for pid in sorted(self._children.read() - self._children_before)
            if (command := _command_of(pid)) is not None
        ]
        found += [
            Sighting("descriptor", steady(target), detail=f"fd {fd}: {target}")
            for fd in sorted(self._fds.read() - self._fds_before, key=int)
            if (target := self._fds.target(fd)) is not None
        ]
        return [sighting for sighting in found if not _is_guardians(sighting)]


def _is_guardians(sighting: Sighting) -> bool:
    """Whether the sighting is about quiesce's guardian, which starts once and lasts as long as this process."""
    pid, fd = guardian()
    return sighting.detail.startswith((f"pid {pid}:", f"fd {fd}:"))


def _target_of(thread: threading.Thread) -> str:
    target = getattr(thread, "_target", None)
    return f"runs {name_of(target)}" if target is not None else ""


def _command_of(pid: str) -> str | None:
    """The command line of a child process, or its name if it is a zombie; None if it does not exist any more."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word for word in file.read().decode(errors="replace").split("\0") if word]
    except OSError:
        return None
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    return (
        f"{name} (ended, never waited for)"
        if stat.rpartition(") ")[2][0] in "ZX"
        else command_without_secrets(words) or name
    )


class _Descriptors:
    """Lists the open descriptors of this process, by one descriptor of /proc/self/fd that stays open."""

    def __init__(self) -> None:
        try:
            self._folder: int | None = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            # Not Linux: descriptors are not examined.
            self._folder = None

    def read(self) -> set[str]:
        if self._folder is None:
            return set()
        # `os.listdir` of a descriptor duplicates it first, and so lists one more: under the lowest free number, which
        # is also the number that this duplicate gets.
        copy = os.dup(self._folder)
        os.close(copy)
        return set(os.listdir(self._folder)) - {str(copy)}

    def target(self, fd: str) -> str | None:
        """The file or socket that a descriptor refers to; None if it has been closed, or refers to /proc itself."""
        try:
            target = os.readlink(fd, dir_fd=self._folder)
        except OSError:
            return None
        return None if target.startswith("/proc/") else target

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._folder)


class _Children:
    """Lists the child processes of this process, by one file of /proc that stays open."""

    def __init__(self) -> None:
        self._file: int | None = None
        try:
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/children", os.O_RDONLY)
        except OSError:
            # Not Linux, or a kernel without this file: children are not examined.
            pass

    def read(self) -> set[str]:
        if self._file is None:
            return set()
        found = set(os.pread(self._file, 65536, 0).decode().split())
        # Linux lists children by the thread that started them, which on trio is a worker thread.
        return found | children_of("self") if threading.active_count() > 1 else found

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


class _Hooks:
    """Hooks for what the interpreter reports about dropped objects. Installed when created, until `undo()`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        # The interpreter calls this private function of `warnings` for a coroutine that was never awaited. A warning
        # would only carry a text; the function receives the coroutine itself, with its origin.
        self._unawaited: Callable[..., object] = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]
        self._unraisable = sys.unraisablehook
        self._noted = record_temporary_names()
        self._noted.__enter__()
        self._depth = sys.get_coroutine_origin_tracking_depth()
        self._catch = warnings.catch_warnings()
        self._catch.__enter__()
        self._show = warnings.showwarning
        warnings.simplefilter("always", ResourceWarning)
        warnings.filterwarnings("always", message=".*was never awaited", category=RuntimeWarning)
        warnings.showwarning = self._on_warning
        warnings._warn_unawaited_coroutine = self._on_unawaited  # type: ignore[attr-defined]
        sys.unraisablehook = self._on_unraisable
        sys.set_coroutine_origin_tracking_depth(6)

    def undo(self) -> None:
        """Restore everything that was replaced."""
        sys.set_coroutine_origin_tracking_depth(self._depth)
        sys.unraisablehook = self._unraisable
        warnings._warn_unawaited_coroutine = self._unawaited  # type: ignore[attr-defined]
        warnings.showwarning = self._show
        self._catch.__exit__(None, None, None)
        self._noted.__exit__(None, None, None)

    def _on_unawaited(self, coroutine: CoroutineType[Any, Any, Any]) -> None:
        origin = coroutine.cr_origin or ()
        made_at = tuple(Place(*entry) for entry in origin)
        self._watch.see(Sighting("unawaited", name_of(coroutine), made_at))

    def _on_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = str(message)
        if issubclass(category, ResourceWarning):
            self._watch.see_unclosed(Sighting("unclosed", steady_object(text), detail=text))
        elif "was never awaited" in text:
            self._watch.see(Sighting("unawaited", text, (Place(filename, lineno, "?"),)))
        else:
            self._show(message, category, filename, lineno, file, line)

    def _on_unraisable(self, error: Any) -> None:
        self._watch.see(unraisable_sighting(error))


def unraisable_sighting(error: Any) -> Sighting:
    """Turn the argument of `sys.unraisablehook` into a sighting."""
    source = getattr(error.object, "__qualname__", None) or type(error.object).__name__
    # From 3.14 on most of them come without an object.
    if error.object is None and error.exc_traceback is not None:
        source = error.exc_traceback.tb_frame.f_code.co_qualname
    message = f"{type(error.exc_value).__name__}: {error.exc_value}"
    return Sighting(
        "unraisable",
        f"{source}: {steady_object(message)}",
        stuck_at=await_chain(error.object) or traceback_chain(error.exc_traceback),
        detail=message,
    )
