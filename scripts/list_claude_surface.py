"""List what users of claude-agent-sdk write and get: its names with their fields, and what it makes of the
tables in tests/claude.

    python -m venv sdk && sdk/bin/pip install claude-agent-sdk==0.2.182
    sdk/bin/python scripts/list_claude_surface.py > tests/claude/sdk_surface.json

Run it with the Python that has the package. The command lines and environments are those that it would start
a CLI with, the initialize requests those that it writes to one; no CLI is started.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import logging
import os
import sys
import tempfile
import typing
import warnings
from pathlib import Path
from types import UnionType
from typing import Any

ROOT = Path(__file__).parents[1]


def described(thing: Any) -> Any:
    """A name of a library: what it is, and its fields, parameters or values."""
    if typing.is_typeddict(thing):
        hints = {name: written_type(hint) for name, hint in typing.get_type_hints(thing).items()}
        return {"typeddict": hints, "required": sorted(thing.__required_keys__)}
    if dataclasses.is_dataclass(thing):
        hints = typing.get_type_hints(thing)
        return {
            "dataclass": {
                one.name: [written_type(hints[one.name]), default_of(one)]
                for one in dataclasses.fields(thing)
            },
            "bases": [base.__name__ for base in thing.__mro__[1:-1]],  # type: ignore[union-attr]
        }
    if inspect.isclass(thing) and issubclass(thing, Exception):
        known = inspect.isfunction(thing.__init__)
        return {
            "exception": list(inspect.signature(thing).parameters) if known else None,
            "bases": [base.__name__ for base in thing.__mro__[1:-1]],
        }
    if inspect.isclass(thing):
        return {"class": sorted(name for name in vars(thing) if not name.startswith("_"))}
    if inspect.isfunction(thing):
        return {"function": list(inspect.signature(thing).parameters)}
    if isinstance(thing, frozenset):
        return {"values": sorted(thing)}
    if isinstance(thing, str):
        return {"str": None}
    return {"type": written_type(thing)}


def written_type(hint: Any) -> str:
    """A type without the names of modules, and with the members of unions and literals in order."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return " | ".join(sorted(written_type(one) for one in flat_union(hint)))
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(sorted(repr(one) for one in typing.get_args(hint)))
    if isinstance(hint, list):
        return f"[{', '.join(map(written_type, hint))}]"
    if args := typing.get_args(hint):
        name = getattr(typing.get_origin(hint), "__name__", str(typing.get_origin(hint)))
        return f"{name}[{', '.join(written_type(one) for one in args)}]"
    if hint is type(None):
        return "None"
    return str(getattr(hint, "__name__", hint)).split(".")[-1]


def flat_union(hint: Any) -> list[Any]:
    return list(dict.fromkeys(typing.get_args(hint)))


def default_of(one: dataclasses.Field[Any]) -> str:
    if one.default is not dataclasses.MISSING:
        return "sys.stderr" if one.name == "debug_stderr" else repr(one.default)
    return "required" if one.default_factory is dataclasses.MISSING else f"{one.default_factory()!r}"


