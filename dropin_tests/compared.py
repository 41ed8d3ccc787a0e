"""An SDK's own examples, as they are and with one import changed: they must print the same.

    python -m dropin_tests.FOLDER.examples [--only NAME]... [--json]

They come from the SDK's source distribution. There are two copies; in one, the drop-in's name stands for the
SDK's in every import, and nothing else is changed. Each copy has an interpreter of its own, which finds the
packages of this environment and the copy, also where an example starts another program with `sys.executable`.

Each program runs without and with the change, under `quiesce exec`, so that it leaves nothing behind. What it
prints, and how it exits, has to be the same; where the SDK alone does not print the same twice, numbers, ids
and the order of lines are left out of the comparison. An example counts only if it succeeds with the SDK; all
others are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

BUILD = Path(__file__).parent.parent / "build" / "dropin-examples"
LIMIT = 60.0  # seconds for one run of one example
AT_ONCE = 3
NO_PROGRAM = "not a program: others import it"
# A stand-in that does not know a request says so with this, and the example that made it is left out.
NOT_MADE_UP = "not made up here"


@dataclass(frozen=True)
class Program:
    """One way to run an example: as a module, which is looked up from `Examples.import_from`."""

    module: str
    arguments: tuple[str, ...] = ()
    typed: str = ""  # what is typed into it

    def __str__(self) -> str:
        return " ".join([self.module, *self.arguments])


def as_module(path: str, text: str) -> Iterable[Program] | str:
    """A file that can be run, as the module that it is, seen from the top of the source distribution."""
    if "__main__" not in text:
        return NO_PROGRAM
    return [Program(path.removesuffix(".py").replace("/", "."))]


@contextmanager
def no_stand_in() -> Iterator[Mapping[str, str]]:
    """For examples that need none."""
    yield {}


@dataclass(frozen=True)
class Examples:
    """Those of one SDK, and how they are run."""

    distribution: str  # in whose source distribution they are, in the version that is installed
    package: str  # the SDK's name in an import
    dropin: str  # the name of ours
    left_out: Mapping[str, str] = field(default_factory=dict)  # part of a path: why; the first that matches
    folders: tuple[str, ...] = ("examples",)  # of the source distribution
    import_from: tuple[str, ...] = (".",)  # the folders of its modules; programs run in the first
    # The ways to run a file, by its path and its text; or why it is not run.
    programs: Callable[[str, str], Iterable[Program] | str] = as_module
    # Stand-ins for providers and servers, and the environment variables by which examples find them.
    serving: Callable[[], AbstractContextManager[Mapping[str, str]]] = no_stand_in


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


def main(examples: Examples) -> int:
    """Compare them, as the command line says; the exit status."""
    parser = argparse.ArgumentParser(description="The SDK's own examples, with one import changed.")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="only those whose path has this in it"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    theirs, ours = copies(examples)
    left_out: Counter[str] = Counter()
    programs: list[Program] = []
    for folder in examples.folders:
        for path in sorted((theirs / folder).glob("**/*.py")):
            name = path.relative_to(theirs).as_posix()
            if options.only and not any(part in name for part in options.only):
                continue
            why = next((why for part, why in examples.left_out.items() if part in name), "")
            found = why or examples.programs(name, path.read_text())
            if isinstance(found, str):
                left_out[found] += 1
            else:
                programs += found
    total = len(programs) + left_out.total()
    same, differ = [], []
    with examples.serving() as settings, ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = pool.map(lambda program: compare(program, examples, theirs, ours, settings), programs)
        for program, verdict in zip(programs, verdicts, strict=True):
            print(f"  {program}: {verdict or 'the same'}", file=sys.stderr, flush=True)
            if not verdict:
                same.append(str(program))
            elif verdict.startswith("DIFFERS"):
                differ.append(str(program))
            else:
                left_out[verdict] += 1
    if options.json:
        print(json.dumps({"same": same, "differ": differ, "left out": left_out, "of": total}))
    else:
        release = f"{examples.distribution} {version(examples.distribution)}"
        print(f"{release}: {len(same)} of {total} examples print the same")
        for why, number in left_out.most_common():
            print(f"  {number} left out: {why}")
        for name in differ:
            print(f"  DIFFERS: {name}")
    return 1 if differ or not same else 0


def copies(examples: Examples) -> tuple[Path, Path]:
    """Two copies of the source distribution's folders, the second with the imports changed."""
    release = f"{re.sub(r'[-_.]+', '_', examples.distribution)}-{version(examples.distribution)}"
    build = BUILD / release
    archive = build / f"{release}.tar.gz"
    if not archive.is_file():
        build.mkdir(parents=True, exist_ok=True)
        source = f"{examples.distribution}=={version(examples.distribution)}"
        # This environment has no pip; the Python that it was made with has one.
        pip = [os.path.realpath(sys.executable), "-m", "pip", "--quiet"]
        subprocess.run(
            [*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(build), source], check=True
        )
    theirs, ours = build / "theirs", build / "ours"
    for copy in (theirs, ours):
        shutil.rmtree(copy, ignore_errors=True)
        with tarfile.open(archive) as packed:
            packed.extractall(copy, filter="data")
        for found in (copy / release).iterdir():
            if found.name in {folder.partition("/")[0] for folder in examples.folders}:
                found.rename(copy / found.name)
        shutil.rmtree(copy / release)
        make_interpreter(copy, examples.import_from)
    for folder in examples.folders:
        for path in (ours / folder).glob("**/*.py"):
            path.write_text(changed(path.read_text(), examples.package, examples.dropin))
    return theirs, ours


