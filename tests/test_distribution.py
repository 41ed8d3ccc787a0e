"""What `make test-wheel` accepts of a wheel and an sdist."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = {
    "src/quiesce/__init__.py",
    "src/quiesce/py.typed",
    "tests/test_it.py",
    "README.md",
    ".ci/run",
    ".github/workflows/ci.yml",
    ".gitignore",
    ".pre-commit-config.yaml",
}
METADATA = b"""\
Metadata-Version: 2.4
Name: quiesce
Version: 1
Requires-Python: >=3.11
Requires-Dist: anyio>=4.4
Provides-Extra: agents
Requires-Dist: msgspec>=0.21; extra == 'agents'
Provides-Extra: cli
Description-Content-Type: text/markdown

# quiesce
"""
WHEEL = {
    "quiesce/__init__.py": b"",
    "quiesce/py.typed": b"",
    "quiesce-1.dist-info/METADATA": METADATA,
    "quiesce-1.dist-info/licenses/LICENSE": b"MIT",
}
SDIST = dict.fromkeys(
    ("src/quiesce/__init__.py", "src/quiesce/py.typed", "tests/test_it.py", "README.md", "PKG-INFO"), b""
)


@pytest.fixture(scope="module")
def distribution() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "distribution.py"))


def faults(distribution: dict[str, Any], wheel: dict[str, bytes]) -> list[str]:
    return list(distribution["wheel_faults"](wheel, PROJECT, "/tmp/tree"))


def test_a_wheel_with_the_package_and_its_metadata_is_right(distribution: dict[str, Any]) -> None:
    assert faults(distribution, WHEEL) == []


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("quiesce/tests/data.txt", "quiesce/tests/data.txt is a test"),
        ("quiesce/conftest.py", "quiesce/conftest.py is a test"),
        ("quiesce/notes.txt", "quiesce/notes.txt is not of the project"),
        ("scripts/tool.py", "scripts/tool.py would be installed beside quiesce"),
    ],
)
def test_what_does_not_belong_in_a_wheel_is_named(
    distribution: dict[str, Any], name: str, fault: str
) -> None:
    assert fault in faults(distribution, {**WHEEL, name: b""})


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("quiesce/__init__.py", "quiesce/__init__.py is missing"),
        ("quiesce/py.typed", "quiesce/py.typed is missing, so that nobody's type checker sees the types"),
        ("quiesce-1.dist-info/licenses/LICENSE", "the licence is missing"),
    ],
)
def test_what_a_wheel_lacks_is_named(distribution: dict[str, Any], name: str, fault: str) -> None:
    assert fault in faults(distribution, {member: WHEEL[member] for member in WHEEL if member != name})


def test_a_path_of_the_machine_is_found_in_a_wheel(distribution: dict[str, Any]) -> None:
    built = {**WHEEL, "quiesce/__init__.py": b"HERE = '/tmp/tree/src'"}
    assert faults(distribution, built) == ["quiesce/__init__.py names /tmp/tree"]


@pytest.mark.parametrize(
    ("said", "instead", "fault"),
    [
        (b">=3.11", b">=3.9", "it says that it needs Python >=3.9"),
        (b"text/markdown", b"text/x-rst", "its description is said to be text/x-rst"),
        (b"Provides-Extra: cli\n", b"", "there is no extra cli"),
        (
            b"; extra == 'agents'",
            b"",
            "the base install needs ['anyio>=4.4', 'msgspec>=0.21'], and not only anyio",
        ),
    ],
)
def test_metadata_that_says_something_else_is_found(
    distribution: dict[str, Any], said: bytes, instead: bytes, fault: str
) -> None:
    assert said in METADATA
    changed = {**WHEEL, "quiesce-1.dist-info/METADATA": METADATA.replace(said, instead)}
    assert faults(distribution, changed) == [fault]


def test_an_sdist_holds_every_file_of_the_project_and_no_other(distribution: dict[str, Any]) -> None:
    check = distribution["sdist_faults"]
    assert list(check(SDIST, PROJECT)) == []
    assert list(check({**SDIST, "notes.txt": b""}, PROJECT)) == ["notes.txt is not of the project"]
    lacking = {name: SDIST[name] for name in SDIST if name != "tests/test_it.py"}
    assert list(check(lacking, PROJECT)) == ["tests/test_it.py is missing"]


CHAT_METADATA = b"""\
Metadata-Version: 2.4
Name: quiesce-chat
Version: 1
Requires-Python: >=3.11
Requires-Dist: prompt-toolkit>=3.0.50
Requires-Dist: quiesce[agents]==1
Requires-Dist: rich>=13
Provides-Extra: embedded
Requires-Dist: quiesce[openai]==1; extra == 'embedded'
Description-Content-Type: text/markdown

# quiesce-chat
"""


def test_the_chat_has_a_wheel_and_an_sdist_of_its_own(distribution: dict[str, Any]) -> None:
    project = {
        *PROJECT,
        "chat/pyproject.toml",
        "chat/src/quiesce_chat/__init__.py",
        "chat/src/quiesce_chat/py.typed",
    }
    wheel = {
        "quiesce_chat/__init__.py": b"",
        "quiesce_chat/py.typed": b"",
        "quiesce_chat-1.dist-info/METADATA": CHAT_METADATA,
        "quiesce_chat-1.dist-info/licenses/LICENSE": b"MIT",
    }
    check, chat = distribution["wheel_faults"], distribution["CHAT"]
    assert list(check(wheel, project, "/tmp/tree", chat)) == []
    more = {**wheel, "quiesce/cli/more.py": b""}
    assert list(check(more, project, "/tmp/tree", chat)) == [
        "quiesce/cli/more.py would be installed beside quiesce_chat"
    ]
    sdist = dict.fromkeys(
        ("pyproject.toml", "src/quiesce_chat/__init__.py", "src/quiesce_chat/py.typed", "PKG-INFO"), b""
    )
    assert list(distribution["sdist_faults"](sdist, project, chat)) == []


def test_the_licence_of_the_chat_is_that_of_quiesce() -> None:
    assert (ROOT / "chat" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_wheels_are_compared_by_content(distribution: dict[str, Any]) -> None:
    assert distribution["differences"](WHEEL, dict(WHEEL)) == []
    other = {**WHEEL, "quiesce/py.typed": b"partial\n", "quiesce/new.py": b""}
    assert distribution["differences"](WHEEL, other) == ["quiesce/new.py", "quiesce/py.typed"]


def test_every_folder_that_the_makefile_works_on_is_in_the_sdist() -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "sdist"
    ]["include"]
    (line,) = (one for one in (ROOT / "Makefile").read_text().splitlines() if one.startswith("CODE := "))
    folders = line.removeprefix("CODE := $(wildcard ").removesuffix(")").split()
    assert {f"/{folder}" for folder in [*folders, "docs"]} - set(included) == set()
    assert [name for name in included if not (ROOT / name[1:]).exists()] == []
