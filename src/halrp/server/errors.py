"""What a request is answered with when it cannot be served: a status and a message."""

from __future__ import annotations

from halrp.errors import (
    DataError,
    HalrpError,
    SettingError,
    StoreError,
    UnknownTaskError,
)


class RequestError(HalrpError):
    """A request that is refused, with the status of the answer."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        """Name the status; `retry_after` are seconds after which the client may try again."""
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


def unknown(name: str) -> RequestError:
    """The answer about a task that is not there, or that the client may not see: both look alike."""
    return RequestError(404, f"there is no model {name!r}")


def as_request_error(error: HalrpError) -> RequestError:
    """An error of the library as the answer to a request."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, UnknownTaskError):
        return RequestError(404, str(error))
    if isinstance(error, DataError):
        return RequestError(400, str(error))
    if isinstance(error, (StoreError, SettingError)):  # a task of the store that cannot be served now
        return RequestError(503, "this model cannot be served at present; the server's log says why")
    return RequestError(500, "the request could not be computed; the server's log says why")
