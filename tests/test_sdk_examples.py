"""How many examples of other SDKs find every name they import, with only the name of the package changed.

`sdk_examples.json` says what they import; `scripts/sdk_examples.py --write` made it of the source distributions. The
numbers are those of the documentation, which has to follow.
"""

from __future__ import annotations

import json
import re
import subprocess
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


# Running them -------------------------------------------------------------------------------------------------

RUNS = """
import asyncio
from pydantic import BaseModel
from agents import Agent, Runner, trace
from agents.decorators import tool

class Weather(BaseModel):
    city: str
    degrees: int

@tool
def look(city: str) -> str:
    print("looked for", city)
    return "mild"

async def main() -> None:
    other = Agent(name="other", model="gpt-none", output_type=Weather)
    agent = Agent[None](name="first", model="gpt-none", tools=[look], handoffs=[other])
    with trace("Weather"):
        result = await Runner.run(agent, [{"role": "user", "content": "Is it mild?"}])
    print(result.last_agent.name, result.final_output)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_an_example_runs_with_only_the_package_and_its_models_changed(tmp_path: Path, script: Any) -> None:
    for sdk in script.SDKS:
        (tmp_path / sdk.folder / "examples").mkdir(parents=True)
    examples = tmp_path / script.SDKS[0].folder / "examples"
    (examples / "runs.py").write_text(RUNS)
    (examples / "fails.py").write_text(RUNS.replace("tools=[look]", "tools=[None]"))
    command = [sys.executable, "-W", "error", script.__file__, "--sources", str(tmp_path)]
    one = subprocess.run(
        [*command, "--run-one", str(examples.parent), "runs.py"], capture_output=True, text=True, check=False
    )
    assert (one.stderr, one.stdout) == ("", "looked for something\nother city='something' degrees=3\n")
    both = subprocess.run([*command, "--run"], capture_output=True, text=True, check=False)
    failed, ran = both.stdout.splitlines()
    assert failed.startswith("FAILS  fails.py  ")
    assert "tools of agent 'first'" in failed
    assert ran == "runs   runs.py"
    assert both.returncode == 1
