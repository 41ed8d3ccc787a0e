"""Install the releases of the table, each in an environment of its own, and audit them: `make seeds`.

    python3 seeds/run.py [--only NAME] [--fresh]

Environments are kept in build/seeds/ and made again when the versions they pin, or the Python, change; --fresh makes
them all again. Two are made at a time; the audits run one after the other. It exits 1 if a known bug is not found, if
what should be silent is not, or if a release cannot be installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "seeds"
REPORTS = BUILD / "reports"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from interpreters import find_interpreters  # noqa: E402
from seeds.table import RELEASES, Release  # noqa: E402

INSTALL_LIMIT = 300  # seconds for one environment
AUDIT_LIMIT = 240


class NotInstalled(Exception):
    """A release that cannot be had here, and why."""


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036
        print(
            f"quiesce needs Python 3.11 or newer, and this is {sys.version.split()[0]}: set PYTHON=",
            file=sys.stderr,
        )
        return 1
    parser = argparse.ArgumentParser(description="Audit real releases with known bugs.")
    parser.add_argument("--only", metavar="NAME", choices=[release.name for release in RELEASES])
    parser.add_argument("--fresh", action="store_true", help="make every environment again")
    options = parser.parse_args()
    chosen = [release for release in RELEASES if options.only in (None, release.name)]
    started = time.monotonic()
    shutil.rmtree(REPORTS, ignore_errors=True)
    try:
        wheel = build_wheel()
    except NotInstalled as error:
        print(f"FAILED: quiesce itself cannot be built from this tree.\n{error}")
        return 1
    lines: list[str] = []
    failed = False
    with ThreadPoolExecutor(2) as pool:
        # The heavy ones first, so that they are being made while the others are audited.
        order = sorted(chosen, key=lambda release: not release.is_optional)
        made = {
            release.name: pool.submit(make_environment, release, wheel, options.fresh) for release in order
        }
        for release in chosen:
            verdict, line = judge(release, made[release.name])
            failed = failed or verdict == "FAILED"
            lines.append(f"  {verdict:<8} {release.package:<30} {line}")
    print("\n".join(["", f"seeds, {time.monotonic() - started:.0f} s in all:", *lines]))
    print(f"reports: {REPORTS.relative_to(ROOT)}/*.html, .json, .txt")
    return 1 if failed else 0


def judge(release: Release, made: Future[tuple[Path, float]]) -> tuple[str, str]:
    """Audit a release once its environment is there; a verdict for the summary."""
    print(f"\n{'=' * 100}", flush=True)
    try:
        environment, seconds = made.result()
    except NotInstalled as error:
        verdict = "SKIPPED" if release.is_optional else "FAILED"
        print(f"{verdict}: {release.package} was not installed, and nothing is known about it here.\n{error}")
        return verdict, "NOT JUDGED: " + str(error).splitlines()[0]
    settings = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        **release.settings,
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "HOME": str(environment / "home"),
    }
    command = [str(environment / "bin" / "python"), "-m", "seeds.judge", release.name, str(REPORTS)]
    begun = time.monotonic()
    try:
        code = subprocess.run(command, check=False, cwd=ROOT, env=settings, timeout=AUDIT_LIMIT).returncode
    except subprocess.TimeoutExpired:
        print(f"FAILED: the audit was not done after {AUDIT_LIMIT} s")
        code = 1
    audited = time.monotonic() - begun
    return "FAILED" if code else "ok", f"environment {seconds:.0f} s, audit {audited:.0f} s"


def build_wheel() -> Path:
    """quiesce from this tree, built once for all environments."""
    folder = BUILD / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    run([*pip(), "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    return next(folder.glob("quiesce-*.whl"))


def make_environment(release: Release, wheel: Path, is_fresh: bool) -> tuple[Path, float]:
    """Its folder, and the seconds that it took to make."""
    started = time.monotonic()
    python = find_python(release)
    environment = BUILD / release.name
    versions = ROOT / "seeds" / f"{release.name}.txt"
    stamp, wanted = environment / "made-of.txt", f"{python}\n{versions.read_text()}"
    if is_fresh or not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        run([str(python), "-m", "venv", "--without-pip", str(environment)])
        # The file names every package, so that nothing is left to resolve; `pip check` sees if one is missing.
        run([*pip(environment), "install", "--no-deps", "--no-compile", "--requirement", str(versions)])
        (environment / "home").mkdir()
        stamp.write_text(wanted)
    run([*pip(environment), "install", "--force-reinstall", "--no-deps", "--no-index", str(wheel)])
    run([*pip(environment), "check"])
    return environment, time.monotonic() - started


def find_python(release: Release) -> Path:
    if sys.version_info >= (3, release.minor):
        return Path(sys.executable)
    for found in find_interpreters():
        if tuple(map(int, found.minor.split("."))) >= (3, release.minor):
            return Path(found.path)
    raise NotInstalled(
        f"{release.package} needs Python 3.{release.minor} or newer, and there is none on the PATH or under pyenv"
    )


def pip(environment: Path | None = None) -> list[str]:
    """The pip of this Python, at work on an environment that has none of its own: that saves making one for each."""
    if importlib.util.find_spec("pip") is None:
        raise SystemExit(
            f"{sys.executable} has no pip, so nothing can be installed; on Debian it comes with python3-pip"
        )
    there = [] if environment is None else ["--python", str(environment / "bin" / "python")]
    return [sys.executable, "-m", "pip", *there, "--quiet", "--disable-pip-version-check"]


def run(command: list[str]) -> None:
    """Run an installer; what it says is only worth reading if it fails."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"not done after {INSTALL_LIMIT} s: {' '.join(command[-2:])}") from error
    except subprocess.CalledProcessError as error:
        said = "\n".join(line for line in error.stderr.splitlines() if not line.startswith("WARNING"))
        raise NotInstalled(f"pip failed: {' '.join(command[-2:])}\n{error.stdout}{said}") from error


if __name__ == "__main__":
    sys.exit(main())
