"""What an audit is about: scenarios, points, stops, schedules, and the record of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .loop_complaints import classify_complaint, reporting_frames
    from .points import ITEM, PHASES, BadToken, Phase, Point, Token, parse_token
    from .run_record import KINDS, Outcome, Run, Sighting
    from .scenarios import BadScenario, Scenario, options_of, scenario
    from .schedule import IN_CLEAN_UP, Aim, Endless, Moment, Schedule
    from .source_places import (
        Chain,
        Place,
        Spot,
        await_chain,
        callers,
        coroutine_of,
        digest,
        is_audit_code,
        makers,
        name_of,
        place,
        places,
        shorten,
        stack_of,
        traceback_chain,
    )
    from .steady_names import record_temporary_names, steady, steady_object
    from .stops import STOPS, Backend, Stop, UnknownStop, choose_stops
    from .task_records import TaskRecord
    from .world import MORE_PATIENCE, WORLDS, Limits, World, check_patience

offer()
