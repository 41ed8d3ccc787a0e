"""`quiesce.dropin.acp` with agent-client-protocol."""
