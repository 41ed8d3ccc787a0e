"""What belongs in a wheel and in an sdist of quiesce and of quiesce-chat, and what is wrong with one.

Nothing is built here.

- A wheel has what is under src/, all of it, and its metadata. No test, no cache, no path of the machine it was made on.
- The sdist of quiesce has every file that belongs to the project, so that whoever has it can build, test and
  document it. That of quiesce-chat has what its wheel is built from.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Distribution:
    """One that this project releases."""

    package: str
    folder: str  # that of its pyproject.toml
    needs: frozenset[str]  # what the base install brings
    extras: tuple[str, ...]  # those that have to be there


QUIESCE = Distribution("quiesce", "", frozenset({"anyio"}), ("agents", "cli"))
CHAT = Distribution(
    "quiesce_chat", "chat/", frozenset({"quiesce[agents]", "rich", "prompt-toolkit"}), ("embedded",)
)

# Of the project, but of no use without its repository. `.gitignore` is put there by the builder.
NOT_IN_SDIST = (".ci/", ".github/", ".gitignore", ".pre-commit-config.yaml")
ONLY_IN_SDIST = {"PKG-INFO", ".gitignore"}


def wheel_members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def sdist_members(sdist: Path) -> dict[str, bytes]:
    """By their path below the one folder that an sdist has at the top."""
    found = {}
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            if (file := archive.extractfile(member)) is not None:
                found[member.name.partition("/")[2]] = file.read()
    return found


def metadata(members: Mapping[str, bytes]) -> Message:
    (name,) = (name for name in members if name.endswith(".dist-info/METADATA"))
    return BytesParser().parsebytes(members[name])


def wheel_faults(
    members: Mapping[str, bytes], project: set[str], machine: str, distribution: Distribution = QUIESCE
) -> Iterator[str]:
    """`project`: the files of the project, by path; `machine`: the folder that it was built in."""
    package, sources = distribution.package, f"{distribution.folder}src/"
    inside = {name for name in members if name.startswith(f"{package}/")}
    wanted = {name.removeprefix(sources) for name in project if name.startswith(f"{sources}{package}/")}
    yield from (f"{name} is missing" for name in sorted(wanted - inside))
    yield from (f"{name} is not of the project" for name in sorted(inside - wanted))
    if f"{package}/py.typed" not in members:
        yield f"{package}/py.typed is missing, so that nobody's type checker sees the types"
    for name in sorted(set(members) - inside):
        if ".dist-info/" not in name:
            yield f"{name} would be installed beside {package}"
    for name, content in sorted(members.items()):
        path = PurePosixPath(name)
        if "tests" in path.parts or path.name.startswith(("test_", "conftest.")):
            yield f"{name} is a test"
        if machine.encode() in content:
            yield f"{name} names {machine}"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in members):
        yield "the licence is missing"
    yield from _metadata_faults(metadata(members), distribution)


def _metadata_faults(said: Message, distribution: Distribution) -> Iterator[str]:
    if said["Requires-Python"] != ">=3.11":
        yield f"it says that it needs Python {said['Requires-Python']}"
    if said["Description-Content-Type"] != "text/markdown":
        yield f"its description is said to be {said['Description-Content-Type']}"
    always = [one for one in said.get_all("Requires-Dist", []) if "extra ==" not in one]
    if {re.split("[<>=!~; ]", one)[0] for one in always} != distribution.needs:
        yield f"the base install needs {always}, and not only {', '.join(sorted(distribution.needs))}"
    for extra in distribution.extras:
        if extra not in said.get_all("Provides-Extra", []):
            yield f"there is no extra {extra}"


def sdist_faults(
    members: Mapping[str, bytes], project: set[str], distribution: Distribution = QUIESCE
) -> Iterator[str]:
    inside, folder = set(members), distribution.folder
    wanted = {name.removeprefix(folder) for name in project if name.startswith(folder)}
    wanted = {name for name in wanted if not name.startswith(NOT_IN_SDIST)}
    yield from (f"{name} is missing" for name in sorted(wanted - inside))
    yield from (f"{name} is not of the project" for name in sorted(inside - wanted - ONLY_IN_SDIST))


def differences(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """The names of what is not the same in both."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
