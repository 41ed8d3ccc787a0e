"""Real releases with known bugs, and some without: what the audit says about them. `make seeds` runs it all."""
