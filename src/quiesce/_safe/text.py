"""Text from untrusted sources, made safe for a terminal, a log or a page.

What a model writes, a program prints or a file holds may contain anything: sequences that move the cursor,
set the title or paste, marks that reverse the direction of writing so that a command reads like another one,
spaces that are not the space of the keyboard, lone surrogates. None of it reaches the terminal unchanged.

- `exact` is for what a user is about to approve: nothing is left out, everything is visible, and a space is a
  space.
- `shown` is for output: colours and cursor movements of programs are removed, because they mean nothing here.
  Characters that could hide or reverse other text are escaped. Characters that many scripts need (joiners,
  no-break spaces, variation selectors) are kept.
- `whole` is for input: bytes that are not UTF-8 are replaced, and counted.

Reports, errors and log records go through `quiesce._safe.printed`, which also hides secrets.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

REPLACEMENT: Final = "\ufffd"

# CSI sequences; OSC and other strings, if they end soon and on the same line; and two-character escapes. A
# string that does not end would swallow all text after it, so the symbol for its escape character is shown
# instead.
_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\n\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")

# What is shown in place of a character: a symbol such as ␛ for a control character, an escape such as \u202e
# for others.
_SYMBOLS: Final[dict[int, str]] = (
    {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    # These reverse the direction of writing, or are invisible.
    | {
        code: f"\\u{code:04x}"
        for code in (0x061C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
    }
)
# Joiners, which many scripts and emoji need.
_HARMLESS_IN_OUTPUT: Final = {0x200C, 0x200D}
_OUTPUT: Final = {code: symbol for code, symbol in _SYMBOLS.items() if code not in _HARMLESS_IN_OUTPUT}

_NOT_PLAIN: Final = re.compile(r"[^\n\t -~]")
# Unicode categories: formatting, line and paragraph separators, spaces, private use and unassigned
# characters. The space of the keyboard is plain, and never gets here.
_INVISIBLE_CATEGORIES: Final = {"Cf", "Zl", "Zp", "Zs", "Co", "Cn"}
# Letters and marks by category, but invisible.
_INVISIBLE: Final = {
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
    *range(0x180B, 0x1810),
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
}


def exact(text: str) -> str:
    """The whole text, with a symbol or an escape for every character that is invisible or misleading."""
    return _NOT_PLAIN.sub(lambda found: _visible(found[0]), text)


@lru_cache(4096)
def _visible(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, decoded with "surrogateescape"
        return f"\\x{code - 0xDC00:02x}"
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    if code in _SYMBOLS:
        return _SYMBOLS[code]
    if code in _INVISIBLE or unicodedata.category(character) in _INVISIBLE_CATEGORIES:
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return character


def shown(text: str) -> str:
    """The output of a program or a model, without what moves the cursor, changes colours or hides text."""
    plain = _SEQUENCES.sub("", text.replace("\r\n", "\n"))
    return _SURROGATES.sub(REPLACEMENT, _last_of_overwritten(plain)).translate(_OUTPUT)


def _last_of_overwritten(text: str) -> str:
    """The final state of lines that were overwritten with carriage returns, as progress bars do."""
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))


def whole(text: str) -> tuple[str, int]:
    """The text with lone surrogates replaced, and how many there were."""
    return _SURROGATES.subn(REPLACEMENT, text)


def encodable(text: str) -> str:
    """The text with an escape such as \\ud800 for each lone surrogate, so that it can be encoded as UTF-8."""
    return _SURROGATES.sub(lambda found: _visible(found[0]), text)


def shortened(text: str, most: int) -> str:
    """One line of at most `most` characters, for reading: every run of whitespace becomes one space."""
    return _cut(" ".join(text.split()), most)


def one_line(text: str, most: int) -> str:
    """One line of at most `most` characters. Spaces are kept, because those of a command are part of it."""
    return _cut(without_line_ends(text), most)


def without_line_ends(text: str) -> str:
    """The text as one line, with the symbol ⏎ for each line end."""
    return text.replace("\n", "⏎")


def both_ends(line: str, most: int) -> str:
    """A line of at most `most` characters, shortened in the middle, so that neither end can be hidden."""
    if len(line) <= most:
        return line
    room = max(most - 24, 2)
    left_out = f" […{len(line) - room:,} characters…] "
    return line[: room - room // 2] + left_out + line[-(room // 2) :]


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else line[: max(most - 1, 0)] + "…"
