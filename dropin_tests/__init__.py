"""Tests of the drop-ins, each in an environment with the real SDK: `make test-dropin`."""
