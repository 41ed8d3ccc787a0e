"""The SDK's own examples, as they are and with one import changed: they must print the same.

    python -m dropin_tests.openai_agents.examples [--json]

They come from the SDK's source distribution, and talk to a provider that makes its answers up (`provider`).
In a copy, `agents` is `quiesce.dropin.agents` in every import, and nothing else is changed. Each example runs
without and with the change. What it prints, and how it exits, has to be the same; where the SDK alone does
not print the same twice, numbers and ids are left out of the comparison. An example counts only if it
succeeds with the SDK; all others are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "dropin-examples"
LIMIT = 60.0  # seconds for one run of one example
AT_ONCE = 3

# Why a folder, or an example, is left out; the first that matches.
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
NO_PROGRAM = "not a program: others import it"


@dataclass(frozen=True)
class Ran:
    status: int | None  # None: not done in time
    said: str
    errors: str

    @property
    def failure(self) -> str:
        """Why it cannot be compared: the last line that it has said of its error."""
        lines = [line for line in self.errors.splitlines() if line.strip()] or [""]
        return "waits for something" if self.status is None else lines[-1][:100]


def main() -> int:
    parser = argparse.ArgumentParser(description="The SDK's own examples, with one import changed.")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="only those whose path has this in it"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    theirs, ours = copies()
    left_out: Counter[str] = Counter()
    candidates = []
    for path in sorted(theirs.glob("examples/**/*.py")):
        name = path.relative_to(theirs / "examples").as_posix()
        if options.only and not any(part in name for part in options.only):
            continue
        why = next((why for start, why in LEFT_OUT.items() if start in name), "")
        if not why and "__main__" not in path.read_text():
            why = NO_PROGRAM
        if why:
            left_out[why] += 1
        else:
            candidates.append(name)
    same, differ = [], []
    with provider() as port, ThreadPoolExecutor(AT_ONCE) as pool:
        for name, verdict in zip(
            candidates, pool.map(lambda name: compare(name, theirs, ours, port), candidates), strict=True
        ):
            print(f"  {name}: {verdict or 'the same'}", file=sys.stderr, flush=True)
            if not verdict:
                same.append(name)
            elif verdict.startswith("DIFFERS"):
                differ.append(name)
            else:
                left_out[verdict] += 1
    total = len(candidates) + sum(left_out[why] for why in {*LEFT_OUT.values(), NO_PROGRAM})
    if options.json:
        print(json.dumps({"same": same, "differ": differ, "left out": left_out, "of": total}))
    else:
        print(
            f"openai-agents {version('openai-agents')}: {len(same)} of {total} example files print the same"
        )
        for why, number in left_out.most_common():
            print(f"  {number} left out: {why}")
        for name in differ:
            print(f"  DIFFERS: {name}")
    return 1 if differ or not same else 0


def copies() -> tuple[Path, Path]:
    """The examples, and a copy with the imports changed."""
    release = f"openai_agents-{version('openai-agents')}"
    theirs, ours = BUILD / "theirs", BUILD / "ours"
    archive = BUILD / f"{release}.tar.gz"
    if not archive.is_file():
        BUILD.mkdir(parents=True, exist_ok=True)
        source = f"openai-agents=={version('openai-agents')}"
        pip = [os.environ.get("QUIESCE_PIP_PYTHON", sys.executable), "-m", "pip", "--quiet"]
        subprocess.run(
            [*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(BUILD), source], check=True
        )
    for folder in (theirs, ours):
        shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(BUILD, filter="data")
    shutil.copytree(BUILD / release / "examples", theirs / "examples")
    shutil.copytree(BUILD / release / "examples", ours / "examples")
    shutil.rmtree(BUILD / release)
    for path in ours.rglob("*.py"):
        path.write_text(changed(path.read_text()))
    return theirs, ours


def changed(text: str) -> str:
    """A program with `quiesce.dropin.agents` for `agents` in its imports, and nothing else."""
    text = re.sub(r"^(\s*)from agents\b", r"\1from quiesce.dropin.agents", text, flags=re.MULTILINE)
    return re.sub(
        r"^(\s*)import agents$", r"\1import quiesce.dropin.agents as agents", text, flags=re.MULTILINE
    )


def compare(name: str, theirs: Path, ours: Path, port: str) -> str:
    """Nothing if both print the same; else how they differ, or why they cannot be compared."""
    alone = run(name, theirs, port)
    if alone.status != 0:
        return kind_of(alone.failure)
    with_ours = run(name, ours, port)
    if (with_ours.status, with_ours.said) == (0, alone.said):
        return ""
    again = run(name, theirs, port)
    if again.said != alone.said and (with_ours.status, masked(with_ours.said)) == (0, masked(alone.said)):
        return ""
    return f"DIFFERS: {with_ours.status}, {with_ours.failure}\n{alone.said}\n--- but with the drop-in:\n{with_ours.said}"


def kind_of(failure: str) -> str:
    """The reason for a table, out of an error."""
    if "No module named" in failure or "requires" in failure or "install" in failure.lower():
        return "needs a package that the SDK does not install"
    if "not made up here" in failure:
        return "needs an API that is not made up here"
    return failure if failure == "waits for something" else f"fails with the SDK too: {failure}"


def masked(text: str) -> str:
    """Without ids, numbers, and the order of lines that tasks write side by side."""
    lines = re.sub(r"\b(?=\w*\d)\w+\b|\d+", "#", text).splitlines()
    return "\n".join(sorted(lines))


def run(name: str, folder: Path, port: str) -> Ran:
    module = f"examples.{name.removesuffix('.py').replace('/', '.')}"
    url = f"http://127.0.0.1:{port}/v1"
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OPENAI"))},
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": url,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "EXAMPLES_INTERACTIVE_MODE": "auto",
        "EXAMPLE_BASE_URL": url,
        "EXAMPLE_API_KEY": "none",
        "EXAMPLE_MODEL_NAME": "made-up",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONHASHSEED": "0",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", SEEDED, module],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(None, "", "")
    return Ran(done.returncode, done.stdout.replace(str(folder), "."), done.stderr)


# Some of them throw dice.
SEEDED = (
    "import random, runpy, sys; random.seed(0); runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
)


@contextmanager
def provider() -> Iterator[str]:
    server = subprocess.Popen([sys.executable, str(HERE / "provider.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
