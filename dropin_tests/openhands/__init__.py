"""`quiesce.dropin.openhands` with openhands-sdk, and openhands-tools for terminals and sub-agents."""

import os

# Before the SDK is imported: no price list from elsewhere, no banner.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")
