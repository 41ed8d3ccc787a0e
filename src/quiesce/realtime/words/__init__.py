"""What users and models exchange with a session: settings, events, items, agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from . import model_events
    from .agent import RealtimeAgent, RealtimeHandoff, as_handoff, realtime_handoff
    from .audio_format import RealtimeAudioFormat, bytes_per_millisecond, wire_format
    from .bounded_memory import RecentSet, forget_oldest
    from .config import (
        RealtimeAudioConfig,
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
    from .items import (
        AssistantAudio,
        AssistantMessageItem,
        AssistantText,
        InputAudio,
        InputImage,
        InputText,
        ItemStatus,
        Place,
        RealtimeItem,
        RealtimeMessageItem,
        RealtimeToolCallItem,
        SystemMessageItem,
        UserMessageItem,
    )
    from .model import ListenedModel, RealtimeModel, RealtimeModelListener
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
