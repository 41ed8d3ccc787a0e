"""How many examples of other SDKs find every name they import, with only the name of the package changed.

`sdk_examples.json` says what they import; `scripts/sdk_examples.py --write` made it of the source distributions. The
numbers are those of the documentation, which has to follow.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FACTS: dict[str, dict[str, list[str]]] = json.loads((ROOT / "tests" / "sdk_examples.json").read_text())
PAGES = {
    "openai-agents": "docs/agents/from-openai-agents.md",
    "agent-client-protocol": "docs/acp/carry-over.md",
    "claude-agent-sdk": "docs/claude/carry-over.md",
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    yield import_module("sdk_examples")
    del sys.modules["sdk_examples"]


@pytest.mark.parametrize("distribution", PAGES)
def test_the_documentation_says_how_many_examples_find_every_name(script: Any, distribution: str) -> None:
    (sdk,) = [one for one in script.SDKS if one.distribution == distribution]
    examples = FACTS[distribution]
    found = sum(not script.missing(imports, sdk) for imports in examples.values())
    said = re.search(r"(\d+) of (?:the|its) (\d+) examples", (ROOT / PAGES[distribution]).read_text())
    assert said is not None
    assert (int(said[1]), int(said[2])) == (found, len(examples))


def test_a_name_that_does_not_exist_is_missing_and_a_module_may_be_a_name(script: Any) -> None:
    openai = script.SDKS[0]
    imports = ["agents:Agent", "agents:NoSuchAgent", "agents.nowhere:", "agents.extensions:handoff_filters"]
    assert script.missing(imports, openai) == ["agents:NoSuchAgent", "agents.nowhere:"]


def test_the_imports_of_an_example_are_those_of_the_sdk_alone(script: Any, tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text(
        "import agents.items\nfrom agents import Agent, trace\nfrom agentsmith import X\nfrom . import agents\n"
        "def later():\n    from agents.mcp import MCPServerStdio\n"
    )
    assert script.imports_of(example, "agents") == [
        "agents.items:",
        "agents.mcp:MCPServerStdio",
        "agents:Agent",
        "agents:trace",
    ]
