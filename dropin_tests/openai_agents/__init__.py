"""`quiesce.dropin.agents` with openai-agents."""
