"""How the tests change an import in an SDK's examples: the drop-in's name, and nothing else."""

from __future__ import annotations

import pytest
from dropin_tests.compared import changed


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("from sdk import Client", "from quiesce.dropin.sdk import Client"),
        ("from sdk.client.stdio import (", "from quiesce.dropin.sdk.client.stdio import ("),
        ("    from sdk import a", "    from quiesce.dropin.sdk import a"),
        ("import sdk", "import quiesce.dropin.sdk as sdk"),
        ("import sdk  # why", "import quiesce.dropin.sdk as sdk  # why"),
        ("import sdk as s", "import quiesce.dropin.sdk as s"),
        ("import sdk.types as types", "import quiesce.dropin.sdk.types as types"),
        ("import sdk.server.stdio", "import quiesce.dropin.sdk.server.stdio, quiesce.dropin.sdk as sdk"),
        ("from sdk_other import a", "from sdk_other import a"),
        ("import sdkother", "import sdkother"),
        ("from .sdk import a", "from .sdk import a"),
        ('print("from sdk import a")', 'print("from sdk import a")'),
    ],
)
def test_an_import_is_changed(theirs: str, ours: str) -> None:
    before, after = "import os\n\n", "\n\nprint(sdk)\n"
    assert changed(f"{before}{theirs}{after}", "sdk", "quiesce.dropin.sdk") == f"{before}{ours}{after}"
