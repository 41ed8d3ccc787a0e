"""Text, addresses and files of other people, made safe to show and to touch.

Only the standard library is used here, so that every package can use it.
"""
