"""Test the drop-ins, each with the real SDK, in an environment of its own: `make test-dropin`.

    python3 dropin_tests/run.py [--only FOLDER]... [--examples] [--fresh] [pytest arguments]

For each row of dropin_tests/table.py: what peers/*.txt pins for the SDK, the tools of dropin_tests/tools.txt,
and quiesce from this tree, as a wheel. There the tests of its folder run, under the rules of tests/conftest.py;
and mypy and pyright, of the environment that `make lint` uses, check the drop-in and the folder's `typed.py`
with the SDK's own types. With `--examples`, the SDK's own examples are compared as well (`dropin_tests.compared`),
which takes minutes. There is no way in which it skips: what cannot be installed is said, and it fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from dropin_tests.table import SDKS, Sdk  # noqa: E402
from throwaway import NotInstalled, build_wheel, environments, locked, make_environment  # noqa: E402

BUILD = environments("dropin")
LINT = ROOT / ".venv" / "bin"
LIMIT = 600.0  # seconds for the tests of one SDK
EXAMPLES_LIMIT = 1800.0  # and for its examples
AT_ONCE = 2


def main() -> int:
    parser = argparse.ArgumentParser(description="Test the drop-ins with the real SDKs.")
    parser.add_argument(
        "--only", metavar="FOLDER", action="append", choices=sorted({sdk.folder for sdk in SDKS})
    )
    parser.add_argument("--examples", action="store_true", help="compare the SDKs' own examples too")
    parser.add_argument("--fresh", action="store_true", help="make every environment again")
    options, arguments = parser.parse_known_args()
    chosen = [sdk for sdk in SDKS if not options.only or sdk.folder in options.only]
    started = time.monotonic()
    with locked(BUILD), ThreadPoolExecutor(AT_ONCE) as pool:
        wheel = build_wheel(BUILD / "wheel")
        made = {sdk: pool.submit(make, sdk, wheel, options.fresh) for sdk in chosen}
        failed = []
        for sdk in chosen:
            try:
                made[sdk].result()
            except NotInstalled as error:
                print(f"{sdk.versions}: cannot be installed: {error}", flush=True)
                failed.append(sdk.versions)
                continue
            if (
                not test(sdk, arguments)
                or not (arguments or check_types(sdk))
                or (options.examples and not compare_examples(sdk))
            ):
                failed.append(sdk.versions)
    print(
        f"\ntest-dropin: {len(chosen) - len(failed)} of {len(chosen)} in {time.monotonic() - started:.0f} s"
    )
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return bool(failed)


def make(sdk: Sdk, wheel: Path, is_fresh: bool) -> None:
    versions = BUILD / f"{sdk.versions}.txt"
    versions.write_text(with_tools(ROOT / "peers" / f"{sdk.versions}.txt"))
    make_environment(BUILD / sdk.versions, versions, wheel, minor=sdk.minor, is_fresh=is_fresh)


def with_tools(versions: Path) -> str:
    """The packages of an SDK, and those tools that it does not bring itself, in its own version."""
    lines = versions.read_text().splitlines()
    theirs = {name_of(line) for line in lines}
    tools = (ROOT / "dropin_tests" / "tools.txt").read_text().splitlines()
    return "\n".join([*lines, *(line for line in tools if name_of(line) not in theirs)]) + "\n"


def name_of(line: str) -> str:
    return re.sub(r"[-_.]+", "-", line.partition("==")[0].strip()).lower()


def python_of(sdk: Sdk) -> Path:
    return BUILD / sdk.versions / "bin" / "python"


def test(sdk: Sdk, arguments: list[str]) -> bool:
    print(f"\n{sdk.folder}, with {sdk.versions} as in peers/{sdk.versions}.txt", flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [
        *(str(python_of(sdk)), "-m", "pytest", "-p", "tests.conftest", "-n", "2", "-q"),
        *os.environ.get("SECOND_TRY", "").split(),
        *(str(ROOT / "dropin_tests" / sdk.folder), *arguments),
    ]
    return succeeds(command, environment)


def check_types(sdk: Sdk) -> bool:
    """mypy and pyright, with the SDK's own types, on the drop-in and on a program of a user."""
    # Elsewhere, without the settings of this tree: those hide the SDKs, which `make lint` does not have.
    folder = BUILD / "types" / sdk.versions
    folder.mkdir(parents=True, exist_ok=True)
    for name in sdk.typed:
        shutil.copy(ROOT / "dropin_tests" / sdk.folder / name, folder)
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    python = str(python_of(sdk))
    return all(
        succeeds(command, dict(os.environ), folder)
        for command in (
            [str(LINT / "mypy"), "--config-file=", "--strict", "--python-executable", python, *sdk.typed],
            [str(LINT / "pyright"), "--pythonpath", python, *sdk.typed],
        )
    )


def compare_examples(sdk: Sdk) -> bool:
    """The SDK's own examples, if its source distribution has some, without and with the drop-in."""
    if not (ROOT / "dropin_tests" / sdk.folder / "examples.py").is_file():
        return True
    command = [str(python_of(sdk)), "-m", f"dropin_tests.{sdk.folder}.examples"]
    return succeeds(command, dict(os.environ), limit=EXAMPLES_LIMIT)


def succeeds(
    command: list[str], environment: dict[str, str], folder: Path = ROOT, limit: float = LIMIT
) -> bool:
    try:
        done = subprocess.run(command, cwd=folder, env=environment, timeout=limit, check=False)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        print(f"not done after {limit:.0f} s", flush=True)
        return False


if __name__ == "__main__":
    sys.exit(main())
