"""Warnings of the packages that the SDK stands on, which say nothing about what is tested here."""

from __future__ import annotations

import pytest

THEIRS = ("ignore:.*`ReadOnly` qualifier:UserWarning",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for one in THEIRS:
            item.add_marker(pytest.mark.filterwarnings(one))
