"""Peers and servers, judged by the audit: stopped at any point, in every way, once and twice, nothing is left and every request has its answer."""

from __future__ import annotations

from tests.kernel.audited.sampled import audit_test
from tests.wire.audited import SCENARIOS
from tests.wire.audited.listeners import SCENARIOS as LISTENERS

test_stopped_anywhere_nothing_is_left = audit_test(SCENARIOS + LISTENERS)
