"""Errors as plain data: their type and text, and the errors that are made of such data.

An error as it is cannot be sent: its class may not exist elsewhere, and it refers to frames and all their
variables. What is kept of it is bounded, so that a group of thousands of errors, or one that is nested without end,
does not make a report that cannot be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from .plain_data import Record, plain_text

#: What is kept of one error: levels of nested groups, errors in them, and notes of each.
DEEPEST: Final = 8
MOST_ERRORS: Final = 100
MOST_NOTES: Final = 20


class RemoteError(Exception):
    """An error of another process, or of an earlier one: its type and its text.

    It takes the place of the error in a `StopReport`, an `Outcome` or a `Reason` that `from_dict` made, or that was
    unpickled.

    - `type`: the name of its class as a traceback shows it, such as `"httpx.ConnectError"`.
    - `text`: what its `str()` was.
    - `exceptions`: the errors in it, if it is a group; of nested or very large groups only some.
    - `original_repr`: what its `repr()` was.

    Its notes are notes of this one.

    ```python
    report = StopReport.from_dict(json.loads(text))
    for error in report.errors:
        if isinstance(error, RemoteError) and error.type == "httpx.ConnectError":
            print("no connection:", error.text)
    ```
    """

    type: str
    text: str
    exceptions: tuple[RemoteError, ...]
    original_repr: str

    def __init__(
        self,
        type: str,  # noqa: A002 - what it is
        text: str = "",
        *,
        exceptions: Iterable[RemoteError] = (),
        original_repr: str = "",
    ) -> None:
        super().__init__(type, text)
        self.type = type
        self.text = text
        self.exceptions = tuple(exceptions)
        self.original_repr = original_repr or _usual_repr(type, text)

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


def type_and_text(error: BaseException) -> str:
    """One error in a line, with the name of its class alone: `ConnectError: no route to host`."""
    if isinstance(error, RemoteError):
        return f"{_last_name(error.type)}: {error.text}"
    return f"{type(error).__name__}: {error}"


def repr_of(error: BaseException) -> str:
    """The `repr()` that the error has, or that it had where it was raised."""
    return error.original_repr if isinstance(error, RemoteError) else repr(error)


def error_to_dict(error: BaseException) -> dict[str, Any]:
    """The error as plain data."""
    return _to_dict(error, DEEPEST, [MOST_ERRORS])


def error_from_dict(data: object, where: str) -> RemoteError:
    """The error that `data` holds; `where` is how errors in the data are named."""
    return _from_dict(data, where, DEEPEST, [MOST_ERRORS])


# `room` has one number: how many more errors may be kept.


def _to_dict(error: BaseException, levels: int, room: list[int]) -> dict[str, Any]:
    room[0] -= 1
    if isinstance(error, RemoteError):
        name, text, shown = plain_text(error.type), plain_text(error.text), plain_text(error.original_repr)
    else:
        name, text, shown = plain_text(type(error), _class_name), plain_text(error), plain_text(error, repr)
    data: dict[str, Any] = {"type": name, "text": text}
    if shown != _usual_repr(name, text):
        data["repr"] = shown
    if notes := _notes_of(error):
        data["notes"] = notes
    inside: list[dict[str, Any]] = []
    for part in _parts_of(error):
        if levels == 1 or room[0] == 0:
            break
        inside.append(_to_dict(part, levels - 1, room))
    if inside:
        data["exceptions"] = inside
    return data


def _from_dict(data: object, where: str, levels: int, room: list[int]) -> RemoteError:
    room[0] -= 1
    record = Record(data, where)
    name, text, shown = record.text("type"), record.text("text", ""), record.text("repr", "")
    inside: list[RemoteError] = []
    for part, there in record.each("exceptions"):
        if levels == 1 or room[0] == 0:
            break
        inside.append(_from_dict(part, there, levels - 1, room))
    error = RemoteError(name, text, exceptions=inside, original_repr=shown)
    for note in record.texts("notes")[:MOST_NOTES]:
        error.add_note(note)
    return error


def _parts_of(error: BaseException) -> Iterable[BaseException]:
    return error.exceptions if isinstance(error, (RemoteError, BaseExceptionGroup)) else ()


def _notes_of(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)  # whatever the program has put there
    return [plain_text(note) for note in notes[:MOST_NOTES]] if isinstance(notes, (list, tuple)) else []


def _class_name(kind: Any) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _usual_repr(name: str, text: str) -> str:
    return f"{_last_name(name)}({text!r})"


def _last_name(name: str) -> str:
    return name.rpartition(".")[2]
