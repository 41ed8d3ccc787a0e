"""Real MCP servers, whose client is stopped in every way: what is left of them, without and with `quiesce exec`."""
