"""The API for threads."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Optional, TypeVar, Union

from . import _requests
from ._abi import Handle
from ._errors import ChangeError, Inconclusive
from ._records import Batch
from ._requests import Data, Hit, Operation, Options, Request, Start, Version, only

T = TypeVar("T")

# Between two of these the interpreter looks for signals, as Ctrl-C.
_SLICE_MS = 100


def run(request: Request[T]) -> T:
    """Carries a request out on this thread, without the interpreter's lock."""
    with Operation(request.start(None, 0)) as operation:
        while not operation.wait(_SLICE_MS):
            pass
        return request.result(operation)


class Closable:
    """Something that is closed. What others of its calls still use is freed when they are done."""

    _handle: Optional[Handle]

    def _open(self) -> Handle:
        if self._handle is None:
            raise ValueError(f"the {type(self).__name__.lower()} is closed")
        return self._handle

    def close(self) -> None:
        """Lets go of it. Closing twice is nothing."""
        self._handle = None


class Cell(Closable):
    """Keys and values in memory. Any threads may use it.

    Keys have at most 1 KiB, values 1 MiB. Texts are taken as UTF-8.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def get(self, key: Data, *, relaxed: bool = False) -> Optional[Hit]:
        """The key's value; `None` if it has none. Raises `Inconclusive` if nothing can be said.

        `relaxed` asks one replica, and what it answers may be old.
        """
        return only(self.get_many([key], relaxed=relaxed))

    def get_many(self, keys: Iterable[Data], *, relaxed: bool = False) -> list[Union[Hit, Inconclusive, None]]:
        """The same for many keys, at once and in their order. An `Inconclusive` is in the list, and is not raised."""
        return run(_requests.get(self._open(), keys, relaxed))

    def set(self, key: Data, value: Data, *, ttl: Optional[float] = None) -> Version:
        """Sets the key, for `ttl` seconds if that is given; its version. Raises `NotApplied` or `UnknownOutcome`."""
        return only(self.set_many([(key, value)], ttl=ttl))

    def set_many(
        self, items: Union[Mapping[str, Data], Iterable[tuple[Data, Data]]], *, ttl: Optional[float] = None
    ) -> list[Union[Version, ChangeError]]:
        """The same for many keys, at once and in their order. Errors are in the list, and are not raised."""
        pairs: Iterable[tuple[Data, Data]] = items.items() if isinstance(items, Mapping) else items
        return run(_requests.set_many(self._open(), pairs, ttl))

    def cas(self, key: Data, value: Data, expected: Optional[Version], *, ttl: Optional[float] = None) -> Version:
        """Sets the key if it is at the version `expected`, or has no value where that is `None`; its new version.

        Raises `Conflict` if it is not, `NotApplied` or `UnknownOutcome`.
        """
        changes = run(_requests.cas(self._open(), key, value, expected, ttl))
        return only(changes)

    def delete(self, key: Data) -> Version:
        """Deletes the key; the version at which it was. Raises `NotApplied` or `UnknownOutcome`."""
        return only(self.delete_many([key]))

    def delete_many(self, keys: Iterable[Data]) -> list[Union[Version, ChangeError]]:
        """The same for many keys, at once and in their order. Errors are in the list, and are not raised."""
        return run(_requests.delete_many(self._open(), keys))

    def __enter__(self) -> Cell:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class Consumer(Closable):
    """Reads shards of a stream, in order for each. Any threads may use it, one poll at a time."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def poll(self, timeout: Optional[float] = None) -> Optional[Batch]:
        """The next records of any shard; `None` if none came in `timeout` seconds. Without one it waits for ever.

        Raises `Truncated` if records that were due are removed. The next poll goes on with the oldest that are left.
        `close` in another thread ends it.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            batch = run(_requests.poll(self._open(), min(max(left, 0), _SLICE_MS / 1_000)))
            if batch is not None or left <= 0:
                return batch

    def positions(self) -> dict[int, int]:
        """The offset that comes next in each shard, behind what was polled. A consumer may `start` from that."""
        return _requests.positions(self._open())

    def __iter__(self) -> Iterator[Batch]:
        """Batches without an end."""
        while True:
            batch = self.poll()
            if batch is not None:
                yield batch

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class Client(Closable):
    """A connection to a node. All consumers of one client read each record once. Any threads may use it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def cell(self, name: str, *, deadline: Optional[float] = None) -> Cell:
        """The cell of that name, which was created at the node. `deadline` is the longest that an operation takes, in
        seconds; by default as the node says. The cell stays good when the client is closed."""
        return Cell(run(_requests.cell_of_client(self._open(), name, deadline)))

    def consumer(self, stream: str, *, start: Start = "latest") -> Consumer:
        """A consumer of the stream of that name. It stays good when the client is closed."""
        return Consumer(run(_requests.open_consumer(self._open(), stream, start)))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


def connect(address: str, options: Options = Options()) -> Client:
    """Connects to the node at `address`: "IP:PORT", "tls:IP:PORT" or "unix:/path", as its `[listen] data` says."""
    return Client(run(_requests.open_client(address, options)))


def open_cell(*seeds: str, options: Options = Options()) -> Cell:
    """Opens the cell that a backend at one of the addresses belongs to: "unix:PATH", "tcp:HOST:PORT" or
    "tls:HOST:PORT", as `tailwater cell describe` shows them."""
    return Cell(run(_requests.cell_at(seeds, options)))
