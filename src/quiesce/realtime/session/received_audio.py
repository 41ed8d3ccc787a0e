"""Which audio has arrived: when the connection is lost, what is incomplete or still to be played?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.realtime.words import forget_oldest

if TYPE_CHECKING:
    from quiesce.realtime.words import Place, RealtimeModelAudioEvent

CONTENTS = 128


class ReceivedAudio:
    """The last contents with audio, in the order of their arrival."""

    def __init__(self) -> None:
        self._responses: dict[Place, str] = {}  # the response of each
        self._incomplete: dict[Place, None] = {}

    def add(self, event: RealtimeModelAudioEvent) -> None:
        """Add a piece of audio."""
        place = (event.item_id, event.content_index)
        if place not in self._responses:
            self._responses[place] = event.response_id
            forget_oldest(self._responses, CONTENTS)
            self._incomplete[place] = None
            forget_oldest(self._incomplete, CONTENTS)

    def complete(self, place: Place) -> None:
        """Take note that a content has arrived completely, or is not played any more."""
        self._incomplete.pop(place, None)

    def take_incomplete(self) -> list[Place]:
        """Return the contents whose rest was lost with the connection, and forget them."""
        incomplete, self._incomplete = list(self._incomplete), {}
        return incomplete

    def still_to_play(self, playing: Place | None, response_id: str | None) -> list[Place]:
        """Return the contents that may still be played, of one response or of all.

        These are the playing one and those after it. If it is not known what is playing, it is the last
        response.
        """
        places = list(self._responses)
        if playing in self._responses:
            places = places[places.index(playing) :]
        elif places:
            last = self._responses[places[-1]]
            places = [place for place in places if self._responses[place] == last]
        return [place for place in places if response_id in (None, self._responses[place])]
