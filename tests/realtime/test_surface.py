"""The public surface of `quiesce.realtime` is what is listed here. Changing it is a decision. And looking at it loads little."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys

import pytest

import quiesce.realtime as realtime
import quiesce.realtime.testing as testing

ITEMS = """
AssistantAudio AssistantMessageItem AssistantText InputAudio InputImage InputText RealtimeItem RealtimeMessageItem RealtimeToolCallItem SystemMessageItem
UserMessageItem
"""
SETTINGS = """
RealtimeAudioConfig RealtimeAudioFormat RealtimeAudioInputConfig RealtimeAudioOutputConfig RealtimeGuardrailsSettings
RealtimeInputAudioNoiseReductionConfig RealtimeInputAudioTranscriptionConfig RealtimeLimits RealtimeModelConfig RealtimeReconnect
RealtimeRunConfig RealtimeSessionModelSettings RealtimeTurnDetectionConfig RealtimeUserInput RealtimeUserInputImage RealtimeUserInputMessage RealtimeUserInputText RealtimeVoice
"""
EVENTS = """
RealtimeAgentEndEvent RealtimeAgentStartEvent RealtimeAudio RealtimeAudioEnd RealtimeAudioInterrupted RealtimeConnectionLost RealtimeError RealtimeEventInfo
RealtimeGuardrailTripped RealtimeHandoffEvent RealtimeHistoryAdded RealtimeHistoryUpdated RealtimeInputAudioTimeoutTriggered RealtimeRawModelEvent
RealtimeReconnected RealtimeReconnecting RealtimeSessionEvent RealtimeToolApprovalRequired RealtimeToolEnd RealtimeToolStart
"""
MODELS = """
OpenAIRealtimeWebSocketModel RealtimeConnectionStatus RealtimeModel RealtimeModelAudioDoneEvent RealtimeModelAudioEvent RealtimeModelAudioInterruptedEvent
RealtimeModelConnectionStatusEvent RealtimeModelEndOfStreamEvent RealtimeModelErrorEvent RealtimeModelEvent RealtimeModelExceptionEvent
RealtimeModelInputAudioTimeoutTriggeredEvent RealtimeModelInputAudioTranscriptionCompletedEvent RealtimeModelItemDeletedEvent RealtimeModelItemUpdatedEvent
RealtimeModelListener RealtimeModelOtherEvent RealtimeModelOutputTextDeltaEvent RealtimeModelRawServerEvent RealtimeModelSendAudio RealtimeModelSendEvent
RealtimeModelSendHistory RealtimeModelSendInterrupt RealtimeModelSendRawMessage RealtimeModelSendSessionUpdate RealtimeModelSendToolOutput RealtimeModelSendUserInput
RealtimeModelToolCallEvent RealtimeModelTranscriptDeltaEvent RealtimeModelTurnEndedEvent RealtimeModelTurnStartedEvent RealtimeModelUsageEvent
RealtimePlaybackState RealtimePlaybackTracker RealtimeServerError
"""
SESSIONS = (
    "RealtimeAgent RealtimeHandoff RealtimeRunner RealtimeSession RealtimeSessionClosed realtime_handoff"
)

PUBLIC = " ".join([ITEMS, SETTINGS, EVENTS, MODELS, SESSIONS]).split()


def loaded_by(statement: str) -> set[str]:
    code = f"import sys, json; {statement}; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout))


def test_all_is_exactly_the_public_names() -> None:
    assert importlib.import_module("quiesce.realtime").__all__ == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(realtime))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_name_is_there_with_words_about_it(name: str) -> None:
    found = getattr(realtime, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__doc__
        assert not found.__doc__.startswith(f"{name}(")  # which is what Python makes up


def test_what_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RealtimeNothing'"):
        getattr(realtime, "RealtimeNothing")  # noqa: B009
    with pytest.raises(AttributeError, match="no attribute 'RealtimeNothing'"):
        getattr(testing, "RealtimeNothing")  # noqa: B009


def test_the_names_for_tests() -> None:
    assert importlib.import_module("quiesce.realtime.testing").__all__ == [
        "Faults",
        "LocalRealtimeServer",
        "ScriptedRealtimeModel",
        "Speech",
    ]
    for name in importlib.import_module("quiesce.realtime.testing").__all__:
        assert getattr(testing, name).__doc__


def test_the_verbs_of_a_session() -> None:
    verbs = {name for name in dir(realtime.RealtimeSession) if not name.startswith("_")}
    assert verbs == {
        "approve_tool_call",
        "cancel",
        "close",
        "closed",
        "current_agent",
        "enter",
        "history",
        "interrupt",
        "model",
        "reject_tool_call",
        "report",
        "send_audio",
        "send_message",
        "token",
        "update_agent",
    }


def test_importing_it_loads_no_websockets_no_openai_and_no_backend() -> None:
    loaded = loaded_by("import quiesce.realtime, quiesce.realtime.testing; quiesce.realtime.RealtimeSession")
    assert not {"websockets", "openai", "mcp", "trio", "uvloop"} & {name.partition(".")[0] for name in loaded}


def test_a_session_with_a_model_of_ones_own_loads_no_websockets() -> None:
    code = """
import asyncio
from quiesce.realtime import RealtimeAgent, RealtimeRunner
from quiesce.realtime.testing import ScriptedRealtimeModel
async def main():
    async with await RealtimeRunner(RealtimeAgent("a"), model=ScriptedRealtimeModel()).run():
        pass
asyncio.run(main())
"""
    loaded = loaded_by(f"exec({code!r})")
    assert "websockets" not in loaded
