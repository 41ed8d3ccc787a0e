"""The names of the modules below all packages that the other distributions of quiesce may import.

The packages of quiesce itself import those modules directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from ._extras import MissingExtra, require
    from ._safe.files import Approved, BadPath, Folders, Seen, encoded
    from ._safe.nested import decode_json, decoder_of, is_deep
    from ._safe.printed import printed, printed_line
    from ._safe.text import exact, one_line, shortened, shown, whole, without_line_ends

offer()
