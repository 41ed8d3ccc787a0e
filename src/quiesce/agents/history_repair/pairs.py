"""Which result belongs to which tool call.

Invariants
- Each call that is kept has at most one result, and each result at most one call.
- A result belongs to the last call of its id before it; in a block with several calls of one id, to the first
  that has none yet. A result that comes before any call of its id belongs to the first of these that nothing
  else answers.
- Of several results for a call the first real one counts: one that an earlier repair has made up gives way.
- A call that repeats an unanswered one word for word is a replay, and is dropped. Any other use of an id is
  another call, and gets an id of its own where the provider wants ids to be unique.
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
    """A call as it was found.

    - `block`: the number of the block of calls that it is in.
    - `request`: what tells a replay from another call.
    - `is_cut_off`: its arguments were incomplete, and are left out.
    """

    kind: str
    call_id: str
    block: int
    request: Any
    is_cut_off: bool = False
    is_replay: bool = False
    new_id: str | None = None
    result: Result | None = None
    #: What the model reads in the place of a result that is missing.
    filler: str = ""

    @property
    def id(self) -> str:
        """Its id in the repaired history."""
        return self.new_id or self.call_id


@dataclass(slots=True)
class Pairing:
    """Pairs calls and results, which are added in the order of the history.

    `unique` is where ids must differ: in a `"block"` of calls, or in `"all"` the history. The kinds in
    `without_ids` have only names, so a repetition is not a replay.
    """

    missing: str
    unique: Literal["block", "all"]
    without_ids: frozenset[str] = frozenset()
    _calls: dict[tuple[str, str], list[Call]] = field(default_factory=dict)
    _unanswered: dict[tuple[str, str], list[Call]] = field(default_factory=dict)
    _early: list[Result] = field(default_factory=list)

    def add_call(self, call: Call) -> Call:
        """Add the next call, and return it."""
        key = (call.kind, call.call_id)
        unanswered = self._unanswered.setdefault(key, [])
        if call.kind not in self.without_ids and any(one.request == call.request for one in unanswered):
            call.is_replay = True
        else:
            call.filler = self.missing + CUT_OFF if call.is_cut_off else self.missing
            unanswered.append(call)
            self._calls.setdefault(key, []).append(call)
        return call

    def add_result(self, result: Result) -> None:
        """Add the next result."""
        key = (result.kind, result.call_id)
        calls = self._calls.get(key)
        if not calls:
            self._early.append(result)
            return
        # Never a call of an earlier block: that its result should have come so late is less likely than that
        # this is a second result for the newest one.
        block = calls[-1].block
        for call in self._unanswered[key]:
            if call.block == block:
                call.result = result
                self._unanswered[key].remove(call)
                return
        for call in takewhile(lambda call: call.block == block, reversed(calls)):
            if call.result is not None and self._is_filler(call.result) and not self._is_filler(result):
                call.result = result
                return

    def settle(self) -> None:
        """Find calls for the results that came before them, and new ids. To be called when all were added."""
        for result in self._early:
            for call in self._calls.get((result.kind, result.call_id), ()):
                if call.result is None:
                    call.result = result
                    break
        taken = {call_id for _, call_id in self._calls}
        for (kind, call_id), calls in self._calls.items():
            if kind not in self.without_ids:
                for call in _to_rename(calls, self.unique):
                    call.new_id = _free_id(call_id, taken)
                    taken.add(call.new_id)

    def _is_filler(self, result: Result) -> bool:
        # The default text too: an earlier repair may have been given another text than this one.
        return result.text.startswith((self.missing, MISSING))


def _to_rename(calls: list[Call], unique: Literal["block", "all"]) -> Iterable[Call]:
    if unique == "all":
        return calls[1:]
    return [call for before, call in pairwise(calls) if before.block == call.block]


def _free_id(call_id: str, taken: set[str]) -> str:
    # Counted, not random: the same history must always give the same messages, or prompt caches miss.
    number = 2
    while f"{call_id}_{number}" in taken:
        number += 1
    return f"{call_id}_{number}"
