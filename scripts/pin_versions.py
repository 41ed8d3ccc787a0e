"""Resolve the newest versions of everything this project can use, on every interpreter here, and write
constraints.txt.

Where the interpreters do not agree on a version, or one of them does not need a package, the line carries a
marker.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from interpreters import Interpreter, find_interpreters

ROOT = Path(__file__).parent.parent


def main() -> None:
    resolved = {interpreter.minor: resolve(interpreter) for interpreter in find_interpreters()}
    text = "\n".join(constraint_lines(resolved)) + "\n"
    (ROOT / "constraints.txt").write_text(text)


def resolve(interpreter: Interpreter) -> dict[str, str]:
    """Every package that a full development install would bring, and its version."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([interpreter.path, "-m", "venv", directory], check=True)
        report = Path(directory, "report.json")
        pip = [f"{directory}/bin/pip", "--quiet", "--disable-pip-version-check"]
        what = [
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(report),
            f"{ROOT}[all,embedded,dev]",
            f"{ROOT}/chat",
        ]
        subprocess.run([*pip, "install", *what], check=True)
        installed = json.loads(report.read_text())["install"]
    versions = {str(item["metadata"]["name"]): str(item["metadata"]["version"]) for item in installed}
    del versions["quiesce"], versions["quiesce-chat"]
    return versions


def constraint_lines(resolved: dict[str, dict[str, str]]) -> list[str]:
    users: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for minor, versions in resolved.items():
        for name, version in versions.items():
            users[name][version].append(minor)
    lines = []
    for name in sorted(users, key=str.lower):
        for version, minors in users[name].items():
            marker = " or ".join(f"python_version == '{minor}'" for minor in minors)
            lines.append(f"{name}=={version}" + ("" if len(minors) == len(resolved) else f"; {marker}"))
    return lines


if __name__ == "__main__":
    main()