def make_interpreter(copy: Path, import_from: Iterable[str]) -> None:
    """One that finds the packages of this environment, and the modules of a copy."""
    venv.create(copy / "python", symlinks=True)
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = sysconfig.get_path("purelib")
    lines = [*(str(copy / folder) for folder in import_from), f"import site; site.addsitedir({packages!r})"]
    (copy / "python" / "lib" / minor / "site-packages" / "found.pth").write_text("\n".join(lines))


def changed(text: str, package: str, dropin: str) -> str:
    """A program with the drop-in's name in its imports, and nothing else."""
    text = re.sub(rf"^(\s*)from {package}(?=[. ])", rf"\1from {dropin}", text, flags=re.MULTILINE)

    def imported(found: re.Match[str]) -> str:
        indent, inside, name = found.groups()
        if name:
            return f"{indent}import {dropin}{inside} as {name}"
        submodule = f"{dropin}{inside}, " if inside else ""
        return f"{indent}import {submodule}{dropin} as {package}"

    pattern = rf"^([ \t]*)import {package}((?:\.\w+)*)(?: as (\w+))?(?=[ \t]*(?:#.*)?$)"
    return re.sub(pattern, imported, text, flags=re.MULTILINE)


def compare(
    program: Program, examples: Examples, theirs: Path, ours: Path, settings: Mapping[str, str]
) -> str:
    """Nothing if both print the same; else how they differ, or why they cannot be compared."""
    here = partial(run, program, settings=settings, folder=examples.import_from[0])
    alone = here(theirs)
    if alone.status != 0:
        return kind_of(alone.failure)
    with_ours = here(ours)
    if (with_ours.status, with_ours.said) == (0, alone.said):
        return ""
    again = here(theirs)
    if again.said != alone.said and (with_ours.status, masked(with_ours.said)) == (0, masked(alone.said)):
        return ""
    return f"DIFFERS: {with_ours.status}, {with_ours.failure}\n{alone.said}\n--- but with the drop-in:\n{with_ours.said}"


def kind_of(failure: str) -> str:
    """The reason for a table, out of an error."""
    if "No module named" in failure or "requires" in failure or "install" in failure.lower():
        return "needs a package that the SDK does not install"
    if NOT_MADE_UP in failure:
        return "needs an API that is not made up here"
    return failure if failure == "waits for something" else f"fails with the SDK too: {failure}"


def masked(text: str) -> str:
    """Without ids, numbers, and the order of lines that tasks write side by side."""
    lines = re.sub(r"\b(?=\w*\d)\w+\b|\d+", "#", text).splitlines()
    return "\n".join(sorted(lines))


def run(program: Program, copy: Path, *, settings: Mapping[str, str], folder: str) -> Ran:
    """Run it in a copy, with everything that it starts ended when it has."""
    python = copy / "python" / "bin" / "python"
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
        "PYTHONHASHSEED": "0",
        **settings,
    }
    folders = (str(python.parent), str(Path(sys.executable).parent), environment.get("PATH", ""))
    environment["PATH"] = os.pathsep.join(folders)
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "quiesce", "exec", "--", str(python), "-c", SEEDED),
                *(program.module, *program.arguments),
            ],
            cwd=copy / folder,
            env=environment,
            input=program.typed,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(None, "", "")
    return Ran(done.returncode, done.stdout.replace(str(copy), "."), done.stderr)


# Some of them throw dice.
SEEDED = (
    "import random, runpy, sys; random.seed(0); runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
)


@contextmanager
def server(script: Path, *arguments: str) -> Iterator[str]:
    """A stand-in that runs as long as the block: a program that prints its port first, which this is."""
    command = [sys.executable, str(script), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
