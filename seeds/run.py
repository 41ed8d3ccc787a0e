"""Install the releases of the table, each in an environment of its own, and audit them: `make seeds`.

    python3 seeds/run.py [--only NAME] [--fresh]

Environments are kept (scripts/throwaway.py says where) and made again when the versions they pin, or the
Python, change; --fresh makes them all again. Two are made at a time; the audits run one after the other. It
exits 1 if a known bug is not found, if what should be silent is not, or if a release cannot be installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "seeds" / "reports"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from seeds.table import RELEASES, Release  # noqa: E402
from throwaway import NotInstalled, build_wheel, environments, locked, make_environment  # noqa: E402

BUILD = environments("seeds")
AUDIT_LIMIT = 600  # seconds: most take less than ten, and the longest forty


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
    with locked(BUILD):
        return judge_all(chosen, options.fresh)


def judge_all(chosen: list[Release], is_fresh: bool) -> int:
    started = time.monotonic()
    shutil.rmtree(REPORTS, ignore_errors=True)
    try:
        wheel = build_wheel(BUILD / "wheel")
    except NotInstalled as error:
        print(f"FAILED: quiesce itself cannot be built from this tree.\n{error}")
        return 1
    lines: list[str] = []
    failed = False
    with ThreadPoolExecutor(2) as pool:
        # The heavy ones first, so that they are being made while the others are audited.
        order = sorted(chosen, key=lambda release: not release.is_optional)
        made = {
            release.name: pool.submit(
                make_environment,
                BUILD / release.name,
                ROOT / "seeds" / f"{release.name}.txt",
                wheel,
                minor=release.minor,
                is_fresh=is_fresh,
            )
            for release in order
        }
        for release in chosen:
            verdict, line = judge(release, made[release.name])
            failed = failed or verdict == "FAILED"
            lines.append(f"  {verdict:<8} {release.package:<30} {line}")
    print("\n".join(["", f"seeds, {time.monotonic() - started:.0f} s in all:", *lines]))
    print(f"reports: {REPORTS.relative_to(ROOT)}/*.html, .json, .txt")
    return 1 if failed else 0


def judge(release: Release, made: Future[float]) -> tuple[str, str]:
    """Audit a release once its environment is there; a verdict for the summary."""
    print(f"\n{'=' * 100}", flush=True)
    try:
        seconds = made.result()
    except NotInstalled as error:
        verdict = "SKIPPED" if release.is_optional else "FAILED"
        print(f"{verdict}: {release.package} was not installed, and nothing is known about it here.\n{error}")
        return verdict, "NOT JUDGED: " + str(error).splitlines()[0]
    environment = BUILD / release.name
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


if __name__ == "__main__":
    sys.exit(main())
