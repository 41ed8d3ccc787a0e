"""The report for machines: JSON and JUnit XML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .machine import Failure, Outcome, to_json, to_junit

offer()
