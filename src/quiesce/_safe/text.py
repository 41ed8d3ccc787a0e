"""Text of others, made fit for a terminal, a log or a page.

What a model writes, a program prints or a file holds may contain anything: sequences that move the cursor, set the title or paste, marks that turn
the direction of writing round so that a command reads as another one, blanks that are not the blank of the keyboard, halves of characters. None of it
reaches the terminal as it is.

- `exact` is for what somebody is about to approve: nothing is left out, everything can be seen, and a blank is a blank.
- `shown` is for output: colours and cursor movements of programs are left out, for they mean nothing here. What could hide or turn round other text is
  spelled out; what many scripts need (joiners, hard blanks, variants) is let through.
- `whole` is for what was typed: bytes that are not UTF-8 are replaced, and counted.

Reports, errors and log records go through `quiesce._safe.printed`, which also hides secrets.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

REPLACEMENT: Final = "\ufffd"

# CSI sequences; OSC and other strings, if they end soon, and on their line; and two-character escapes. A string that does not end would swallow
# all that comes after it, so its beginning is shown as a picture instead.
_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\n\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"
)
_HALVES: Final = re.compile("[\ud800-\udfff]")

_PICTURES: Final[dict[int, str]] = (
    {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    # They turn the direction of writing, or cannot be seen at all.
    | {
        code: f"\\u{code:04x}"
        for code in (0x061C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
    }
)
_HARMLESS_IN_OUTPUT: Final = {0x200C, 0x200D}  # joiners: many scripts, and emoji, need them
_OUTPUT: Final = {code: picture for code, picture in _PICTURES.items() if code not in _HARMLESS_IN_OUTPUT}

_NOT_PLAIN: Final = re.compile(r"[^\n\t -~]")
# Formatting, line and paragraph separators, private and unassigned ones, all blanks but the one of the keyboard.
_UNSEEN_KINDS: Final = {"Cf", "Zl", "Zp", "Zs", "Co", "Cn"}
# Letters and marks by name, but nothing is to be seen of them.
_UNSEEN: Final = {
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
    *range(0x180B, 0x1810),
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
}


def exact(text: str) -> str:
    """All of it, with a picture for whatever could not be seen."""
    return _NOT_PLAIN.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    return _spelled(found[0])


@lru_cache(4096)
def _spelled(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as Python carries it along
        return f"\\x{code - 0xDC00:02x}"
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    if code in _PICTURES:
        return _PICTURES[code]
    if code in _UNSEEN or unicodedata.category(character) in _UNSEEN_KINDS:
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return character


def shown(text: str) -> str:
    """Output, without what would move the cursor or change colours."""
    plain = _SEQUENCES.sub("", text.replace("\r\n", "\n"))
    return _HALVES.sub(REPLACEMENT, _last_of_overwritten(plain)).translate(_OUTPUT)


def _last_of_overwritten(text: str) -> str:
    """A line that was written over itself, as progress bars do, as it was at last."""
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))


def whole(text: str) -> tuple[str, int]:
    """The text without halves of characters, and how many were replaced."""
    return _HALVES.subn(REPLACEMENT, text)


def shortened(text: str, most: int) -> str:
    """One line of at most so many characters, for reading: blanks are drawn together."""
    return _cut(" ".join(text.split()), most)


def one_line(text: str, most: int) -> str:
    """One line of at most so many characters, as it is: the blanks of a command are part of it."""
    return _cut(without_line_ends(text), most)


def without_line_ends(text: str) -> str:
    """One line, with a picture for each line end."""
    return text.replace("\n", "⏎")


def both_ends(line: str, most: int) -> str:
    """At most so many characters of a line. What is left out is in the middle, so that neither end can be hidden."""
    if len(line) <= most:
        return line
    room = max(most - 24, 2)
    left_out = f" […{len(line) - room:,} characters…] "
    return line[: room - room // 2] + left_out + line[-(room // 2) :]


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else line[: max(most - 1, 0)] + "…"
