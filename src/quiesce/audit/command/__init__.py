"""`quiesce audit`."""
