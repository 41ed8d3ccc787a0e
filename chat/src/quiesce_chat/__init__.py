"""The terminal chat of quiesce, `quiesce chat` and `quiesce ask`, and the embedded model.

This is a distribution of its own, `quiesce-chat`, so that programs that use quiesce as a library do not carry
it. It has the version of the quiesce that it belongs to, and imports of it only what is public, and what is
in its `inner` modules. Users import these names from `quiesce.models`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.inner import offer

if TYPE_CHECKING:
    from .embedded import EmbeddedModel as EmbeddedModel
    from .embedded import FetchProgress as FetchProgress
    from .embedded import WeightsError as WeightsError

offer()
