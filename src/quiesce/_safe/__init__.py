"""Text, addresses and files of other people, made safe to show and to touch.

It is below every package, and imports none of them. Only `nested` needs more than the standard library.
"""
