"""Conversations in a real PostgreSQL server: `make test-database`."""
