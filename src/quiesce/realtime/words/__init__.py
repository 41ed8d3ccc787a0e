"""What users and models say to a session: settings, events, items, agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from . import model_events
    from .agent import RealtimeAgent
    from .audio_format import bytes_per_millisecond, wire_format
    from .config import (
        RealtimeAudioConfig,
        RealtimeAudioFormat,
        RealtimeAudioInputConfig,
        RealtimeAudioOutputConfig,
        RealtimeGuardrailsSettings,
        RealtimeInputAudioNoiseReductionConfig,
        RealtimeInputAudioTranscriptionConfig,
        RealtimeLimits,
        RealtimeModelConfig,
        RealtimeReconnect,
        RealtimeRunConfig,
        RealtimeSessionModelSettings,
        RealtimeTurnDetectionConfig,
        RealtimeUserInput,
        RealtimeUserInputImage,
        RealtimeUserInputMessage,
        RealtimeUserInputText,
        RealtimeVoice,
        check_run_config,
    )
    from .events import (
        RealtimeAgentEndEvent,
        RealtimeAgentStartEvent,
        RealtimeAudio,
        RealtimeAudioEnd,
        RealtimeAudioInterrupted,
        RealtimeConnectionLost,
        RealtimeError,
        RealtimeEventInfo,
        RealtimeGuardrailTripped,
        RealtimeHandoffEvent,
        RealtimeHistoryAdded,
        RealtimeHistoryUpdated,
        RealtimeInputAudioTimeoutTriggered,
        RealtimeRawModelEvent,
        RealtimeReconnected,
        RealtimeReconnecting,
        RealtimeSessionEvent,
        RealtimeToolApprovalRequired,
        RealtimeToolEnd,
        RealtimeToolStart,
    )
    from .handoff import RealtimeHandoff, as_handoff, realtime_handoff
    from .items import (
        AssistantAudio,
        AssistantMessageItem,
        AssistantText,
        InputAudio,
        InputImage,
        InputText,
        RealtimeItem,
        RealtimeMessageItem,
        RealtimeToolCallItem,
        SystemMessageItem,
        UserMessageItem,
    )
    from .model import RealtimeModel, RealtimeModelListener
    from .model_events import (
        RealtimeConnectionStatus,
        RealtimeModelAudioDoneEvent,
        RealtimeModelAudioEvent,
        RealtimeModelAudioInterruptedEvent,
        RealtimeModelConnectionStatusEvent,
        RealtimeModelEndOfStreamEvent,
        RealtimeModelErrorEvent,
        RealtimeModelEvent,
        RealtimeModelExceptionEvent,
        RealtimeModelInputAudioTimeoutTriggeredEvent,
        RealtimeModelInputAudioTranscriptionCompletedEvent,
        RealtimeModelItemDeletedEvent,
        RealtimeModelItemUpdatedEvent,
        RealtimeModelOtherEvent,
        RealtimeModelOutputTextDeltaEvent,
        RealtimeModelRawServerEvent,
        RealtimeModelToolCallEvent,
        RealtimeModelTranscriptDeltaEvent,
        RealtimeModelTurnEndedEvent,
        RealtimeModelTurnStartedEvent,
        RealtimeModelUsageEvent,
        RealtimeServerError,
    )
    from .model_inputs import (
        RealtimeModelSendAudio,
        RealtimeModelSendEvent,
        RealtimeModelSendHistory,
        RealtimeModelSendInterrupt,
        RealtimeModelSendRawMessage,
        RealtimeModelSendSessionUpdate,
        RealtimeModelSendToolOutput,
        RealtimeModelSendUserInput,
    )
    from .playback import AssumedPlayback, RealtimePlaybackState, RealtimePlaybackTracker

offer()
