"""Every leak of the corpus is found for what it is and where it is, and every clean twin is silent, in every world."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from quiesce.audit import STOPS, AuditResult, Finding, Limits, audit
from quiesce.audit.model.points import PHASES
from quiesce.audit.model.run_record import KINDS
from tests.audit.corpus import ALL, ENTRIES, Entry, Finds, innermost, marked, position
from tests.world import world_names


def each_entry_in(worlds: list[str]) -> pytest.MarkDecorator:
    cases = [
        # As everywhere, what runs on uvloop takes as long as it says.
        pytest.param(
            entry, world, id=f"{entry.name}-{world}", marks=[pytest.mark.slow] if world == "uvloop" else []
        )
        for entry in ENTRIES
        for world in worlds
        if world in entry.worlds
    ]
    return pytest.mark.parametrize(("entry", "backend"), cases)


each_entry_in_each_world = each_entry_in(world_names())

# The clock of uvloop is real: what was late in one run may have ended in the next.
each_entry_in_virtual_time = each_entry_in([world for world in world_names() if world != "uvloop"])


def run_twin(entry: Entry, backend: str) -> AuditResult:
    try:
        limits = dataclasses.replace(entry.options.get("limits", Limits()), linger=10.0)  # of a busy machine
        return audit(entry.clean, backend=backend, **{**entry.options, "limits": limits})
    finally:
        entry.tidy()


@functools.cache  # two tests look at each
def run_leaky(name: str, backend: str) -> AuditResult:
    entry = BY_NAME[name]
    with pytest.MonkeyPatch.context() as patched:
        if backend == "uvloop" and any(expected.kind == "late" for expected in entry.finds):
            # The real time in which it has to end, lest it be taken for what never does.
            patched.setattr("quiesce.audit.worlds.uvloop_loop.GRACE", 2.0)
        try:
            return audit(entry.leaky, backend=backend, **entry.options)
        finally:
            entry.tidy()


BY_NAME = {entry.name: entry for entry in ENTRIES}


@each_entry_in_each_world
def test_a_leak_is_found_with_its_kind_and_its_place(entry: Entry, backend: str) -> None:
    result = run_leaky(entry.name, backend)
    assert result.verdict == ("FINDINGS" if is_an_error(entry) else "CLEAN"), str(result)
    for expected in entry.finds:
        found = [finding for finding in result.findings if expected.is_this(finding)]
        assert found, f"no {expected.kind} {expected.what} in\n{result}"
        for finding in found:
            assert_is_as_expected(entry, expected, finding, result)


def is_an_error(entry: Entry) -> bool:
    return any(expected.severity == "error" for expected in entry.finds)


def assert_is_as_expected(entry: Entry, expected: Finds, finding: Finding, result: AuditResult) -> None:
    example, text = finding.example, str(result)
    by = f"{example.stop}/{example.points[0].phase}" if example.stop else "baseline"
    differs = expected.on_trio if result.backend == "trio" else ""
    assert by == (differs or expected.by), text
    assert finding.severity == expected.severity, text
    assert expected.says in example.detail, text
    if expected.leak:
        assert position(finding.site) == marked(entry.leaky, "leak", expected.leak), text
    if expected.stuck:
        assert position(innermost(example.stuck_at)) == marked(entry.leaky, "stuck", expected.stuck), text
    if expected.stop and not differs:
        assert position(innermost(example.stopped_at)) == marked(entry.leaky, "stop", expected.stop), text
    if expected.only:
        assert sorted(finding.strips) == sorted(expected.only), text
    if example.stop:
        assert len(example.points) == expected.depth, text


@each_entry_in_each_world
def test_a_leak_is_not_taken_for_another_one(entry: Entry, backend: str) -> None:
    result = run_leaky(entry.name, backend)
    companions = [Finds(kind, what, "") for kind, what in entry.also]
    unexpected = [
        f"{finding.kind} {finding.what}"
        for finding in result.findings
        if not any(known.is_this(finding) for known in (*entry.finds, *companions))
    ]
    assert not unexpected, str(result)


@each_entry_in_each_world
def test_its_clean_twin_is_silent(entry: Entry, backend: str) -> None:
    result = run_twin(entry, backend)
    assert result.verdict == "CLEAN", str(result)
    assert result.findings == [], str(result)
    assert result.is_complete, str(result)


@each_entry_in_virtual_time
def test_its_examples_can_be_made_again(entry: Entry, backend: str) -> None:
    options = {
        name: entry.options[name] for name in entry.options if name not in ("stops", "phases", "depth")
    }
    for finding in run_leaky(entry.name, backend).findings:
        if not finding.example.token:
            continue  # nobody stopped it
        try:
            replay = audit(entry.leaky, backend=backend, at=finding.example.token, **options)
        finally:
            entry.tidy()
        assert finding.key in [found.key for found in replay.findings], str(replay)


def test_every_kind_of_finding_is_in_the_corpus() -> None:
    assert {expected.kind for entry in ENTRIES for expected in entry.finds} == set(KINDS)


def test_every_stop_is_in_the_corpus() -> None:
    stops = {expected.by.partition("/")[0] for entry in ENTRIES for expected in entry.finds}
    assert stops - {"baseline"} == set(STOPS)


def test_every_phase_is_in_the_corpus() -> None:
    phases = {expected.by.partition("/")[2] for entry in ENTRIES for expected in entry.finds}
    assert phases - {""} == set(PHASES)


def test_the_corpus_says_why_a_world_is_left_out() -> None:
    for entry in ENTRIES:
        assert entry.worlds, entry.name
        assert set(entry.worlds) <= set(ALL), entry.name
        assert bool(entry.left_out) == (set(entry.worlds) != set(ALL)), entry.name


def test_no_two_entries_have_the_same_name() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names)) >= 35
