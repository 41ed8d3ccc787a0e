"""Sessions with models that speak, whose background work ends before they do.

```python
agent = RealtimeAgent(name="concierge", instructions="Be brief.", tools=[weather])
async with await RealtimeRunner(agent).run() as session:
    await session.send_message("Hello!")
    async for event in session:
        ...
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from quiesce._extras import require

require("msgspec", "agents", "quiesce.realtime")

if TYPE_CHECKING:
    from ._agent import RealtimeAgent as RealtimeAgent
    from ._config import RealtimeAudioConfig as RealtimeAudioConfig
    from ._config import RealtimeAudioFormat as RealtimeAudioFormat
    from ._config import RealtimeAudioInputConfig as RealtimeAudioInputConfig
    from ._config import RealtimeAudioOutputConfig as RealtimeAudioOutputConfig
    from ._config import RealtimeGuardrailsSettings as RealtimeGuardrailsSettings
    from ._config import RealtimeInputAudioNoiseReductionConfig as RealtimeInputAudioNoiseReductionConfig
    from ._config import RealtimeInputAudioTranscriptionConfig as RealtimeInputAudioTranscriptionConfig
    from ._config import RealtimeLimits as RealtimeLimits
    from ._config import RealtimeModelConfig as RealtimeModelConfig
    from ._config import RealtimeReconnect as RealtimeReconnect
    from ._config import RealtimeRunConfig as RealtimeRunConfig
    from ._config import RealtimeSessionModelSettings as RealtimeSessionModelSettings
    from ._config import RealtimeTurnDetectionConfig as RealtimeTurnDetectionConfig
    from ._config import RealtimeUserInput as RealtimeUserInput
    from ._config import RealtimeUserInputImage as RealtimeUserInputImage
    from ._config import RealtimeUserInputMessage as RealtimeUserInputMessage
    from ._config import RealtimeUserInputText as RealtimeUserInputText
    from ._config import RealtimeVoice as RealtimeVoice
    from ._events import RealtimeAgentEndEvent as RealtimeAgentEndEvent
    from ._events import RealtimeAgentStartEvent as RealtimeAgentStartEvent
    from ._events import RealtimeAudio as RealtimeAudio
    from ._events import RealtimeAudioEnd as RealtimeAudioEnd
    from ._events import RealtimeAudioInterrupted as RealtimeAudioInterrupted
    from ._events import RealtimeConnectionLost as RealtimeConnectionLost
    from ._events import RealtimeError as RealtimeError
    from ._events import RealtimeEventInfo as RealtimeEventInfo
    from ._events import RealtimeGuardrailTripped as RealtimeGuardrailTripped
    from ._events import RealtimeHandoffEvent as RealtimeHandoffEvent
    from ._events import RealtimeHistoryAdded as RealtimeHistoryAdded
    from ._events import RealtimeHistoryUpdated as RealtimeHistoryUpdated
    from ._events import RealtimeInputAudioTimeoutTriggered as RealtimeInputAudioTimeoutTriggered
    from ._events import RealtimeRawModelEvent as RealtimeRawModelEvent
    from ._events import RealtimeReconnected as RealtimeReconnected
    from ._events import RealtimeReconnecting as RealtimeReconnecting
    from ._events import RealtimeSessionEvent as RealtimeSessionEvent
    from ._events import RealtimeToolApprovalRequired as RealtimeToolApprovalRequired
    from ._events import RealtimeToolEnd as RealtimeToolEnd
    from ._events import RealtimeToolStart as RealtimeToolStart
    from ._handoff import RealtimeHandoff as RealtimeHandoff
    from ._handoff import realtime_handoff as realtime_handoff
    from ._items import AssistantAudio as AssistantAudio
    from ._items import AssistantMessageItem as AssistantMessageItem
    from ._items import AssistantText as AssistantText
    from ._items import InputAudio as InputAudio
    from ._items import InputImage as InputImage
    from ._items import InputText as InputText
    from ._items import RealtimeItem as RealtimeItem
    from ._items import RealtimeMessageItem as RealtimeMessageItem
    from ._items import RealtimeToolCallItem as RealtimeToolCallItem
    from ._items import SystemMessageItem as SystemMessageItem
    from ._items import UserMessageItem as UserMessageItem
    from ._model import RealtimeModel as RealtimeModel
    from ._model import RealtimeModelListener as RealtimeModelListener
    from ._model_events import RealtimeConnectionStatus as RealtimeConnectionStatus
    from ._model_events import RealtimeModelAudioDoneEvent as RealtimeModelAudioDoneEvent
    from ._model_events import RealtimeModelAudioEvent as RealtimeModelAudioEvent
    from ._model_events import RealtimeModelAudioInterruptedEvent as RealtimeModelAudioInterruptedEvent
    from ._model_events import RealtimeModelConnectionStatusEvent as RealtimeModelConnectionStatusEvent
    from ._model_events import RealtimeModelEndOfStreamEvent as RealtimeModelEndOfStreamEvent
    from ._model_events import RealtimeModelErrorEvent as RealtimeModelErrorEvent
    from ._model_events import RealtimeModelEvent as RealtimeModelEvent
    from ._model_events import RealtimeModelExceptionEvent as RealtimeModelExceptionEvent
    from ._model_events import (
        RealtimeModelInputAudioTimeoutTriggeredEvent as RealtimeModelInputAudioTimeoutTriggeredEvent,
    )
    from ._model_events import (
        RealtimeModelInputAudioTranscriptionCompletedEvent as RealtimeModelInputAudioTranscriptionCompletedEvent,
    )
    from ._model_events import RealtimeModelItemDeletedEvent as RealtimeModelItemDeletedEvent
    from ._model_events import RealtimeModelItemUpdatedEvent as RealtimeModelItemUpdatedEvent
    from ._model_events import RealtimeModelOtherEvent as RealtimeModelOtherEvent
    from ._model_events import RealtimeModelOutputTextDeltaEvent as RealtimeModelOutputTextDeltaEvent
    from ._model_events import RealtimeModelRawServerEvent as RealtimeModelRawServerEvent
    from ._model_events import RealtimeModelToolCallEvent as RealtimeModelToolCallEvent
    from ._model_events import RealtimeModelTranscriptDeltaEvent as RealtimeModelTranscriptDeltaEvent
    from ._model_events import RealtimeModelTurnEndedEvent as RealtimeModelTurnEndedEvent
    from ._model_events import RealtimeModelTurnStartedEvent as RealtimeModelTurnStartedEvent
    from ._model_events import RealtimeModelUsageEvent as RealtimeModelUsageEvent
    from ._model_events import RealtimeServerError as RealtimeServerError
    from ._model_inputs import RealtimeModelSendAudio as RealtimeModelSendAudio
    from ._model_inputs import RealtimeModelSendEvent as RealtimeModelSendEvent
    from ._model_inputs import RealtimeModelSendHistory as RealtimeModelSendHistory
    from ._model_inputs import RealtimeModelSendInterrupt as RealtimeModelSendInterrupt
    from ._model_inputs import RealtimeModelSendRawMessage as RealtimeModelSendRawMessage
    from ._model_inputs import RealtimeModelSendSessionUpdate as RealtimeModelSendSessionUpdate
    from ._model_inputs import RealtimeModelSendToolOutput as RealtimeModelSendToolOutput
    from ._model_inputs import RealtimeModelSendUserInput as RealtimeModelSendUserInput
    from ._playback import RealtimePlaybackState as RealtimePlaybackState
    from ._playback import RealtimePlaybackTracker as RealtimePlaybackTracker
    from ._runner import RealtimeRunner as RealtimeRunner
    from ._session import RealtimeSession as RealtimeSession
    from ._session import RealtimeSessionClosed as RealtimeSessionClosed
    from ._websocket_model import OpenAIRealtimeWebSocketModel as OpenAIRealtimeWebSocketModel

_HOME = {
    "AssistantAudio": "_items",
    "AssistantMessageItem": "_items",
    "AssistantText": "_items",
    "InputAudio": "_items",
    "InputImage": "_items",
    "InputText": "_items",
    "OpenAIRealtimeWebSocketModel": "_websocket_model",
    "RealtimeAgent": "_agent",
    "RealtimeAgentEndEvent": "_events",
    "RealtimeAgentStartEvent": "_events",
    "RealtimeAudio": "_events",
    "RealtimeAudioConfig": "_config",
    "RealtimeAudioEnd": "_events",
    "RealtimeAudioFormat": "_config",
    "RealtimeAudioInputConfig": "_config",
    "RealtimeAudioInterrupted": "_events",
    "RealtimeAudioOutputConfig": "_config",
    "RealtimeConnectionLost": "_events",
    "RealtimeConnectionStatus": "_model_events",
    "RealtimeError": "_events",
    "RealtimeEventInfo": "_events",
    "RealtimeGuardrailTripped": "_events",
    "RealtimeGuardrailsSettings": "_config",
    "RealtimeHandoff": "_handoff",
    "RealtimeHandoffEvent": "_events",
    "RealtimeHistoryAdded": "_events",
    "RealtimeHistoryUpdated": "_events",
    "RealtimeInputAudioNoiseReductionConfig": "_config",
    "RealtimeInputAudioTimeoutTriggered": "_events",
    "RealtimeInputAudioTranscriptionConfig": "_config",
    "RealtimeItem": "_items",
    "RealtimeLimits": "_config",
    "RealtimeMessageItem": "_items",
    "RealtimeModel": "_model",
    "RealtimeModelAudioDoneEvent": "_model_events",
    "RealtimeModelAudioEvent": "_model_events",
    "RealtimeModelAudioInterruptedEvent": "_model_events",
    "RealtimeModelConfig": "_config",
    "RealtimeModelConnectionStatusEvent": "_model_events",
    "RealtimeModelEndOfStreamEvent": "_model_events",
    "RealtimeModelErrorEvent": "_model_events",
    "RealtimeModelEvent": "_model_events",
    "RealtimeModelExceptionEvent": "_model_events",
    "RealtimeModelInputAudioTimeoutTriggeredEvent": "_model_events",
    "RealtimeModelInputAudioTranscriptionCompletedEvent": "_model_events",
    "RealtimeModelItemDeletedEvent": "_model_events",
    "RealtimeModelItemUpdatedEvent": "_model_events",
    "RealtimeModelListener": "_model",
    "RealtimeModelOtherEvent": "_model_events",
    "RealtimeModelOutputTextDeltaEvent": "_model_events",
    "RealtimeModelRawServerEvent": "_model_events",
    "RealtimeModelSendAudio": "_model_inputs",
    "RealtimeModelSendEvent": "_model_inputs",
    "RealtimeModelSendHistory": "_model_inputs",
    "RealtimeModelSendInterrupt": "_model_inputs",
    "RealtimeModelSendRawMessage": "_model_inputs",
    "RealtimeModelSendSessionUpdate": "_model_inputs",
    "RealtimeModelSendToolOutput": "_model_inputs",
    "RealtimeModelSendUserInput": "_model_inputs",
    "RealtimeModelToolCallEvent": "_model_events",
    "RealtimeModelTranscriptDeltaEvent": "_model_events",
    "RealtimeModelTurnEndedEvent": "_model_events",
    "RealtimeModelTurnStartedEvent": "_model_events",
    "RealtimeModelUsageEvent": "_model_events",
    "RealtimePlaybackState": "_playback",
    "RealtimePlaybackTracker": "_playback",
    "RealtimeRawModelEvent": "_events",
    "RealtimeReconnect": "_config",
    "RealtimeReconnected": "_events",
    "RealtimeReconnecting": "_events",
    "RealtimeRunConfig": "_config",
    "RealtimeRunner": "_runner",
    "RealtimeServerError": "_model_events",
    "RealtimeSession": "_session",
    "RealtimeSessionClosed": "_session",
    "RealtimeSessionEvent": "_events",
    "RealtimeSessionModelSettings": "_config",
    "RealtimeToolApprovalRequired": "_events",
    "RealtimeToolCallItem": "_items",
    "RealtimeToolEnd": "_events",
    "RealtimeToolStart": "_events",
    "RealtimeTurnDetectionConfig": "_config",
    "RealtimeUserInput": "_config",
    "RealtimeUserInputImage": "_config",
    "RealtimeUserInputMessage": "_config",
    "RealtimeUserInputText": "_config",
    "RealtimeVoice": "_config",
    "SystemMessageItem": "_items",
    "UserMessageItem": "_items",
    "realtime_handoff": "_handoff",
}

__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
