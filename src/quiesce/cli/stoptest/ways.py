"""The ways in which programs are stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Way:
    """One way to stop a program. `action` is repeated `times` times, 0.3 s apart, until the program has exited."""

    name: str
    title: str
    action: Literal["ctrl-c", "sigterm", "hang-up", "close-stdin", "kill-client", "sigkill"]
    times: int = 1

    @property
    def at_terminal(self) -> bool:
        """Whether the program runs at a terminal. Otherwise its input and its output are pipes."""
        return self.action in ("ctrl-c", "hang-up")

    @property
    def ends_input(self) -> bool:
        """Whether the program notices that its input has ended."""
        return self.action in ("close-stdin", "kill-client")


WAYS: Final = (
    Way("ctrl-c", "Ctrl-C", "ctrl-c"),
    Way("ctrl-c-2", "Ctrl-C twice", "ctrl-c", 2),
    Way("ctrl-c-3", "Ctrl-C 3 times", "ctrl-c", 3),
    Way("sigterm", "SIGTERM", "sigterm"),
    Way("hang-up", "terminal closed", "hang-up"),
    Way("stdin", "input closed", "close-stdin"),
    Way("client", "client killed", "kill-client"),
    Way("sigkill", "SIGKILL", "sigkill"),
)
GAP: Final = 0.3  # seconds between one Ctrl-C and the next
