"""The Agent Client Protocol: typed messages, and both ends of a connection."""
