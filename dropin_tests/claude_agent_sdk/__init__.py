"""`quiesce.dropin.claude_agent_sdk` with claude-agent-sdk."""
