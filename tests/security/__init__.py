"""Attacks, one file for each threat of docs/security.md. Each test plays the attacker, and shows that nothing comes of it."""
