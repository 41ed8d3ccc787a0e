"""What a release is checked for: the shape of the changelog, and that tag, version and changelog agree."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CHANGELOG = """\
# Changelog

## Unreleased

### Fixed

- A bug.

## 1.10.0 (2031-12-24)

- `## 9.9` inside a line is not a heading.

## 1.9.2 (2031-11-05)
"""
RELEASED = CHANGELOG.replace("## Unreleased\n\n### Fixed\n\n- A bug.\n\n", "")


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "check_release.py"))


def faults(release: dict[str, Any], changelog: str, version: str = "1.10.0") -> list[str]:
    return list(release["changelog_faults"](changelog, version))


def test_the_changelog_of_this_tree_has_its_shape(release: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert faults(release, (ROOT / "CHANGELOG.md").read_text(), version) == []


@pytest.mark.parametrize("changelog", [CHANGELOG, RELEASED])
def test_releases_with_their_days_below_what_is_unreleased_are_right(
    release: dict[str, Any], changelog: str
) -> None:
    assert faults(release, changelog) == []


@pytest.mark.parametrize(
    ("said", "instead", "fault"),
    [
        ("## 1.10.0 (2031-12-24)", "## 1.10.0", "'1.10.0' is neither"),
        ("## 1.10.0 (2031-12-24)", "## 1.10.0, unreleased", "'1.10.0, unreleased' is neither"),
        ("## 1.10.0 (2031-12-24)", "## 1.10.0 (2031-13-24)", "'1.10.0 (2031-13-24)' is neither"),
        ("## 1.10.0 (", "## v1.10.0 (", "'v1.10.0 (2031-12-24)' is neither"),
        ("## 1.10.0 (", "## 1.9.1 (", "not in order"),
        ("## 1.10.0 (", "## 1.9.2 (", "not in order"),
        ("## 1.9.2 (2031-11-05)", "## Unreleased", "Unreleased is not the first section"),
        ("### Fixed", "### Mended", "'### Mended' is none of Added"),
    ],
)
def test_another_shape_is_named(release: dict[str, Any], said: str, instead: str, fault: str) -> None:
    assert said in CHANGELOG
    (found,) = faults(release, CHANGELOG.replace(said, instead))
    assert fault in found


def test_a_version_without_a_section_needs_an_unreleased_one(release: dict[str, Any]) -> None:
    assert faults(release, CHANGELOG, "1.11.0") == []
    (found,) = faults(release, RELEASED, "1.11.0")
    assert "a section neither for 1.11.0" in found


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "fault"),
    [
        ("v1.11.0", "1.10.0", RELEASED, "the tag must be v1.10.0"),
        ("1.10.0", "1.10.0", RELEASED, "the tag must be v1.10.0"),
        ("v1.10.0", "1.10.0", CHANGELOG, "the changelog begins with 'Unreleased'"),
        ("v1.9.2", "1.9.2", RELEASED, "the changelog begins with '1.10.0 (2031-12-24)'"),
        ("v1.9.2", "1.9.2", "", "the changelog begins with ''"),
    ],
)
def test_a_tag_that_does_not_fit_is_not_published(
    release: dict[str, Any], tag: str, version: str, changelog: str, fault: str
) -> None:
    (found,) = release["tag_faults"](tag, changelog, version)
    assert fault in found


def test_a_tag_that_fits_is_published(release: dict[str, Any]) -> None:
    assert list(release["tag_faults"]("v1.10.0", RELEASED, "1.10.0")) == []


QUIESCE = """
[project]
version = "1.10.0"
optional-dependencies.cli = ["quiesce[agents]", "quiesce-chat==1.10.0"]
optional-dependencies.embedded = ["quiesce-chat[embedded]==1.10.0"]
"""
CHAT = """
[project]
version = "1.10.0"
dependencies = ["quiesce[agents]==1.10.0"]
"""


def test_quiesce_and_its_chat_are_at_the_same_version(release: dict[str, Any]) -> None:
    check = release["version_faults"]
    assert list(check(QUIESCE, CHAT)) == []
    this = [(ROOT / name).read_text() for name in ("pyproject.toml", "chat/pyproject.toml")]
    assert list(check(*this)) == []


@pytest.mark.parametrize(
    ("said", "instead", "fault"),
    [
        ('version = "1.10.0"', 'version = "1.9.2"', "quiesce-chat is at 1.9.2"),
        ("quiesce[agents]==1.10.0", "quiesce[agents]==1.9.2", "quiesce[agents]==1.9.2 is needed"),
        ("quiesce-chat==1.10.0", "quiesce-chat==1.9.2", "quiesce-chat==1.9.2 is needed"),
        ("[embedded]==1.10.0", "[embedded]==1.10.1", "quiesce-chat[embedded]==1.10.1 is needed"),
    ],
)
def test_versions_that_do_not_agree_are_named(
    release: dict[str, Any], said: str, instead: str, fault: str
) -> None:
    quiesce, chat = (
        (QUIESCE, CHAT.replace(said, instead)) if said in CHAT else (QUIESCE.replace(said, instead), CHAT)
    )
    (found,) = release["version_faults"](quiesce, chat)
    assert found == f"quiesce is at 1.10.0, and {fault}"
