"""`--model scripted --script FILE.json`: a model that answers from a file, for experiments and tests.

Its name says that it is a script. The file is a list of turns. A turn is a text, or an object with any of

- `text`, or `pieces`: a list of texts to stream, `delay` seconds apart;
- `calls`: a list of `{"name": "shell", "arguments": {"command": "ls"}}`;
- `after`: seconds to wait before the turn begins;
- `error`: fail with this message instead.

`{"turns": [...], "repeat": true}` starts over after the last turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import msgspec

from quiesce.inner import decoder_of
from quiesce.models import ModelEvent, ModelRequest, ModelRequestError, TextDelta
from quiesce.testing import Answer, ScriptedModel, Turn, call


class BadScript(Exception):
    """The file is not a valid script; the message says why."""


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}
    id: str | None = None


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    pieces: list[str] = []
    calls: list[_Call] = []
    delay: float = 0.0
    after: float = 0.0
    error: str | None = None


class _Script(msgspec.Struct, forbid_unknown_fields=True):
    turns: list[str | _Turn]
    repeat: bool = False


class ScriptFileModel(ScriptedModel):
    """A `ScriptedModel` with the delays of a script file."""

    def __init__(self, turns: list[_Turn], *, repeat: bool = False, name: str = "scripted") -> None:
        super().__init__([_answer(turn) for turn in turns], name)
        self._timed = turns
        self._repeat = repeat

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the next turn, with its delays."""
        # `ScriptedModel` takes the turn from `_script` by the number of requests so far, so a script repeats by
        # growing.
        number = len(self.requests)
        if self._repeat and self._timed and number >= len(self._script):
            self._script.append(self._script[number % len(self._timed)])
        turn = self._timed[number % len(self._timed)] if self._timed else _Turn()
        async with contextlib.aclosing(super().stream(request)) as events:
            async for event in events:
                if turn.delay and isinstance(event, TextDelta):
                    await anyio.sleep(turn.delay)
                yield event


def load_script(path: str) -> ScriptFileModel:
    """Make the model that a script file describes; raises `BadScript` if the file is not valid."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadScript(f"the script {path!r} cannot be read: {error.strerror}") from error
    try:
        script = decoder_of(_Script | list[str | _Turn])(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadScript(f"{path!r} is not a valid script: {error}") from error
    turns = script if isinstance(script, list) else script.turns
    timed = [_Turn(text=turn) if isinstance(turn, str) else turn for turn in turns]
    return ScriptFileModel(timed, repeat=isinstance(script, _Script) and script.repeat, name="scripted")


def _answer(turn: _Turn) -> Turn:
    pieces = [*turn.pieces, *([turn.text] if turn.text else [])]
    answer: Turn = Answer(pieces, [call(made.name, made.id, **made.arguments) for made in turn.calls])
    if turn.error is not None:
        answer = ModelRequestError(turn.error)

    async def later(request: ModelRequest) -> Turn:
        await anyio.sleep(turn.after)
        return answer

    return later if turn.after else answer
