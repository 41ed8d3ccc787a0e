"""Which audio has come, for when the connection is lost: what of it is not complete, and what may still be played."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from quiesce.realtime.openai import forget_oldest

if TYPE_CHECKING:
    from quiesce.realtime.words import RealtimeModelAudioEvent

Place: TypeAlias = tuple[str, int]
"""An item, and the index of a content in it."""

CONTENTS = 128


class ReceivedAudio:
    """The last contents of which audio has come, in the order in which they did."""

    def __init__(self) -> None:
        self._responses: dict[Place, str] = {}  # whose each is
        self._open: dict[Place, None] = {}  # of which more is to come

    def came(self, event: RealtimeModelAudioEvent) -> None:
        """A piece."""
        place = (event.item_id, event.content_index)
        if place not in self._responses:
            self._responses[place] = event.response_id
            forget_oldest(self._responses, CONTENTS)
            self._open[place] = None
            forget_oldest(self._open, CONTENTS)

    def ended(self, place: Place) -> None:
        """That was all, or nothing more of it is played."""
        self._open.pop(place, None)

    def cut_off(self) -> list[Place]:
        """Nothing more comes: of these there is a rest that nobody will hear."""
        cut, self._open = list(self._open), {}
        return cut

    def from_now_on(self, playing: Place | None, response_id: str | None) -> list[Place]:
        """What may be played from now on, of one response or of all: what is being played, and what came after it; else the last response."""
        places = list(self._responses)
        if playing in self._responses:
            places = places[places.index(playing) :]
        elif places:
            last = self._responses[places[-1]]
            places = [place for place in places if self._responses[place] == last]
        return [place for place in places if response_id in (None, self._responses[place])]
