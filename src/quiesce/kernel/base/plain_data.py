"""Plain data, as JSON has it: texts that are safe to send anywhere, and the members of an object, checked when read.

Data leaves the program, so a text is made safe here, as where it is printed or logged: it has no secrets of known
shapes, no lone surrogates (UTF-8 cannot express them), and not more than `LONGEST_TEXT` characters.

Data that comes back may have been written by a newer version, or by anything else. Members that are not asked for are
ignored, those that may be absent may also be None, and an error says where the wrong value is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from quiesce._safe.secrets import without_secrets
from quiesce._safe.text import encodable

LONGEST_TEXT: Final = 10_000
_ROOM_FOR_COUNT: Final = 40
_WHAT_TO_DO: Final = "pass what to_dict() returned, decoded from JSON"


def plain_text(value: object, show: Callable[[object], str] = str) -> str:
    """What `show` returns for a value, as a text that is safe to send; if that raises, a text which says so."""
    try:
        # `str.__str__` makes a plain str of an instance of a subclass.
        text = encodable(without_secrets(str.__str__(show(value))))
    except Exception as error:
        return f"<{type(value).__name__}: its text cannot be read, {type(error).__name__} was raised>"
    if len(text) <= LONGEST_TEXT:
        return text
    kept = LONGEST_TEXT - _ROOM_FOR_COUNT
    return f"{text[:kept]}… ({len(text) - kept:,} more characters)"


class Record:
    """One JSON object; `where` is how errors name it, such as `StopReport.left[2]`."""

    __slots__ = ("_data", "_where")

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, Mapping):
            raise TypeError(f"{where} must be a dict, not {type(data).__name__}: {_WHAT_TO_DO}")
        self._data: Mapping[object, object] = data
        self._where = where

    def get(self, name: str) -> object:
        """A member, unchecked; None if it is absent."""
        return self._data.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """A text. Without a `default` it is required."""
        value = self._data.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, str):
            return value
        raise self._wrong(name, "a str")

    def seconds(self, name: str, default: float, infinite: float) -> float:
        """A number of seconds: `default` if it is absent, `infinite` if it is None, as JSON has no infinity."""
        value = self._data.get(name, default)
        if value is None:
            return infinite
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, "a number of seconds, or None for one without end")
        try:
            return float(value)
        except OverflowError:
            return infinite

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative. Without a `default` it is required."""
        value = self._data.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        raise self._wrong(name, "a whole number, 0 or more")

    def each(self, name: str) -> Iterator[tuple[object, str]]:
        """The members of a list, each with how errors name it. No list is an empty one."""
        values = self._data.get(name)
        if values is None:
            return
        if not isinstance(values, (list, tuple)):
            raise self._wrong(name, "a list")
        for index, value in enumerate(values):
            yield value, f"{self._where}.{name}[{index}]"

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        found = []
        for value, where in self.each(name):
            if not isinstance(value, str):
                raise TypeError(f"{where} must be a str, not {type(value).__name__}: {_WHAT_TO_DO}")
            found.append(value)
        return tuple(found)

    def inner(self, name: str) -> tuple[object, str] | None:
        """A member that is an object itself, with how errors name it; None if it is absent."""
        value = self._data.get(name)
        return None if value is None else (value, f"{self._where}.{name}")

    def _wrong(self, name: str, must_be: str) -> Exception:
        if name not in self._data:
            return ValueError(f"{self._where} has no {name!r}, which must be {must_be}: {_WHAT_TO_DO}")
        value: Any = self._data[name]
        message = (
            f"{self._where}.{name} must be {must_be}, not {plain_text(value, repr)[:100]}: {_WHAT_TO_DO}"
        )
        return ValueError(message) if isinstance(value, int) and value < 0 else TypeError(message)
