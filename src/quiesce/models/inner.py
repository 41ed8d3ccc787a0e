"""The names of `quiesce.models` that other packages of quiesce may import besides its public ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .http import FIRST_PAUSE, LONGEST_PAUSE, CallDeadline, took_too_long
    from .words import (
        ITEM_TYPES,
        InputItem,
        as_items,
        convert_item,
        decode_item,
        encode_item,
        model_event_data,
        model_event_of,
        pending_calls,
        text_of,
    )

offer()
