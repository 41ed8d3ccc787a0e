"""Tracks the async generators of one run on trio.

trio closes a dropped generator in a system task, with a warning, and logs what fails there. This module wraps trio's
hooks: it records each drop, and lets neither the warning nor the log message out.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from types import AsyncGeneratorType
from typing import Any

from quiesce.audit.model import Chain, Sighting, await_chain, name_of
from quiesce.audit.watch import Watch, text_of

_ERRORS = logging.getLogger("trio.async_generator_errors")


class Generators:
    """The generators of one run. `dropped` are those that the garbage collector had to close: name and position."""

    def __init__(self, watch: Watch) -> None:
        self.dropped: list[tuple[str, Chain]] = []
        self._watch = watch
        self._started: list[weakref.ref[AsyncGeneratorType[Any, Any]]] = []

    def install(self) -> None:
        """Wrap trio's hooks. Call it inside the run; trio removes the hooks at the end of the run."""
        hooks = sys.get_asyncgen_hooks()
        first, last = hooks.firstiter, hooks.finalizer
        assert first is not None
        assert last is not None

        def on_first_step(agen: AsyncGenerator[Any, Any]) -> None:
            assert isinstance(agen, AsyncGeneratorType)
            self._started.append(weakref.ref(agen))
            first(agen)

        def on_drop(agen: AsyncGenerator[Any, Any]) -> None:
            self.dropped.append((name_of(agen), await_chain(agen)))
            # trio warns here. The drop has been recorded, and the warning would be a second sighting of it.
            was_muted, self._watch.is_muted = self._watch.is_muted, True
            try:
                last(agen)
            finally:
                self._watch.is_muted = was_muted

        sys.set_asyncgen_hooks(on_first_step, on_drop)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside the block, turn trio's log messages about generators that could not be closed into sightings."""
        _ERRORS.addFilter(self._on_error)
        try:
            yield
        finally:
            _ERRORS.removeFilter(self._on_error)

    def _on_error(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        full = str(record.args[0]) if isinstance(record.args, tuple) and record.args else "an async generator"
        name = next((name for name, _ in self.dropped if full.endswith(f".{name}")), full)
        detail = f"closing it failed: {text_of(error)}" if error is not None else "closing it failed"
        self._watch.see(Sighting("generator", name, detail=detail))
        return False

    def unfinished(self) -> list[tuple[str, Chain]]:
        """The generators that were started, are still referenced and have not ended: name and position."""
        alive = [agen for ref in self._started if (agen := ref()) is not None]
        return [
            (name_of(agen), await_chain(agen))
            for agen in sorted(alive, key=name_of)
            if agen.ag_frame is not None and not agen.ag_running
        ]
