"""How the answer of a model, an async generator, is closed before its end: in the task that ran it, and until nothing of it is left."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio

_MOST_YIELDS = 100  # of a clean-up that never stops yielding, one must be the last


async def close_answer(answer: Any, cut: BaseException, model: str) -> None:
    """Let it clean up, though this task is being cancelled; `cut` is what goes on after that.

    One that yields meanwhile is asked for more until it has ended, or the collector would have the rest of its clean-up.
    """
    with anyio.CancelScope(shield=True):
        try:
            await answer.aclose()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                raise
            cut.add_note(f"model {model!r} yields while its answer is being closed: that is not used")
            with suppress(StopAsyncIteration, GeneratorExit):
                for _ in range(_MOST_YIELDS):
                    await answer.__anext__()
