"""Build the wheels and the sdists, look into them, and use the wheels as somebody does who has nothing but them.

See scripts/test-wheel.

Every command runs outside the tree, with a home of its own, without a terminal and with its standard input
closed, and must have left no process when it has ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path

from check_tree import project_files
from distribution import (
    CHAT,
    QUIESCE,
    Distribution,
    differences,
    metadata,
    sdist_faults,
    sdist_members,
    wheel_faults,
    wheel_members,
)
from interpreters import Interpreter, find_interpreters
from throwaway import NotInstalled, pip, run

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wheel"
BUILDER, MADE = BUILD / "builder", BUILD / "dist"
PROMISED = ("3.11", "3.12", "3.13")
LONGEST = 120  # seconds for a command, on a busy machine
GONE_WITHIN = 5.0  # seconds for the processes of a command that has ended
TOUR = ("tour", "--speed", "3")
WORDS_OF_A_STOP = ("with quiesce", "nothing left")
LEAKY = """
import asyncio

async def scenario():
    pages = [asyncio.create_task(asyncio.sleep(0.1)) for _ in range(2)]
    for page in pages:
        await page
"""


class Broken(Exception):
    """What is wrong, in words."""


@dataclass(frozen=True)
class Trial:
    """A command of quiesce, and what is to come of it."""

    words: tuple[str, ...]
    says: tuple[str, ...]
    code: int = 0


# Per extra that is installed, "" for none.
TRIALS = {
    "": (
        Trial(("--help",), ("quiesce COMMAND", "tour", "chat", "audit")),
        Trial(("audit", "--help"), ("quiesce audit", "--html")),
        Trial(("audit", "leaky:scenario"), ("FINDINGS", "made at leaky.py:5"), code=1),
        Trial(("chat",), ("quiesce chat", "pip install 'quiesce[cli]'"), code=1),
        Trial(("ask", "hello"), ("quiesce ask", "pip install 'quiesce[cli]'"), code=1),
        Trial(("tour",), ("quiesce tour", "pip install 'quiesce["), code=1),
    ),
    # A library user's: the tour, and no chat.
    "agents": (
        Trial(("--help",), ("quiesce COMMAND",)),
        Trial(TOUR, WORDS_OF_A_STOP),
        Trial(("ask", "hello"), ("quiesce ask", "pip install 'quiesce[cli]'"), code=1),
    ),
    "cli": (
        Trial(("--help",), ("quiesce COMMAND",)),
        Trial(TOUR, WORDS_OF_A_STOP),
        Trial(("ask", "--model", "scripted", "hello"), ("a script, not a language model",)),
        Trial(("chat", "--model", "scripted"), ()),
    ),
}


def main(asked: list[str]) -> int:
    started = time.monotonic()
    try:
        interpreters = choose(asked or list(PROMISED))
        prepare()
        wheel, _ = build(QUIESCE), build(CHAT)
        for interpreter in interpreters:
            for extra, trials in TRIALS.items():
                use(wheel, interpreter, extra, trials)
    except (Broken, NotInstalled) as wrong:
        print(f"test-wheel: {wrong}", file=sys.stderr)
        return 1
    said = ", ".join(interpreter.version for interpreter in interpreters)
    print(f"test-wheel: {wheel.name} works on CPython {said}; {time.monotonic() - started:.0f} s")
    return 0


def choose(asked: list[str]) -> list[Interpreter]:
    found = {interpreter.minor: interpreter for interpreter in find_interpreters()}
    if missing := [minor for minor in asked if minor not in found]:
        raise Broken(
            f"there is no CPython {', '.join(missing)} on the PATH or under pyenv that can make environments; here is "
            f'{", ".join(found) or "none"}. Install it, or name those to try: make test-wheel ARGS="3.11"'
        )
    return [found[minor] for minor in asked]


def prepare() -> None:
    """An empty folder, and in it the builder that both distributions use."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    with (ROOT / "pyproject.toml").open("rb") as file:
        needs = tomllib.load(file)["build-system"]["requires"]
    run([sys.executable, "-m", "venv", "--without-pip", str(BUILDER)])
    run([*pip(BUILDER), "install", *needs])


