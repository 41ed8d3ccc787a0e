"""Tests with a real Docker engine: `make test-docker`."""
