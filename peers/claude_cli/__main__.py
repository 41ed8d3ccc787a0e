"""Run the cases, print the table; exits 1 if one of them is not as it should be, or could not be run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .stops import NOT_STOPPED, STOPS
from .uses import USES

BACKENDS = ("asyncio", "trio")
CASE_LIMIT = 110.0  # seconds, for a judge that is stuck itself
WHOLE_LIMIT = 175.0  # seconds in all


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m peers.claude_cli", description=__doc__)
    parser.add_argument("--only", metavar="WORD", default="", help="cases that have this in their name")
    parser.add_argument("--at-once", metavar="N", type=int, default=3)
    parser.add_argument("--cli", metavar="PATH", help="another CLI than the one in claude-agent-sdk")
    options = parser.parse_args()
    cli = options.cli or bundled()
    until = time.monotonic() + WHOLE_LIMIT
    names = [name for name in (*STOPS, *USES) if options.only in name]
    print(
        f"{version_of(cli)}, no network but loopback. From the stop until control is back: seconds, ticks of its tool"
    )
    print(f"{'':<46}" + "".join(f"{backend:<38}" for backend in BACKENDS))
    failures = 0
    with ThreadPoolExecutor(options.at_once) as judges:
        rows = {
            name: [judges.submit(judged, backend, name, cli, until) for backend in BACKENDS] for name in names
        }
        for name, cells in rows.items():
            verdicts = [cell.result() for cell in cells]
            print(f"{name:<46}" + "".join(f"{in_words(name, each):<38}" for each in verdicts), flush=True)
            for backend, verdict in zip(BACKENDS, verdicts, strict=True):
                for fault in faults(name, verdict):
                    failures += 1
                    print(f"  FAILED on {backend}: {fault}", flush=True)
    print(
        f"{len(rows) * len(BACKENDS)} cases, {failures} failures, {time.monotonic() - until + WHOLE_LIMIT:.0f} s"
    )
    return 1 if failures or not rows else 0


def bundled() -> str:
    """The CLI that the installed claude-agent-sdk brings."""
    spec = find_spec("claude_agent_sdk")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (cli := Path(place, "_bundled", "claude")).is_file():
            return str(cli)
    raise SystemExit(
        f"{sys.executable} has no claude-agent-sdk that brings a CLI: run this by `make peers`, or name a CLI with --cli"
    )


def version_of(cli: str) -> str:
    """As the file beside it says; it is not run for that."""
    note = Path(f"{cli}.version")
    return note.read_text().strip() if note.is_file() else "A CLI of unknown version"


def judged(backend: str, name: str, cli: str, until: float) -> dict[str, Any]:
    limit = min(CASE_LIMIT, until - time.monotonic())
    if limit <= 0:
        return {"why": f"not begun within {WHOLE_LIMIT:.0f} s"}
    command = [sys.executable, "-m", "peers.claude_cli.judge", backend, name, cli]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as judge:
        try:
            said, complained = judge.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            judge.terminate()  # it takes all of the case with it
            judge.communicate()
            return {"why": f"no verdict within {limit:.0f} s"}
    if judge.returncode:
        return {
            "why": complained.strip().splitlines()[-1] if complained else f"the judge: {judge.returncode}"
        }
    verdict: dict[str, Any] = json.loads(said)
    return verdict


def faults(name: str, verdict: dict[str, Any]) -> Iterator[str]:
    if "why" in verdict:
        yield verdict["why"]
    elif name == NOT_STOPPED:
        if not verdict["left"] or not verdict["after"]:
            yield "it was not stopped, and yet nothing was seen of it: this check would see no fault"
    else:
        yield from (f"left: {each}" for each in verdict["left"])
        if verdict["after"]:
            yield f"its tool did {verdict['after']} ticks when control was back"


def in_words(name: str, verdict: dict[str, Any]) -> str:
    if any(faults(name, verdict)):
        return "FAILED"
    if name == NOT_STOPPED:
        return f"seen: {len(verdict['left'])} processes, ticks"
    if name in USES:
        return "as it should be, nothing left"
    ticks = verdict["worked on"]
    return f"nothing left, {verdict['seconds']:.2f} s, {ticks} tick{'s' * (ticks != 1)}"


if __name__ == "__main__":
    sys.exit(main())
