"""What can go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._requests import Version


class Error(Exception):
    """Why something was not done."""

    retriable = False
    """Whether the same thing may work a while later."""


class InvalidArgument(Error, ValueError):
    """What was asked for makes no sense."""


class Unreachable(Error, ConnectionError):
    """Nobody answers there."""

    retriable = True


class DeadlineExceeded(Error, TimeoutError):
    """There was no answer in time. What was asked for may have been done."""

    retriable = True


class NotAuthorized(Error, PermissionError):
    """The caller may not do this."""


class NotFound(Error, LookupError):
    """There is no stream or cell of that name."""


class Overloaded(Error):
    """Too much is under way."""

    retriable = True


class Truncated(Error):
    """Records that were due are removed. The next poll goes on with the oldest ones that are left."""

    retriable = True


class StreamDeleted(Error):
    """The stream was deleted."""


class Corrupt(Error):
    """What is stored is damaged, or can't be read."""


class Busy(Error):
    """Another poll of the consumer is under way."""

    retriable = True


class Forked(Error):
    """The process is a fork of one that used the library: use multiprocessing's "spawn" or "forkserver"."""


class Refused(Error):
    """The node refused for another reason."""


class Internal(Error):
    """A defect of the library."""


class Inconclusive(Error):
    """Nothing can be said of a key: there may be a value."""

    retriable = True


class ChangeError(Error):
    """A key was not changed, or is not known to be."""


class NotApplied(ChangeError):
    """The change was not acknowledged, for the reason that the text says."""


class UnknownOutcome(ChangeError):
    """The change may have been made, may be made later, or never."""


class Conflict(ChangeError):
    """Nothing has changed: the key is at another version than was expected."""

    held: Version | None
    """That version; `None`: the key has no value."""

    def __init__(self, why: str, held: Version | None) -> None:
        super().__init__(why)
        self.held = held


_BY_STATUS: dict[int, type[Error]] = {
    2: InvalidArgument,
    3: Unreachable,
    4: DeadlineExceeded,
    5: NotAuthorized,
    6: NotFound,
    7: Overloaded,
    8: Truncated,
    9: StreamDeleted,
    10: Corrupt,
    11: Busy,
    12: Forked,
    13: Refused,
    14: Internal,
}


def of_status(status: int, why: str) -> Error:
    """The error for a status of the library."""
    return _BY_STATUS.get(status, Internal)(why)
