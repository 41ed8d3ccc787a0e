"""The command `quiesce audit`."""
