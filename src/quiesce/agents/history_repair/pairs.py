"""Which result belongs to which tool call.

Invariants
- Each call that is kept has at most one result, and each result at most one call.
- A result belongs to the last call of its id before it (in a block of calls of one id, to the first that has none yet), or else to
  the first one after it that nothing else answers.
- Of several results for a call the first real one counts: one that an earlier repair has made gives way.
- A call that repeats an unanswered one word for word is a replay, and is dropped. Another use of an id is another call, and gets an
  id of its own where the provider wants ids to be unique.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any, Literal

MISSING = "The tool call was interrupted before it gave a result. It may have partially executed."
CUT_OFF = " Its arguments were cut off while the model wrote them, and are left out."


@dataclass(slots=True, eq=False)
class Result:
    """A result as it was found."""

    kind: str
    call_id: str
    message: Any
    text: str


@dataclass(slots=True, eq=False)
class Call:
    """A call as it was found. `asks` tells a replay from another call; `block` numbers the block of calls that it stands in."""

    kind: str
    call_id: str
    block: int
    asks: Any
    cut_off: bool = False
    replay: bool = False
    new_id: str | None = None
    result: Result | None = None

    @property
    def id(self) -> str:
        """Its id in the repaired history."""
        return self.new_id or self.call_id

    def text_if_missing(self, missing: str) -> str:
        """What to say in the place of its result."""
        return missing + CUT_OFF if self.cut_off else missing


@dataclass(slots=True)
class Pairing:
    """Pairs calls and results that it is told of in their order.

    `unique` is where ids must differ: in a `"block"` of calls, or in `"all"` the history. Kinds in `nameless` have no ids but
    names, so that nothing is a replay.
    """

    missing: str
    unique: Literal["block", "all"]
    nameless: frozenset[str] = frozenset()
    _calls: dict[tuple[str, str], list[Call]] = field(default_factory=dict)
    _open: dict[tuple[str, str], list[Call]] = field(default_factory=dict)
    _early: list[Result] = field(default_factory=list)

    def call(self, call: Call) -> Call:
        """The next call."""
        key = (call.kind, call.call_id)
        unanswered = self._open.setdefault(key, [])
        if call.kind not in self.nameless and any(earlier.asks == call.asks for earlier in unanswered):
            call.replay = True
        else:
            unanswered.append(call)
            self._calls.setdefault(key, []).append(call)
        return call

    def result(self, result: Result) -> None:
        """The next result."""
        key = (result.kind, result.call_id)
        calls = self._calls.get(key)
        if not calls:
            self._early.append(result)
            return
        block = calls[-1].block
        for call in self._open[key]:
            if call.block == block:
                call.result = result
                self._open[key].remove(call)
                return
        for call in takewhile(lambda call: call.block == block, reversed(calls)):
            if call.result is not None and self._is_made(call.result) and not self._is_made(result):
                call.result = result
                return

    def settle(self) -> None:
        """All have been told: find calls for the results that came too early, and new ids."""
        for result in self._early:
            for call in self._calls.get((result.kind, result.call_id), ()):
                if call.result is None:
                    call.result = result
                    break
        taken = {call_id for _, call_id in self._calls}
        for (kind, call_id), calls in self._calls.items():
            if kind not in self.nameless:
                for call in _to_rename(calls, self.unique):
                    call.new_id = _free(call_id, taken)
                    taken.add(call.new_id)

    def _is_made(self, result: Result) -> bool:
        return result.text.startswith((self.missing, MISSING))


def _to_rename(calls: list[Call], unique: Literal["block", "all"]) -> Iterable[Call]:
    if unique == "all":
        return calls[1:]
    return [call for before, call in pairwise(calls) if before.block == call.block]


def _free(call_id: str, taken: set[str]) -> str:
    number = 2
    while f"{call_id}_{number}" in taken:
        number += 1
    return f"{call_id}_{number}"
