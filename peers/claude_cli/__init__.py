"""The real Claude Code CLI, driven by `quiesce.claude`, stopped in every way while its shell tool is at work.

    python -m peers.claude_cli [--only WORD] [--at-once N]      # in an environment that has claude-agent-sdk,
    which brings the CLI

Part of `make peers`. Each case is a program with a judge of its own, in a network namespace of its own that
has nothing but loopback, and a stand-in of the Messages API in it. Whatever a case starts is in that
namespace, whatever its session, group, parent or environment: so one can tell what is left.
"""
