"""Tests with real weights. Run by `make test-embedded`."""

from __future__ import annotations

from tests.inherited import put_in_order
from tests.time_limit import limit_each_test as pytest_runtest_call  # noqa: F401

put_in_order()
