"""Agents and clients, judged by the audit: stopped at any point, in every way, once and twice, nothing is left and every prompt has its answer."""

from __future__ import annotations

from tests.acp.audited import SCENARIOS
from tests.kernel.audited.sampled import audit_test

test_stopped_anywhere_nothing_is_left = audit_test(SCENARIOS)
