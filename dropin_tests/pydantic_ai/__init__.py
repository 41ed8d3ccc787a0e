"""Tests of `quiesce.dropin.pydantic_ai`."""
