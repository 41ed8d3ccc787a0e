"""Text, addresses and files from untrusted sources, made safe to show and to touch.

This package is below all others, and imports none of them. Only `nested` needs more than the standard
library.
"""
