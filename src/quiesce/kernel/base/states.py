"""The states of a scope.

| state      | spawn    | event                        | next       |
|------------|----------|------------------------------|------------|
| open       | accepted | cancel, close, child failed¹ | stopping   |
| open       | accepted | body over and children gone  | settled    |
| stopping   | refused  | last child and nested gone   | settled    |
| stopping   | refused  | ladder at its end            | expired    |
| expired    | refused  | close again                  | stopping   |
| expired    | refused  | last child and nested gone   | settled    |
| settled    | refused  | close again                  | settled    |

¹ with `on_error="stop"`.

Settled means empty. A scope whose time ran out is not settled: it keeps what is left.
"""

from __future__ import annotations

from typing import Final

OPEN: Final = "open"
STOPPING: Final = "stopping"
EXPIRED: Final = "expired"
SETTLED: Final = "settled"
