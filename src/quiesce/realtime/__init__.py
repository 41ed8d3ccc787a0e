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

from typing import TYPE_CHECKING

from quiesce._extras import require
from quiesce._lazy import offer

require("msgspec", "agents", "quiesce.realtime")

if TYPE_CHECKING:
    from .openai import OpenAIRealtimeWebSocketModel as OpenAIRealtimeWebSocketModel
    from .session import RealtimeRunner as RealtimeRunner
    from .session import RealtimeSession as RealtimeSession
    from .session import RealtimeSessionClosed as RealtimeSessionClosed
    from .words import AssistantAudio as AssistantAudio
    from .words import AssistantMessageItem as AssistantMessageItem
    from .words import AssistantText as AssistantText
    from .words import InputAudio as InputAudio
    from .words import InputImage as InputImage
    from .words import InputText as InputText
    from .words import RealtimeAgent as RealtimeAgent
    from .words import RealtimeAgentEndEvent as RealtimeAgentEndEvent
    from .words import RealtimeAgentStartEvent as RealtimeAgentStartEvent
    from .words import RealtimeAudio as RealtimeAudio
    from .words import RealtimeAudioConfig as RealtimeAudioConfig
    from .words import RealtimeAudioEnd as RealtimeAudioEnd
    from .words import RealtimeAudioFormat as RealtimeAudioFormat
    from .words import RealtimeAudioInputConfig as RealtimeAudioInputConfig
    from .words import RealtimeAudioInterrupted as RealtimeAudioInterrupted
    from .words import RealtimeAudioOutputConfig as RealtimeAudioOutputConfig
    from .words import RealtimeConnectionLost as RealtimeConnectionLost
    from .words import RealtimeConnectionStatus as RealtimeConnectionStatus
    from .words import RealtimeError as RealtimeError
    from .words import RealtimeEventInfo as RealtimeEventInfo
    from .words import RealtimeGuardrailsSettings as RealtimeGuardrailsSettings
    from .words import RealtimeGuardrailTripped as RealtimeGuardrailTripped
    from .words import RealtimeHandoff as RealtimeHandoff
    from .words import RealtimeHandoffEvent as RealtimeHandoffEvent
    from .words import RealtimeHistoryAdded as RealtimeHistoryAdded
    from .words import RealtimeHistoryUpdated as RealtimeHistoryUpdated
    from .words import RealtimeInputAudioNoiseReductionConfig as RealtimeInputAudioNoiseReductionConfig
    from .words import RealtimeInputAudioTimeoutTriggered as RealtimeInputAudioTimeoutTriggered
    from .words import RealtimeInputAudioTranscriptionConfig as RealtimeInputAudioTranscriptionConfig
    from .words import RealtimeItem as RealtimeItem
    from .words import RealtimeLimits as RealtimeLimits
    from .words import RealtimeMessageItem as RealtimeMessageItem
    from .words import RealtimeModel as RealtimeModel
    from .words import RealtimeModelAudioDoneEvent as RealtimeModelAudioDoneEvent
    from .words import RealtimeModelAudioEvent as RealtimeModelAudioEvent
    from .words import RealtimeModelAudioInterruptedEvent as RealtimeModelAudioInterruptedEvent
    from .words import RealtimeModelConfig as RealtimeModelConfig
    from .words import RealtimeModelConnectionStatusEvent as RealtimeModelConnectionStatusEvent
    from .words import RealtimeModelEndOfStreamEvent as RealtimeModelEndOfStreamEvent
    from .words import RealtimeModelErrorEvent as RealtimeModelErrorEvent
    from .words import RealtimeModelEvent as RealtimeModelEvent
    from .words import RealtimeModelExceptionEvent as RealtimeModelExceptionEvent
    from .words import (
        RealtimeModelInputAudioTimeoutTriggeredEvent as RealtimeModelInputAudioTimeoutTriggeredEvent,
    )
    from .words import (
        RealtimeModelInputAudioTranscriptionCompletedEvent as RealtimeModelInputAudioTranscriptionCompletedEvent,
    )
    from .words import RealtimeModelItemDeletedEvent as RealtimeModelItemDeletedEvent
    from .words import RealtimeModelItemUpdatedEvent as RealtimeModelItemUpdatedEvent
    from .words import RealtimeModelListener as RealtimeModelListener
    from .words import RealtimeModelOtherEvent as RealtimeModelOtherEvent
    from .words import RealtimeModelOutputTextDeltaEvent as RealtimeModelOutputTextDeltaEvent
    from .words import RealtimeModelRawServerEvent as RealtimeModelRawServerEvent
    from .words import RealtimeModelSendAudio as RealtimeModelSendAudio
    from .words import RealtimeModelSendEvent as RealtimeModelSendEvent
    from .words import RealtimeModelSendHistory as RealtimeModelSendHistory
    from .words import RealtimeModelSendInterrupt as RealtimeModelSendInterrupt
    from .words import RealtimeModelSendRawMessage as RealtimeModelSendRawMessage
    from .words import RealtimeModelSendSessionUpdate as RealtimeModelSendSessionUpdate
    from .words import RealtimeModelSendToolOutput as RealtimeModelSendToolOutput
    from .words import RealtimeModelSendUserInput as RealtimeModelSendUserInput
    from .words import RealtimeModelToolCallEvent as RealtimeModelToolCallEvent
    from .words import RealtimeModelTranscriptDeltaEvent as RealtimeModelTranscriptDeltaEvent
    from .words import RealtimeModelTurnEndedEvent as RealtimeModelTurnEndedEvent
    from .words import RealtimeModelTurnStartedEvent as RealtimeModelTurnStartedEvent
    from .words import RealtimeModelUsageEvent as RealtimeModelUsageEvent
    from .words import RealtimePlaybackState as RealtimePlaybackState
    from .words import RealtimePlaybackTracker as RealtimePlaybackTracker
    from .words import RealtimeRawModelEvent as RealtimeRawModelEvent
    from .words import RealtimeReconnect as RealtimeReconnect
    from .words import RealtimeReconnected as RealtimeReconnected
    from .words import RealtimeReconnecting as RealtimeReconnecting
    from .words import RealtimeRunConfig as RealtimeRunConfig
    from .words import RealtimeServerError as RealtimeServerError
    from .words import RealtimeSessionEvent as RealtimeSessionEvent
    from .words import RealtimeSessionModelSettings as RealtimeSessionModelSettings
    from .words import RealtimeToolApprovalRequired as RealtimeToolApprovalRequired
    from .words import RealtimeToolCallItem as RealtimeToolCallItem
    from .words import RealtimeToolEnd as RealtimeToolEnd
    from .words import RealtimeToolStart as RealtimeToolStart
    from .words import RealtimeTurnDetectionConfig as RealtimeTurnDetectionConfig
    from .words import RealtimeUserInput as RealtimeUserInput
    from .words import RealtimeUserInputImage as RealtimeUserInputImage
    from .words import RealtimeUserInputMessage as RealtimeUserInputMessage
    from .words import RealtimeUserInputText as RealtimeUserInputText
    from .words import RealtimeVoice as RealtimeVoice
    from .words import SystemMessageItem as SystemMessageItem
    from .words import UserMessageItem as UserMessageItem
    from .words import realtime_handoff as realtime_handoff

offer()
