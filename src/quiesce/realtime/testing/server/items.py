"""The items of a conversation, in their order."""

from __future__ import annotations

from typing import Any


class ItemsInOrder:
    """Items in the form of the protocol, by id."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, Any]] = {}

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def __getitem__(self, item_id: str) -> dict[str, Any]:
        return self._items[item_id]

    @property
    def last(self) -> str | None:
        """The id of the last item."""
        return next(reversed(self._items), None)

    def add(self, item: dict[str, Any], after: str | None = None) -> str | None:
        """Add an item at the end, after another, or first (`"root"`); return the id of the one before it."""
        if after is None:
            before = self.last
            self._items[item["id"]] = item
            return before
        order = [item] if after == "root" else []
        for other in self._items.values():
            order += [other, item] if other["id"] == after else [other]
        self._items = {entry["id"]: entry for entry in order}
        return self.before(item["id"])

    def before(self, item_id: str) -> str | None:
        """Return the id of the item before this one."""
        before = None
        for other in self._items:
            if other == item_id:
                return before
            before = other
        return None

    def remove(self, item_id: str) -> None:
        """Remove an item."""
        del self._items[item_id]