def plain(thing: Any) -> Any:
    """A message as JSON can say it, with the names of its classes."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {one.name: plain(getattr(thing, one.name)) for one in dataclasses.fields(thing)}
        return {"class": type(thing).__name__, **fields}
    if isinstance(thing, list):
        return [plain(one) for one in thing]
    return thing


def parsed(parse: Any, message: Any, error: type[Exception]) -> Any:
    try:
        return plain(parse(message))
    except error as wrong:
        return {"error": str(wrong), "data": getattr(wrong, "data", None)}


def in_place(text: Any, directory: str) -> Any:
    """Without the name of a directory that is another one each time."""
    return json.loads(json.dumps(text).replace(directory, "DIRECTORY"))


class Spawned(Exception):
    pass


async def started_with(options: Any) -> dict[str, Any]:
    """The command line and the environment that the package would start a CLI with."""
    import anyio
    from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport
    from claude_agent_sdk.types import _configure_can_use_tool

    seen: dict[str, Any] = {}

    async def spawn(command: Any, **how: Any) -> None:
        seen.update(command=command, environment=how["env"])
        raise Spawned

    real: Any = anyio.open_process
    setattr(anyio, "open_process", spawn)  # noqa: B010
    try:
        await SubprocessCLITransport("", _configure_can_use_tool(options)).connect()
    except Exception as error:
        if not seen:
            return {"error": type(error).__name__}
    finally:
        setattr(anyio, "open_process", real)  # noqa: B010
    return seen


async def initialized_with(options: Any) -> dict[str, Any]:
    """The first request that the package writes."""
    from claude_agent_sdk import Transport, query

    class Recorder(Transport):  # type: ignore[misc]  # unknown where the package is not
        def __init__(self) -> None:
            self.request: dict[str, Any] = {}

        async def connect(self) -> None: ...
        async def close(self) -> None: ...
        async def end_input(self) -> None: ...
        def is_ready(self) -> bool:
            return True

        async def write(self, data: str) -> None:
            self.request = self.request or json.loads(data)["request"]
            raise Spawned

        async def read_messages(self) -> Any:
            await asyncio.sleep(3600)
            yield {}

    recorder = Recorder()
    try:
        async for _ in query(prompt="", options=options, transport=recorder):
            pass
    except Exception:
        pass
    return recorder.request


async def answered(server: Any, messages: list[Any]) -> list[Any]:
    from claude_agent_sdk._internal.sdk_mcp_bridge import SdkMcpBridge

    bridge = SdkMcpBridge("table", server["instance"])
    answers = [await bridge.handle(message) for message in messages]
    await bridge.aclose()
    return answers


async def listed() -> dict[str, Any]:
    import claude_agent_sdk as sdk
    from claude_agent_sdk import types
    from claude_agent_sdk._errors import MessageParseError
    from claude_agent_sdk._internal.message_parser import parse_message
    from tests.claude import message_table, option_sets, tool_table

    beside = [
        name
        for name, value in vars(types).items()
        if name[0].isupper()
        and not hasattr(typing, name)
        and name not in ("Path", "McpServer")
        and not name.startswith(("SDKControl", "SDKHook", "Control"))
        and (not inspect.isclass(value) or value.__module__ == types.__name__)
    ]
    surface: dict[str, Any] = {
        "version": sdk.__version__,
        "exports": {name: described(getattr(sdk, name)) for name in sdk.__all__},
        "types": {name: described(getattr(types, name)) for name in beside if name not in sdk.__all__},
    }
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "settings.json").write_text(option_sets.SETTINGS, encoding="utf-8")
        (Path(directory) / "list.json").write_text("[]")
        sets = option_sets.option_sets(sdk, Path(directory))
        for one in sets.values():
            one.cli_path = "claude"
        os.environ.clear()
        os.environ.update(option_sets.ENVIRONMENT)
        started = {name: await started_with(options) for name, options in sets.items()}
        wrong = [
            sdk.ClaudeAgentOptions(skills=skills, cli_path="claude") for skills in option_sets.WRONG_SKILLS
        ]
        surface["wrong_skills"] = [await started_with(options) for options in wrong]
        initialized = {name: await initialized_with(options) for name, options in sets.items()}
        surface["started"] = in_place(started, directory)
        surface["initialize"] = in_place(initialized, directory)
    surface["parsed"] = [parsed(parse_message, one, MessageParseError) for one in message_table.MESSAGES]
    # A server of the package answers nobody before the handshake.
    answers = await answered(tool_table.server(sdk), tool_table.MESSAGES + tool_table.REFUSED)
    surface["answers"] = answers
    return surface


def written(surface: dict[str, Any]) -> str:
    """JSON, with a line for each name."""
    sections = []
    for title, section in surface.items():
        text = json.dumps(section)
        if isinstance(section, dict):
            rows = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(section.items())
            )
            text = f"{{\n{rows}\n }}"
        elif isinstance(section, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in section) + "\n ]"
        sections.append(f" {json.dumps(title)}: {text}")
    return "{\n" + ",\n".join(sections) + "\n}"


def main() -> int:
    sys.path.insert(0, str(ROOT))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(written(asyncio.run(listed())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
