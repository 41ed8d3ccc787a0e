"""The examples of pydantic-ai (see `dropin_tests.compared`), with a provider that makes its answers up.

They have a distribution of their own, in the version of the oldest release that is accepted: newer releases of
the SDK run the same. Those that wait for a page or a terminal have a user (`used`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dropin_tests.compared import Examples, Program, as_module, main, server

HERE = Path(__file__).parent

LEFT_OUT = {
    "pydantic_ai_examples/__main__.py": "not an example: it copies the others",
    "ag_ui/__main__.py": "a server for the applications that are used here one by one",
    "ag_ui/__init__.py": "a server for the applications that are used here one by one",
    "realtime_": "realtime, with a microphone, a camera or a browser",
    "slack_lead_qualifier/": "tools of other products",
    "twelvelabs_video_agent.py": "tools of other products",
    "weather_agent": "needs the internet",
    "data_analyst.py": "needs the internet",
    "rag.py": "needs a database server",
    "sql_gen.py": "needs a database server",
    "example_01_": "has no agent of its own",
    "example_02_": "has no agent of its own",
}


def programs(path: str, text: str) -> Iterable[Program] | str:
    module = path.removesuffix(".py").replace("/", ".")
    is_used = "\napp = " in text or module.endswith("cancel_and_resume")
    return [Program("used", (module,))] if is_used else as_module(path, text)


@contextmanager
def provider() -> Iterator[Mapping[str, str]]:
    with server(HERE.parent / "openai_api.py") as port:
        url = f"http://127.0.0.1:{port}"
        yield {
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{url}/v1",
            "GROQ_API_KEY": "none",
            "GROQ_BASE_URL": url,
            "LOGFIRE_CONSOLE_SPAN_STYLE": "indented",  # otherwise parents are repeated, as tasks are interleaved
            "PYTHONPATH": str(HERE),
        }


if __name__ == "__main__":
    sys.exit(
        main(
            Examples(
                "pydantic-ai-examples",
                "pydantic_ai",
                "quiesce.dropin.pydantic_ai",
                release="2.62.0",
                packages=HERE / "examples.txt",
                left_out=LEFT_OUT,
                folders=("pydantic_ai_examples",),
                programs=programs,
                serving=provider,
            )
        )
    )
