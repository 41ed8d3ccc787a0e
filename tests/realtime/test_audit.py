"""Sessions, judged by the audit: stopped at any point, in every way, once and twice, nothing is left and no call is answered twice."""

from __future__ import annotations

from tests.kernel.audited.sampled import audit_test
from tests.realtime import audited_reconnects  # noqa: F401  # which adds to them
from tests.realtime.audited import SCENARIOS

test_stopped_anywhere_nothing_is_left = audit_test(SCENARIOS)
