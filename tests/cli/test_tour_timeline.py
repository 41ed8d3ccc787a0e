"""The small timelines of the tour."""

from __future__ import annotations

import pytest

from quiesce.cli.tour.stage.lanes import Clock, End, Lane
from quiesce.cli.tour.stage.stage import Played
from quiesce.cli.tour.stage.timeline import ASCII, UNICODE, Glyphs, draw, plain


def lane(
    name: str,
    started: float,
    ended: float | None = None,
    *,
    told: float | None = None,
    how: End = "finished",
    innocent: bool = False,
) -> Lane:
    made = Lane("task", name, Clock(), innocent=innocent)
    made.started, made.stop_seen, made.ended = started, told, ended
    made.how = how if ended is not None else None
    return made


def drawn(
    *lanes: Lane, back: float | None = None, lasted: float = 1.0, glyphs: Glyphs = UNICODE
) -> list[str]:
    played = Played(lanes=list(lanes), back=back, lasted=lasted)
    return [plain(line) for line in draw(played, span=1.0, width=40, glyphs=glyphs)]


def test_a_lane_begins_and_ends_where_it_did() -> None:
    assert drawn(lane("work", 0.5, 0.9))[0] == "    work" + " " * 16 + "●───────────■"


def test_what_goes_on_after_control_is_back_is_drawn_heavily_and_what_still_runs_has_an_arrow() -> None:
    line, back, _ = drawn(lane("work", 0.0), back=0.5)
    assert line.endswith("●──────────────━━━━━━━━━━━━━▶")
    assert back.index("▲") == line.index("━") - 1


def test_an_innocent_task_may_go_on() -> None:
    assert "━" not in drawn(lane("work", 0.0, innocent=True), back=0.5)[0]


def test_clean_up_shows_between_being_told_and_having_stopped() -> None:
    assert "●─────◇╌╌╌╌╌◆" in drawn(lane("work", 0.0, 0.42, told=0.21, how="cancelled"))[0]


def test_told_and_stopped_at_once_is_one_mark() -> None:
    assert drawn(lane("work", 0.0, 0.3, told=0.3, how="cancelled"))[0].endswith("●───────◆")


def test_a_failure_is_crossed_out() -> None:
    assert drawn(lane("work", 0.0, 0.3, how="failed"))[0].endswith("✗")


def test_what_has_not_begun_has_no_lane() -> None:
    assert drawn(Lane("task", "work", Clock())) == []


def test_it_can_be_drawn_in_ascii() -> None:
    lines = drawn(lane("a", 0.0), lane("b", 0.0, 0.6, told=0.4, how="cancelled"), back=0.5, glyphs=ASCII)
    assert all(line.isascii() for line in lines)
    assert "o-" in lines[0]
    assert lines[0].endswith("=>")


def test_what_took_longer_than_planned_still_fits() -> None:
    line, _, axis = drawn(lane("work", 0.0, 5.0), lasted=5.0)
    assert len(line) <= 40
    assert axis.strip().startswith("0")
    assert axis.endswith("s")


@pytest.mark.parametrize("width", [20, 40, 59, 60, 80, 120])
@pytest.mark.parametrize("back", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_no_line_is_wider_than_it_may_be(width: int, back: float) -> None:
    played = Played(lanes=[lane("a task", 0.0), lane("b", 0.3, 0.6)], back=back, lasted=1.0)
    lines = [plain(line) for line in draw(played, span=1.0, width=width, glyphs=UNICODE)]
    assert max(map(len, lines)) <= max(width, 30)


def test_a_lane_does_not_change_when_its_clock_has_stopped() -> None:
    clock = Clock()
    work = Lane("task", "work", clock)
    work.start()
    clock.is_stopped = True
    work.told_to_stop()
    work.end("cancelled")
    assert work.is_running
    assert work.stop_seen is None
