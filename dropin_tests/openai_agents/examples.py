"""The examples of openai-agents (see `dropin_tests.compared`), with a provider that makes its answers up."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dropin_tests.compared import Examples, main, server

LEFT_OUT = {
    "sandbox/": "sandbox",
    "voice/": "voice",
    "realtime/": "realtime, with a microphone, a phone or a browser",
    "live/": "realtime, with a microphone, a phone or a browser",
    "hosted_mcp/": "hosted tools",
    "tools/": "hosted tools, or tools of another product",
    "research_bot/": "hosted tools",
    "financial_research_agent/": "hosted tools",
    "run_examples.py": "not an example: it runs the others",
    "auto_mode.py": "not an example: others import it",
    "web_search_utils.py": "not an example: others import it",
    "memory/file_session.py": "not an example: others import it",
    "server.py": "a server: other examples start it",
    "remote_example/": "needs the internet",
    "basic/remote_": "needs the internet",
}


@contextmanager
def provider() -> Iterator[Mapping[str, str]]:
    with server(Path(__file__).parent / "provider.py") as port:
        url = f"http://127.0.0.1:{port}/v1"
        yield {
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": url,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "EXAMPLES_INTERACTIVE_MODE": "auto",
            "EXAMPLE_BASE_URL": url,
            "EXAMPLE_API_KEY": "none",
            "EXAMPLE_MODEL_NAME": "made-up",
        }


if __name__ == "__main__":
    sys.exit(
        main(
            Examples("openai-agents", "agents", "quiesce.dropin.agents", left_out=LEFT_OUT, serving=provider)
        )
    )
