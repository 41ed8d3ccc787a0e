"""The states of a scope.

| state      | spawn    | event                        | next       |
|------------|----------|------------------------------|------------|
| open       | accepted | cancel, close, child failed¹ | stopping   |
| open       | accepted | body and children ended      | settled    |
| stopping   | refused  | children and nested² ended   | settled    |
| stopping   | refused  | the ladder ran out           | expired    |
| expired    | refused  | close again                  | stopping   |
| expired    | refused  | children and nested² ended   | settled    |
| settled    | refused  | close again                  | settled    |

¹ with `on_error="stop"`. ² nested scopes.

Settled means empty. A scope whose time ran out is not settled: it keeps what is left over.
"""

from __future__ import annotations

from typing import Final

OPEN: Final = "open"
STOPPING: Final = "stopping"
EXPIRED: Final = "expired"
SETTLED: Final = "settled"
