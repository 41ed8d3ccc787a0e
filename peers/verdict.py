"""What a judge has seen of a cell, in the words of the table; and whether it is as it should be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SLOW = 1.0  # seconds from which the table says how long a stop took


@dataclass
class Verdict:
    not_run: str = ""  # why it was not run
    faults: list[str] = field(
        default_factory=list
    )  # a hang, a swallowed cancel, a wrong exception, a bystander
    left: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)  # what the reports of quiesce say is left
    seconds: float = 0.0

    @classmethod
    def of(cls, seen: dict[str, Any]) -> Verdict:
        """From the judge's line."""
        if "not run" in seen:
            return cls(not_run=seen["not run"])
        stray = [f"stray error: {text}" for text in seen.get("stray", ())]
        left = [*seen["processes"], *seen.get("left", ())]
        return cls("", seen["faults"] + stray, left, seen.get("named", []), seen["seconds"])

    @property
    def is_clean(self) -> bool:
        return not (self.not_run or self.faults or self.left)

    @property
    def is_all_named(self) -> bool:
        """Nothing but leftovers, each of a kind that a report has named as often."""
        said = Counter(name.split()[0] for name in self.named)
        seen = Counter(text.split()[0].rstrip(":") for text in self.left)
        return not self.not_run and not self.faults and seen <= said

    def __str__(self) -> str:
        if self.not_run:
            return f"not run: {self.not_run}"
        counted = Counter([*self.faults, *self.left])
        words = [what if number == 1 else f"{number} × {what}" for what, number in counted.items()]
        text = "; ".join(words) or "nothing left"
        return f"{text}, {self.seconds:.1f} s" if self.seconds >= SLOW else text
