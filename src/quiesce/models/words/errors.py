"""What can go wrong with a model, in words of no provider.

Each error says which model, what its provider said, and what to do. The provider's own exception is its `__cause__`.
"""

from __future__ import annotations

from quiesce._safe.secrets import without_secrets


class ModelError(Exception):
    """A call of a model has failed. `retryable`: the same call may work later. `status` is the HTTP status, if there was one."""

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        model: str = "",
        status: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(without_secrets(message))
        self.model = model
        self.status = status
        self.retry_after = retry_after
        self.request_id = request_id


class ModelConnectionError(ModelError):
    """The provider could not be reached, or the connection broke."""

    retryable = True


class ModelTimeoutError(ModelError, TimeoutError):
    """One call took longer than `ModelSettings.timeout`."""

    retryable = True


class ModelRateLimitError(ModelError):
    """The provider asks to wait; `retry_after` says how many seconds, if it said so."""

    retryable = True


class ModelOverloadedError(ModelError):
    """The provider has failed (a status of 500 and up)."""

    retryable = True


class ModelAuthenticationError(ModelError):
    """The key is missing, wrong, or not allowed to do this."""


class ModelNotFoundError(ModelError):
    """The provider has no such model, or no such address."""


class ModelRequestError(ModelError):
    """The provider has refused the request as it is: too long, or something in it is wrong."""


class ModelBehaviorError(ModelError):
    """The model has answered with something that cannot be used."""


class ModelRefusalError(ModelBehaviorError):
    """The model declines to answer."""