def build(distribution: Distribution) -> Path:
    """The wheel; both it and the sdist hold what they should."""
    command = [str(BUILDER / "bin" / "python"), "-m", "hatchling", "build", "--directory", str(MADE)]
    place = ROOT / distribution.folder
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LONGEST, check=False)
    if done.returncode != 0:
        raise Broken(f"they do not build:\n{done.stdout}{done.stderr}")
    (wheel,), (sdist,) = (MADE.glob(f"{distribution.package}-*{end}") for end in (".whl", ".tar.gz"))
    project = {path.relative_to(ROOT).as_posix() for path in project_files(ROOT)}
    members, source = wheel_members(wheel), sdist_members(sdist)
    report(wheel, len(members), list(wheel_faults(members, project, str(ROOT), distribution)))
    report(sdist, len(source), list(sdist_faults(source, project, distribution)))
    # As somebody does for whom there is no wheel: pip makes an environment for the builder by itself.
    run([*pip(), "wheel", "--no-deps", "--wheel-dir", str(BUILD / "again"), str(sdist)])
    again = wheel_members(BUILD / "again" / wheel.name)
    if different := differences(members, again):
        raise Broken(f"the wheel that the sdist makes is another one; different: {', '.join(different)}")
    print("test-wheel: the sdist makes the same wheel")
    return wheel


def report(made: Path, count: int, faults: list[str]) -> None:
    if faults:
        raise Broken("\n  ".join([f"{made.name}:", *faults]))
    print(
        f"test-wheel: {made.name}, {made.stat().st_size / 1000:.0f} kB: {count} files, all that belong there"
    )


def use(wheel: Path, interpreter: Interpreter, extra: str, trials: tuple[Trial, ...]) -> None:
    """Install it into an environment that has nothing, and run what it brings."""
    environment = BUILD / f"{interpreter.minor}-{extra or 'base'}"
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    run([interpreter.path, "-m", "venv", "--without-pip", str(environment)])
    # quiesce-chat comes from the folder, if the extra asks for it: pip prefers a local file to the same
    # version on an index.
    found = ["--constraint", str(ROOT / "constraints.txt"), "--find-links", str(MADE)]
    run([*pip(environment), "install", *found, what])
    run([*pip(environment), "check"])
    place = environment / "somewhere"
    place.mkdir()
    (place / "leaky.py").write_text(LEAKY)
    name = f"CPython {interpreter.version}, quiesce{f'[{extra}]' if extra else ''}"
    version = metadata(wheel_members(wheel))["Version"]
    look = (
        f"import quiesce, sys; print(quiesce.__version__, quiesce.__file__.startswith({str(environment)!r}))"
    )
    said, _ = play(name, environment, place, ["bin/python", "-c", look], code=0)
    if said.split() != [version, "True"]:
        raise Broken(f"{name}: import quiesce brings another one: {said}")
    for trial in trials:
        said, took = play(name, environment, place, ["bin/quiesce", *trial.words], code=trial.code)
        if missing := [words for words in trial.says if words not in " ".join(said.split())]:
            raise Broken(f"{name}: quiesce {' '.join(trial.words)} does not say {missing}:\n{said}")
        print(f"test-wheel: {name}: quiesce {' '.join(trial.words)}: {trial.code}, in {took:.1f} s")


def play(name: str, environment: Path, place: Path, command: list[str], *, code: int) -> tuple[str, float]:
    """Run it; all that it said, and the seconds that it took."""
    mark = uuid.uuid4().hex
    surroundings = {
        "PATH": f"{environment / 'bin'}:{os.defpath}",
        "HOME": str(place),
        "LANG": "C.UTF-8",
        "QUIESCE_TRIAL": mark,
    }
    line = [str(environment / command[0]), *command[1:]]
    started = time.monotonic()
    try:
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" <&-', "sh", *line],  # closed, not empty
            cwd=place,
            env=surroundings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Broken(f"{name}: {' '.join(command)} has not ended after {LONGEST} s:\n{late.output}") from late
    took = time.monotonic() - started
    said = done.stdout
    if done.returncode != code:
        raise Broken(f"{name}: {' '.join(command)} ended with {done.returncode}, not {code}:\n{said}")
    if "Traceback" in said:
        raise Broken(f"{name}: {' '.join(command)} shows a traceback:\n{said}")
    until = time.monotonic() + GONE_WITHIN
    while left := marked(mark):
        if time.monotonic() > until:
            raise Broken(f"{name}: {' '.join(command)} has left {', '.join(left)}")
        time.sleep(0.05)
    return said, took


def marked(mark: str) -> list[str]:
    """The processes that have inherited this mark. Where there is no /proc, none can be seen."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(f"process {entry.name}: {(entry / 'cmdline').read_text().replace(chr(0), ' ')}")
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
