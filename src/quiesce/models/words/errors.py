"""The errors of a model call, independent of any provider.

Each message names the model, quotes the provider and says what to do. The provider's own exception is the `__cause__`.
"""

from __future__ import annotations

from quiesce._safe.secrets import without_secrets


class ModelError(Exception):
    """A call to a model failed.

    `retryable` is true if the same call may succeed later. `status` is the HTTP status, if there was a response.
    """

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
        # The message quotes the provider, which may quote the key.
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
    """The provider limits the rate of requests; `retry_after` is the wait in seconds that it asked for, if any."""

    retryable = True


class ModelOverloadedError(ModelError):
    """The provider failed to handle the request (a status of 500 and up, 408 or 409)."""

    retryable = True


class ModelAuthenticationError(ModelError):
    """The API key is missing, wrong, or not permitted to make this request."""


class ModelNotFoundError(ModelError):
    """The provider does not know this model, or this address."""


class ModelRequestError(ModelError):
    """The provider rejected the request, because it is too long or because something in it is wrong."""


class ModelBehaviorError(ModelError):
    """The model sent an answer that cannot be used."""


class ModelRefusalError(ModelBehaviorError):
    """The model refused to answer."""
