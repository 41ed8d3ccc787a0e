"""The lanes of one run: one record per task, which does not keep the task alive."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from .source_places import Chain


class TaskRecord:
    """One task. `label` identifies it in every run: the name of its coroutine, numbered from the second on."""

    __slots__ = (
        "created_at",
        "ended_at",
        "is_eager",
        "is_internal",
        "label",
        "made_at",
        "name",
        "number",
        "parent",
        "ref",
    )

    def __init__(
        self, task: Any, name: str, label: str, made_at: Chain, parent: TaskRecord | None, created_at: int
    ) -> None:
        # Weak: whether the garbage collector destroys a task that the program dropped is one of the things to find out.
        self.ref = weakref.ref(task)
        self.name = name
        self.label = label
        self.made_at = made_at
        self.parent = parent
        self.number = 0
        self.created_at = created_at
        self.ended_at: int | None = None
        # Started in the step that created it.
        self.is_eager = False
        # A task of the audit itself.
        self.is_internal = False

    def __repr__(self) -> str:
        return f"<Lane {self.label} at {self.number}>"


class TaskRecords:
    """All lanes of a run, in the order of their creation."""

    def __init__(self) -> None:
        self.by_id: dict[int, TaskRecord] = {}
        self.all: list[TaskRecord] = []
        self._counts: dict[Hashable, int] = {}

    def add(
        self, task: Any, name: str, made_at: Chain, parent: TaskRecord | None, created_at: int
    ) -> TaskRecord:
        """Add a record for a new task, with a label of its own."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        label = name if count == 1 else f"{name}#{count}"
        lane = TaskRecord(task, name, label, made_at, parent, created_at)
        self.by_id[id(task)] = lane
        self.all.append(lane)
        return lane

    def find(self, task: object) -> TaskRecord | None:
        """The record of a task; None if it has none."""
        # An id can be reused once its task is gone, so the record has to be checked against the task itself.
        lane = self.by_id.get(id(task))
        return lane if lane is not None and lane.ref() is task else None
