"""Real pytest sessions of small suites, each in a process and a folder of its own, with just the plugins it names."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import quiesce

SOURCE = Path(quiesce.__file__).parent.parent
PLUGIN = "quiesce.audit.pytest_plugin"


@dataclass
class Inner:
    """What a session said. `told` has the message of each test that did not simply pass, by its name."""

    code: int
    text: str
    told: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)  # passed, failure, error or skipped

    @property
    def summary(self) -> str:
        """The line with the plugin's counts."""
        return next((line for line in self.text.splitlines() if line.startswith("quiesce: ")), "")


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))


def run_pytest(folder: Path, *options: str, plugins: Iterable[str] = (), ini: str = "") -> Inner:
    """Run the tests of a folder. `plugins` are names of entry points: asyncio, anyio, trio, xdist."""
    report = folder / "junit.xml"
    report.unlink(missing_ok=True)
    if "asyncio" in (plugins := list(plugins)):
        ini += "\nasyncio_default_fixture_loop_scope = function"
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    loaded = [part for name in (*plugins, PLUGIN) for part in ("-p", name)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_CORE"))}
    environment = kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *loaded, f"--junitxml={report}", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    inner = Inner(done.returncode, done.stdout + done.stderr)
    for case in ET.parse(report).getroot().iter("testcase") if report.exists() else ():
        name = case.attrib["name"]
        outcome = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if outcome is None:
            inner.outcomes.setdefault(name, "passed")
        else:
            inner.outcomes[name] = outcome.tag
            inner.told[name] = f"{outcome.attrib.get('message', '')}\n{outcome.text or ''}"
    return inner
