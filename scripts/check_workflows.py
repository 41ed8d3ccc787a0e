"""Check the files that the code host reads against their schemas, which come with check-jsonschema: nothing is fetched.

A mistake in one of them shows only after a push, as a run that never starts or a form that is not offered.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS, FORMS, CONFIG = ".github/workflows/*.yml", ".github/ISSUE_TEMPLATE/*.yml", "config.yml"
# `need` for `needs`, and a job that would run for six hours before anything ends it.
BROKEN = """
on: push
jobs:
  test:
    need: lint
    runs-on: ubuntu-latest
    steps:
      - run: make test
"""


def main() -> int:
    workflows, forms = sorted(ROOT.glob(WORKFLOWS)), sorted(ROOT.glob(FORMS))
    checks = {
        "vendor.github-workflows": workflows,
        "custom.github-workflows-require-timeout": workflows,
        "vendor.github-issue-forms": [form for form in forms if form.name != CONFIG],
        "vendor.github-issue-config": [form for form in forms if form.name == CONFIG],
    }
    said = [complaint for schema, files in checks.items() if (complaint := refusal(schema, files))]
    # A check that accepts everything looks like one that found nothing.
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder, "broken.yml")
        broken.write_text(BROKEN)
        said += [
            f"{schema} accepts a broken workflow"
            for schema in list(checks)[:2]
            if not refusal(schema, [broken])
        ]
    print("\n".join(said) or f"{len(workflows)} workflows and {len(forms)} files of issue forms are valid")
    return 1 if said else 0


def refusal(schema: str, files: list[Path]) -> str:
    """What the checker says against these files; nothing if they are valid."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"exit status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
