"""Count, and run, the examples of other SDKs with only the name of the package changed.

    python scripts/sdk_examples.py                       # count: those whose imports all exist here
    python scripts/sdk_examples.py --missing             # and what the others lack
    python scripts/sdk_examples.py --write               # put what they import into tests/sdk_examples.json
    python scripts/sdk_examples.py --run                 # run those of openai-agents that can run alone

The examples are in the source distributions, which pip fetches from the package index; `--sources FOLDER` is a
folder that has them already, unpacked. An example counts if every name that it imports from the SDK exists under the
new name of the package: `agents` becomes `quiesce.agents`, `acp` `quiesce.acp`, `claude_agent_sdk`
`quiesce.claude`. Examples of sandboxes and voice are left out, because neither is here.

`--run` changes two things in an example: the name of the package, and the model of each `Agent(...)`, which becomes
`StandIn`. It calls each tool once, hands over where it can, and gives answers of the right shape. An example has run
if its process exits with status 0 within a minute. Examples that need another program or the network are left out.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FACTS = Path(__file__).parents[1] / "tests" / "sdk_examples.json"


class Sdk(NamedTuple):
    """A distribution with examples, the package that they import, and the one that takes its place."""

    distribution: str
    version: str
    package: str
    ours: str
    left_out: frozenset[str] = frozenset()

    @property
    def folder(self) -> str:
        """Where its source distribution puts itself."""
        return f"{self.distribution.replace('-', '_')}-{self.version}"


SDKS = (
    Sdk("openai-agents", "0.24.0", "agents", "quiesce.agents", frozenset({"sandbox", "voice"})),
    Sdk("agent-client-protocol", "0.12.1", "acp", "quiesce.acp"),
    Sdk("claude-agent-sdk", "0.2.182", "claude_agent_sdk", "quiesce.claude"),
)

# What an example cannot do without, besides a model.
NEEDS_MORE = {
    "basic/tool_guardrails.py": "a model that follows its instructions: the stand-in calls the tool that trips",
    "decisions/classify.py": "OpenAI's API, besides an agent's model",
    "decisions/model_router.py": "OpenAI's API, besides an agent's model",
    "decisions/tool_risk_gate.py": "OpenAI's API, besides an agent's model",
    "reasoning_content/runner_example.py": "a model that reasons",
    "mcp/filesystem_example/main.py": "npx",
    "mcp/git_example/main.py": "uvx",
    "mcp/prompt_server/main.py": "a server on a fixed port",
    "mcp/streamable_http_remote_example/main.py": "the network",
    "mcp/streamablehttp_custom_client_example/main.py": "a server on a fixed port",
    "mcp/streamablehttp_example/main.py": "a server on a fixed port",
    "mcp/tool_filter_example/main.py": "npx",
    "live/app/agent.py": "a browser",
    "live/app/delegation.py": "a browser",
    "live/app/server.py": "a browser",
    "model_providers/any_llm_auto.py": "any-llm",
    "model_providers/litellm_auto.py": "litellm",
}


def sources(folder: Path) -> None:
    """Fetch and unpack what is not in the folder yet."""
    for sdk in SDKS:
        if not (folder / sdk.folder).exists():
            wanted = f"{sdk.distribution}=={sdk.version}"
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                ":all:",
                wanted,
            ]
            subprocess.run([*command, "-d", str(folder)], check=True)
            archive = f"{folder / sdk.folder}.tar.gz"
            subprocess.run(["tar", "xzf", archive, "-C", str(folder)], check=True)


# Counting


def imports_of(example: Path, package: str) -> list[str]:
    """What an example imports from a package, as `module:name`; a module alone as `module:`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(example.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_in(node.module or "", package):
            found |= {f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {f"{alias.name}:" for alias in node.names if _is_in(alias.name, package)}
    return sorted(found)


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def examples_of(sdk: Sdk, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The examples that use the SDK, and what they import from it."""
    root = folder / sdk.folder / "examples"
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not sdk.left_out & set(name.parts) and (imports := imports_of(path, sdk.package)):
            yield name.as_posix(), imports


def missing(imports: list[str], sdk: Sdk) -> list[str]:
    """Those of the names that do not exist here."""
    return [one for one in imports if not _exists(*f"{sdk.ours}{one.removeprefix(sdk.package)}".split(":"))]


def _exists(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        if name not in ("", "*") and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def _one_example_per_line(facts: dict[str, dict[str, list[str]]]) -> str:
    parts = [
        f'"{distribution}": {{\n'
        + ",\n".join(f'"{name}": {json.dumps(one)}' for name, one in examples.items())
        + "\n}"
        for distribution, examples in facts.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


# Running


def runnable(sdk: Sdk, facts: dict[str, list[str]], root: Path) -> list[str]:
    """The examples with a main program that need nothing that is not here."""
    return [
        name
        for name, imports in facts.items()
        if not missing(imports, sdk) and name not in NEEDS_MORE and "__main__" in (root / name).read_text()
    ]


def run(sdk: Sdk, folder: Path, names: list[str]) -> int:
    """Run them, one after the other, and say what became of each."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            named = {f"EXAMPLE_{part}": "http://127.0.0.1" for part in ("BASE_URL", "API_KEY", "MODEL_NAME")}
            environment = {
                **os.environ,
                **named,
                "EXAMPLES_INTERACTIVE_MODE": "auto",
                "OPENAI_API_KEY": "none",
            }
            try:
                done = subprocess.run(
                    [sys.executable, __file__, "--run-one", str(folder / sdk.folder), name],
                    cwd=scratch,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                fault = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]
            except subprocess.TimeoutExpired:
                fault = "does not end"
            failed += bool(fault)
            print(f"{'FAILS' if fault else 'runs '}  {name}{'  ' + fault if fault else ''}", flush=True)
    return failed


class _Changed(ast.NodeTransformer):
    """The name of the package, and the model of each agent."""

    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if not node.level and node.module is not None and _is_in(node.module, self._sdk.package):
            node.module = self._sdk.ours + node.module.removeprefix(self._sdk.package)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        made = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        if isinstance(made, ast.Name) and made.id == "Agent":
            node.keywords = [word for word in node.keywords if word.arg != "model"]
            node.keywords.append(ast.keyword("model", ast.Name("STAND_IN", ast.Load())))
        return node


def run_one(root: Path, name: str) -> None:
    """Run one example in this process, as `python name` would."""
    sys.path[:0] = [str(root), str((root / "examples" / name).parent)]
    path = root / "examples" / name
    tree = ast.fix_missing_locations(_Changed(SDKS[0]).visit(ast.parse(path.read_text())))
    sys.argv = [str(path)]
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    module.__dict__.update(__file__=str(path), STAND_IN=StandIn())
    exec(compile(tree, path, "exec"), module.__dict__)


class StandIn:
    """A model that knows nothing: it uses what it is offered once, and then answers in the shape that is wanted."""

    name = "stand-in"

    async def stream(self, request: Any) -> Any:
        from quiesce.models import AssistantMessage, ItemDone, ResponseDone, TextDelta, ToolCall, Usage

        last = max(
            (n for n, item in enumerate(request.items) if type(item).__name__ == "UserMessage"), default=0
        )
        used = {item.name for item in request.items[last:] if isinstance(item, ToolCall)}
        for tool in request.tools:
            if tool.name not in used and request.settings.tool_choice != "none":
                arguments = json.dumps(value_of(tool.parameters, tool.parameters))
                yield ItemDone(ToolCall(f"call_{len(request.items)}", tool.name, arguments))
                yield ResponseDone(Usage(requests=1, input_tokens=10, output_tokens=1), "tool_calls")
                return
        text = "A made-up answer."
        if request.output is not None:
            text = json.dumps(value_of(request.output.schema, request.output.schema))
        for piece in text.split():
            yield TextDelta(piece + " ")
        yield ItemDone(AssistantMessage(text))
        yield ResponseDone(Usage(requests=1, input_tokens=10, output_tokens=5))


def value_of(schema: Any, whole: Any) -> Any:
    """Some value that fits a JSON schema. What may be a choice is the last one, which ends loops that wait for it."""
    if "$ref" in schema:
        return value_of(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return value_of(schema[choice][0], whole)
    kind = schema.get("type")
    if kind == "object":
        return {name: value_of(one, whole) for name, one in schema.get("properties", {}).items()}
    if kind == "array":
        return [value_of(schema.get("items", {"type": "string"}), whole)]
    made: dict[Any, Any] = {"integer": 3, "number": 3.5, "boolean": False, "null": None}
    return made.get(kind, "something")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sources", type=Path, help="a folder with the unpacked source distributions")
    parser.add_argument("--missing", action="store_true", help="say what the other examples lack")
    parser.add_argument("--write", action="store_true", help=f"write {FACTS.name}")
    parser.add_argument("--run", nargs="*", metavar="EXAMPLE", help="run examples of openai-agents")
    parser.add_argument("--run-one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run_one:
        run_one(Path(chosen.run_one[0]), chosen.run_one[1])
        return 0
    folder: Path = chosen.sources or Path(tempfile.mkdtemp(prefix="sdk-examples-"))
    sources(folder)
    facts = {sdk.distribution: dict(examples_of(sdk, folder)) for sdk in SDKS}
    if chosen.write:
        FACTS.write_text(_one_example_per_line(facts))
    if chosen.run is not None:
        openai = SDKS[0]
        return (
            run(
                openai,
                folder,
                chosen.run
                or runnable(openai, facts[openai.distribution], folder / openai.folder / "examples"),
            )
            > 0
        )
    for sdk in SDKS:
        lacks = {name: missing(imports, sdk) for name, imports in facts[sdk.distribution].items()}
        print(
            f"{sdk.distribution} {sdk.version}: {sum(not names for names in lacks.values())} of {len(lacks)}"
        )
        for name, names in lacks.items() if chosen.missing else ():
            if names:
                print(f"    {name}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
