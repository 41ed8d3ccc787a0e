"""Where the CLI is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from quiesce.claude.types import ClaudeAgentOptions, CLINotFoundError

_USUAL_PLACES = (
    "~/.npm-global/bin/claude",
    "/usr/local/bin/claude",
    "~/.local/bin/claude",
    "~/node_modules/.bin/claude",
    "~/.yarn/bin/claude",
    "~/.claude/local/claude",
)


def find_cli(options: ClaudeAgentOptions) -> str:
    """The CLI to start: `options.cli_path`, the one in an installed claude-agent-sdk, `claude` on the PATH, or one in a usual place.

    Looks at files, and so may block for a moment.
    """
    if options.cli_path is not None:
        given = str(options.cli_path)
        # A relative path counts from where the CLI will run, and a bare name is looked for on the PATH: starting it will tell.
        if os.path.isabs(given) and not os.path.isfile(given):
            raise CLINotFoundError(
                f"Claude Code not found at: {given}, which is options.cli_path and no file: "
                "correct it, or leave it out to have the CLI looked for"
            )
        return given
    for place in _bundled():
        if place.is_file():
            return str(place)
    if on_path := shutil.which("claude"):
        return on_path
    for place in map(_at_home, _USUAL_PLACES):
        if place.is_file():
            return str(place)
    raise CLINotFoundError(_nowhere())


def _bundled() -> Iterator[Path]:
    spec = find_spec("claude_agent_sdk")  # does not import it
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(directory) / "_bundled" / "claude"


def _at_home(place: str) -> Path:
    return Path(os.path.expanduser(place))  # unlike Path.expanduser, fine without a home


def _nowhere() -> str:
    bundled = ", ".join(map(str, _bundled())) or "no claude-agent-sdk is installed here that could bring one"
    looked = [
        f"in claude-agent-sdk: {bundled}",
        f"for `claude` on the PATH: {os.environ.get('PATH') or 'which is empty'}",
        f"in the usual places: {', '.join(_USUAL_PLACES)}",
    ]
    return (
        "Claude Code not found. Looked\n"
        + "".join(f"  {where}\n" for where in looked)
        + "Install it (npm install -g @anthropic-ai/claude-code, or pip install claude-agent-sdk, which brings one), "
        "or say where it is: ClaudeAgentOptions(cli_path=...)"
    )
