"""Every error that crosses a boundary; one class is one HTTP status and one problem type."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """One thing wrong with the input: where (RFC 6901 pointer) and what."""

    pointer: str
    detail: str


class BraidError(Exception):
    """Root of the errors that are answered as `application/problem+json` (RFC 9457)."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal"
    title: ClassVar[str] = "internal error"

    def __init__(self, detail: str, *, errors: tuple[Violation, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors


class InvalidRequestError(BraidError):
    """The input breaks a rule; `errors` name the fields and the bounds."""

    status = 400
    type = "invalid-request"
    title = "invalid request"

    @classmethod
    def at(cls, pointer: str, detail: str) -> "InvalidRequestError":
        """Refuse one field; the detail of the whole names it too."""
        return cls.of((Violation(pointer, detail),))

    @classmethod
    def of(cls, violations: tuple[Violation, ...]) -> "InvalidRequestError":
        """Refuse all that is wrong; the detail is the first of it."""
        first = violations[0]
        return cls(f"{first.pointer or 'the body'}: {first.detail}", errors=violations)


class UnauthorizedError(BraidError):
    """No key, or one that nobody knows."""

    status = 401
    type = "unauthorized"
    title = "unauthorized"


class ForbiddenError(BraidError):
    """The key lacks the scope."""

    status = 403
    type = "forbidden"
    title = "forbidden"


class NotFoundError(BraidError):
    """Unknown, or not yours: never tells which."""

    status = 404
    type = "not-found"
    title = "not found"


class ConflictError(BraidError):
    """It exists already, or its state forbids the change."""

    status = 409
    type = "conflict"
    title = "conflict"


class ReindexRequiredError(ConflictError):
    """The change needs a new generation; `plan` says what building it would do."""

    type = "reindex-required"
    title = "re-index required"

    def __init__(self, detail: str, *, plan: Mapping[str, Any]) -> None:
        super().__init__(detail)
        self.plan = plan


class TooLargeError(BraidError):
    """A body or a field past its bound."""

    status = 413
    type = "too-large"
    title = "too large"


class OverloadedError(BraidError):
    """Admission is full; try again after `retry_after` seconds."""

    status = 429
    type = "overloaded"
    title = "too many requests"

    def __init__(self, detail: str, *, retry_after: float) -> None:
        super().__init__(detail)
        self.retry_after = retry_after

    @property
    def seconds(self) -> int:
        """What `Retry-After` says: whole seconds."""
        return max(1, math.ceil(self.retry_after))


class UnavailableError(BraidError):
    """Nothing can answer at the moment."""

    status = 503
    type = "unavailable"
    title = "unavailable"


class ProviderError(Exception):
    """An outbound provider (embedder, reranker, contextualizer) failed."""

    def __init__(
        self, message: str, *, retry_after: float | None = None, transient: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.transient = transient


class ProviderRefusalError(ProviderError):
    """The provider refuses every call, whatever it says: the key, the model, the address."""


class CallTooLargeError(ProviderError):
    """One call held more than the provider takes; less of it may pass."""


class BadAnswerError(ProviderError):
    """An answer that cannot be what the provider meant."""


class CircuitOpenError(ProviderError):
    """The provider failed so often that it is left alone for a while."""


class ConfigurationError(Exception):
    """The operator's settings or environment cannot work; one clear line."""
