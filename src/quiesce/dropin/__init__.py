"""The SDKs that you already use, with one import changed: what starts and ends things is ours, all else is theirs.

`quiesce.dropin.agents` is openai-agents, and so on: one package or module for each SDK. Each offers everything
that the installed SDK offers, the same objects, and replaces only what starts and ends things. Nothing is
monkey-patched, and nothing is imported here: the SDK is imported by the module that is named after it.
"""
