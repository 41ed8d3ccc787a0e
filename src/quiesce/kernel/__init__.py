"""The kernel: scopes that settle, tokens that stay, and owners for other people's code."""
