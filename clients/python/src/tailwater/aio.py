"""The API for asyncio: as that for threads, with `await`. No thread waits for an operation.

    import asyncio
    from tailwater import aio

    async def main():
        async with await aio.connect("127.0.0.1:7420") as client:
            tiles = await client.cell("tiles")
            print(await tiles.get("tea"))
            async for batch in await client.consumer("news", start="earliest"):
                for record in batch:
                    print(record.offset, bytes(record.value))

    asyncio.run(main())

A task that is cancelled cancels what it waits for. A change of a key may have been made all the same. Records that a
poll has got come with the next poll.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Optional, TypeVar, Union

from . import _requests
from ._abi import Handle, lib
from ._errors import ChangeError, Inconclusive
from ._records import Batch
from ._requests import Data, Hit, Operation, Options, Request, Start, Version, only
from ._sync import Closable

T = TypeVar("T")

_TAGS_AT_ONCE = 256


class _LoopNotifier:
    """Tells the futures of one event loop that their operations are done."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        pointer = lib.tailwater_notifier_new()
        if not pointer:
            raise OSError("the process has no file descriptor left for the notifier of an event loop")
        self.handle = Handle(pointer, "tailwater_notifier_free")
        self.waiting: dict[int, asyncio.Future[None]] = {}
        self.numbers = itertools.count()
        self._tags = (ctypes.c_uint64 * _TAGS_AT_ONCE)()
        loop.add_reader(lib.tailwater_notifier_fd(pointer), self._take)

    def _take(self) -> None:
        count = _TAGS_AT_ONCE
        while count == _TAGS_AT_ONCE:
            count = lib.tailwater_notifier_take(self.handle.pointer, self._tags, _TAGS_AT_ONCE)
            for tag in self._tags[:count]:
                future = self.waiting.pop(tag, None)
                if future is not None and not future.done():
                    future.set_result(None)


# A notifier goes when its loop does.
_notifiers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopNotifier] = weakref.WeakKeyDictionary()


async def run(request: Request[T]) -> T:
    """Carries a request out on the library's threads, if it takes any time."""
    loop = asyncio.get_running_loop()
    notifier = _notifiers.get(loop)
    if notifier is None:
        notifier = _notifiers[loop] = _LoopNotifier(loop)
    tag = next(notifier.numbers)
    # Freed in any case: that cancels it if it is not done.
    with Operation(request.start(notifier.handle.pointer, tag)) as operation:
        if not operation.wait(0):
            # Tags are taken by this loop alone, so that none gets lost before its future is there.
            future = notifier.waiting[tag] = loop.create_future()
            try:
                await future
            finally:
                notifier.waiting.pop(tag, None)
        return request.result(operation)


class Cell(Closable):
    """Keys and values in memory, as `tailwater.Cell`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def get(self, key: Data, *, relaxed: bool = False) -> Optional[Hit]:
        """As `tailwater.Cell.get`."""
        return only(await self.get_many([key], relaxed=relaxed))

    async def get_many(
        self, keys: Iterable[Data], *, relaxed: bool = False
    ) -> list[Union[Hit, Inconclusive, None]]:
        """As `tailwater.Cell.get_many`."""
        return await run(_requests.get(self._open(), keys, relaxed))

    async def set(self, key: Data, value: Data, *, ttl: Optional[float] = None) -> Version:
        """As `tailwater.Cell.set`."""
        return only(await self.set_many([(key, value)], ttl=ttl))

    async def set_many(
        self, items: Union[Mapping[str, Data], Iterable[tuple[Data, Data]]], *, ttl: Optional[float] = None
    ) -> list[Union[Version, ChangeError]]:
        """As `tailwater.Cell.set_many`."""
        pairs: Iterable[tuple[Data, Data]] = items.items() if isinstance(items, Mapping) else items
        return await run(_requests.set_many(self._open(), pairs, ttl))

    async def cas(
        self, key: Data, value: Data, expected: Optional[Version], *, ttl: Optional[float] = None
    ) -> Version:
        """As `tailwater.Cell.cas`."""
        changes = await run(_requests.cas(self._open(), key, value, expected, ttl))
        return only(changes)

    async def delete(self, key: Data) -> Version:
        """As `tailwater.Cell.delete`."""
        return only(await self.delete_many([key]))

    async def delete_many(self, keys: Iterable[Data]) -> list[Union[Version, ChangeError]]:
        """As `tailwater.Cell.delete_many`."""
        return await run(_requests.delete_many(self._open(), keys))

    async def __aenter__(self) -> Cell:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class Consumer(Closable):
    """Reads shards of a stream, as `tailwater.Consumer`: one poll at a time."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def poll(self, timeout: Optional[float] = None) -> Optional[Batch]:
        """As `tailwater.Consumer.poll`. Cancelling it loses nothing."""
        return await run(_requests.poll(self._open(), timeout))

    def positions(self) -> dict[int, int]:
        """As `tailwater.Consumer.positions`."""
        return _requests.positions(self._open())

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Batches without an end."""
        while True:
            batch = await self.poll()
            if batch is not None:
                yield batch

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class Client(Closable):
    """A connection to a node, as `tailwater.Client`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def cell(self, name: str, *, deadline: Optional[float] = None) -> Cell:
        """As `tailwater.Client.cell`."""
        return Cell(await run(_requests.cell_of_client(self._open(), name, deadline)))

    async def consumer(self, stream: str, *, start: Start = "latest") -> Consumer:
        """As `tailwater.Client.consumer`."""
        return Consumer(await run(_requests.open_consumer(self._open(), stream, start)))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


async def connect(address: str, options: Options = Options()) -> Client:
    """As `tailwater.connect`."""
    return Client(await run(_requests.open_client(address, options)))


async def open_cell(*seeds: str, options: Options = Options()) -> Cell:
    """As `tailwater.open_cell`."""
    return Cell(await run(_requests.cell_at(seeds, options)))
