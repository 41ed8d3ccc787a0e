"""Findings, ignores, the baseline file, and the result of an audit with its text report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .baseline import BadBaseline, Baseline, Entry
    from .findings import Example, Finding, Findings, matches, severity_of
    from .ignores import Ignores
    from .result import EXIT_CODES, AuditResult, Cell, LaneSpan, Mark, Strip, Timeline, Verdict
    from .text import WIDTH, Paint, headline, report, where

offer()
