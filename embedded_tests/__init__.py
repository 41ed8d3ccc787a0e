"""The embedded model with its real weights: `make test-embedded`."""
