"""Stand-ins for what an SDK talks to: a server, a CLI, an agent, a model.

Each speaks the real protocol, and has no mind.
"""
