"""What a terminal would show: as much of one as the chat uses, without an end at the bottom."""

from __future__ import annotations

import codecs
import re

_SEQUENCE = re.compile(r"\x1b(?:\[([0-?]*)[ -/]*([@-~])|[\]P].*?(?:\x07|\x1b\\\\)|[ -/]*[0-~])", re.DOTALL)
_PARTIAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]P][^\x07\x1b]*|[ -/]*)?$")


class Screen:
    """Lines of characters. All cursor movements that matter here are relative, so nothing ever scrolls away."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._wraps = True
        self._rest = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    @property
    def text(self) -> str:
        """Everything."""
        return "\n".join("".join(line).rstrip() for line in self._lines)

    @property
    def last(self) -> str:
        """The last line with anything in it."""
        return next((line for line in reversed(self.text.split("\n")) if line), "")

    def feed(self, data: bytes) -> None:
        """What the program has written."""
        text, place = self._rest + self._decode(data), 0
        partial = _PARTIAL.search(text)
        self._rest = text[partial.start() :] if partial else ""
        text = text[: partial.start()] if partial else text
        for found in _SEQUENCE.finditer(text):
            self._write(text[place : found.start()])
            place = found.end()
            if found[2]:
                self._control(found[1], found[2])
        self._write(text[place:])

    def _control(self, given: str, what: str) -> None:
        if given.startswith("?"):
            if given == "?7":
                self._wraps = what == "h"
            return
        number = int(given.split(";", maxsplit=1)[0] or 0) if given.replace(";", "").isdecimal() else 0
        if what == "A":
            self._row = max(self._row - (number or 1), 0)
        elif what == "B":
            self._row += number or 1
        elif what == "C":
            self._column += number or 1
        elif what == "D":
            self._column = max(self._column - (number or 1), 0)
        elif what == "G":
            self._column = max(number - 1, 0)
        elif what == "K":
            self._erase_line()
        elif what == "J":
            self._erase_line()
            del self._lines[self._row + 1 :]
        self._reach()

    def _erase_line(self) -> None:
        self._reach()
        del self._lines[self._row][self._column :]

    def _reach(self) -> None:
        while len(self._lines) <= self._row:
            self._lines.append([])

    def _write(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._row += 1
            elif character == "\r":
                self._column = 0
            elif character == "\b":
                self._column = max(self._column - 1, 0)
            elif character >= " ":
                self._put(character)
            self._reach()

    def _put(self, character: str) -> None:
        if self._column >= self._columns:
            if not self._wraps:
                return
            self._row, self._column = self._row + 1, 0
        self._reach()
        line = self._lines[self._row]
        line += [" "] * (self._column + 1 - len(line))
        line[self._column] = character
        self._column += 1
