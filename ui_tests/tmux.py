"""A real terminal to drive: tmux, with a server of its own. Its screens are kept in build/ui, as text and in colour."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

LONGEST = 20.0  # seconds until something is to be seen, on a busy machine
SETTLED = 0.25  # seconds without a change: what is drawn is drawn
_numbers = count(1)
_STYLE = re.compile(r"\x1b\[([0-9;:]*)m")
_OFF = {22: ("font-weight", "opacity"), 24: ("text-decoration",), 39: ("color",)}
_COLOURS = ("#000", "#c33", "#3a3", "#b80", "#36c", "#a3a", "#099", "#999")


class Tmux:
    """One program in one window."""

    def __init__(
        self,
        folder: Path,
        pictures: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 90,
        rows: int = 30,
    ) -> None:
        name = f"tmux-{next(_numbers)}"
        self._socket, self._status = folder / name, folder / f"{name}.status"
        self._pictures = pictures
        self._tmux = os.environ.get("QUIESCE_TMUX") or shutil.which("tmux") or "tmux"
        # What the server has in its environment is what the program gets.
        self._environment = {**os.environ, **environment}
        self._environment.pop("TMUX", None)
        # tmux itself does not always hear how its program has ended.
        noted = ["sh", "-c", '"$@"; echo $? >"$0.new"; mv "$0.new" "$0"', str(self._status), *command]
        self.do("new-session", "-d", "-s", "chat", "-x", str(columns), "-y", str(rows), *noted)
        self.do("set-option", "-g", "remain-on-exit", "on")
        self.do("set-option", "-g", "history-limit", "20000")

    def do(self, *words: str) -> str:
        """A command of tmux."""
        line = [self._tmux, "-u", "-f", os.devnull, "-S", str(self._socket), *words]
        done = subprocess.run(
            line, capture_output=True, text=True, env=self._environment, timeout=20, check=False
        )
        assert done.returncode == 0, f"tmux {' '.join(words)}: {done.stderr}"
        return done.stdout

    # Typing

    def type(self, text: str) -> None:
        self.do("send-keys", "-t", "chat", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names, such as Enter, Escape, C-c."""
        self.do("send-keys", "-t", "chat", *keys)

    def send(self, text: str) -> None:
        self.type(text)
        self.press("Enter")

    def send_bytes(self, data: bytes) -> None:
        self.do("send-keys", "-t", "chat", "-H", *(f"{byte:02x}" for byte in data))

    def paste(self, text: str) -> None:
        """As the middle button of a mouse does, in brackets if the program has asked for them."""
        self.do("set-buffer", "--", text)
        self.do("paste-buffer", "-p", "-t", "chat")

    def resize(self, columns: int, rows: int) -> None:
        self.do("resize-window", "-t", "chat", "-x", str(columns), "-y", str(rows))

    # Looking

    @property
    def screen(self) -> str:
        """What is to be seen now."""
        return self.do("capture-pane", "-p", "-t", "chat")

    @property
    def everything(self) -> str:
        """That, and what has scrolled away."""
        return self.do("capture-pane", "-p", "-S", "-", "-t", "chat")

    @property
    def last_line(self) -> str:
        return next((line for line in reversed(self.screen.splitlines()) if line.strip()), "")

    def until(self, words: str, *, times: int = 1) -> None:
        self.wait_for(lambda: self.everything.count(words) >= times, f"{words!r} is not shown {times} times")

    def until_last(self, words: str) -> None:
        self.wait_for(lambda: words in self.last_line, f"{words!r} is not in the last line")

    def wait_for(self, holds: Callable[[], bool], otherwise: str) -> None:
        ends = time.monotonic() + LONGEST
        while not holds():
            assert time.monotonic() < ends, f"{otherwise}:\n{self.everything}"
            time.sleep(0.03)

    def settle(self) -> None:
        """Until nothing has changed for a moment, but for the live line."""
        before, since = "", time.monotonic()
        ends = since + LONGEST
        while time.monotonic() - since < SETTLED and time.monotonic() < ends:
            now = "\n".join(self.screen.rstrip().splitlines()[:-1])
            if now != before:
                before, since = now, time.monotonic()
            time.sleep(0.03)

    def keep(self, name: str, *, still: bool = True) -> str:
        """Save what is to be seen under a name, for somebody to look at; returns it.

        `still`: when it has come to rest.
        """
        if still:
            self.settle()
        screen = self.screen
        (self._pictures / f"chat-{name}.txt").write_text(screen)
        coloured = self.do("capture-pane", "-p", "-e", "-t", "chat")
        (self._pictures / f"chat-{name}.html").write_text(as_page(coloured))
        return screen

    # The end

    def ended(self) -> int:
        """The exit status of the program, when it has ended by itself."""
        self.wait_for(self._status.exists, "it does not end by itself")
        return int(self._status.read_text())

    def close(self) -> None:
        self.do("kill-server")


def as_page(coloured: str) -> str:
    """A screen as HTML, in its colours."""
    place, styles, body = 0, list[str](), list[str]()
    for found in _STYLE.finditer(coloured):
        body.append(_span(coloured[place : found.start()], styles))
        place = found.end()
        styles = _styles(found[1], styles)
    body.append(_span(coloured[place:], styles))
    look = "background:#fff;color:#222;font:14px/1.3 'DejaVu Sans Mono',monospace;padding:1em"
    return f'<!doctype html><meta charset=utf-8><pre style="{look}">{"".join(body)}</pre>'


def _styles(codes: str, before: list[str]) -> list[str]:
    styles = list(before)
    for code in (int(part or 0) for part in codes.split(";") if part.isdecimal() or not part):
        if code == 0:
            styles = []
        elif code in (1, 2, 4):
            styles.append({1: "font-weight:bold", 2: "opacity:.6", 4: "text-decoration:underline"}[code])
        elif code in _OFF:
            styles = [style for style in styles if not style.startswith(_OFF[code])]
        elif 30 <= code <= 37:
            styles.append(f"color:{_COLOURS[code - 30]}")
        elif 90 <= code <= 97:
            styles.append("color:#777" if code == 90 else f"color:{_COLOURS[code - 90]}")
    return styles


def _span(text: str, styles: list[str]) -> str:
    return f'<span style="{";".join(styles)}">{html.escape(text)}</span>' if text else ""
