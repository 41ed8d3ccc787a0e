"""`quiesce.dropin.mcp` with mcp 1.x and 2.x."""
