"""What can be asked for: how each thing is started, and what is made of its result. Both APIs stand on this."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Callable, Generic, NamedTuple, Optional, TypeVar, Union

from ._abi import CItem, COptions, CPosition, CStart, CVersion, GivenBytes, Handle, lib
from ._errors import ChangeError, Conflict, Error, Inconclusive, NotApplied, UnknownOutcome, of_status
from ._records import Batch

T = TypeVar("T")

Data = Union[bytes, bytearray, memoryview, str]
"""What keys and values may be given as; a text is its UTF-8."""

Start = Union[str, int, Mapping[int, Union[str, int]]]
"""Where a consumer begins: "earliest", "latest", an offset, "-N" for N records before the end, "@MS" for a time in
milliseconds since 1970; or a mapping from shards to such places, which reads these shards alone."""


class Version(NamedTuple):
    """Which change of a key a value is of. Later versions are greater."""

    timestamp_us: int
    """Microseconds since 1970, by the clock of the client that made it."""
    client_id: int
    """Which client."""
    sequence: int
    """Tells one client's versions of the same microsecond apart."""

    def __str__(self) -> str:
        return f"{self.timestamp_us}.{self.client_id}.{self.sequence}"


class Hit(NamedTuple):
    """A key's value."""

    value: bytes
    """The value: a copy."""
    version: Version
    """The version that it was set at."""
    expires_ms: Optional[int]
    """When it expires, in milliseconds since 1970, if it does."""


@dataclass(frozen=True)
class Options:
    """How to connect."""

    name: Optional[str] = None
    """What the node's logs call this program."""
    transport: str = "auto"
    """Which way to the cells: "auto", "shm" or "tcp"."""
    ca_file: Optional[str] = None
    """A PEM file with the CA of the servers' certificates: connections may be in TLS then."""
    certificate_file: Optional[str] = None
    """A PEM file with the certificate to show."""
    key_file: Optional[str] = None
    """A PEM file with its key; by default the certificate's file."""
    deadline: Optional[float] = None
    """The longest that an operation of a cell takes, in seconds. Only for cells that are opened by addresses."""


class Request(Generic[T]):
    """Something that can be asked for, once."""

    __slots__ = ("start", "result")

    def __init__(self, start: Callable[[Optional[int], int], int], result: Callable[[Operation], T]) -> None:
        self.start = start
        self.result = result


class Operation:
    """Something that was asked for. One thread's at a time. It is freed behind a `with`, and not when an exception's
    frames are gone: as long as it is there a consumer is busy with it."""

    __slots__ = ("pointer",)

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __enter__(self) -> Operation:
        return self

    def __exit__(self, *_: object) -> None:
        lib.tailwater_operation_free(self.pointer)

    def wait(self, timeout_ms: int) -> bool:
        """Whether it is done; waits for so long at most."""
        return bool(lib.tailwater_operation_wait(self.pointer, timeout_ms) != 1)

    def check(self) -> None:
        """Raises what went wrong with it."""
        status = lib.tailwater_operation_status(self.pointer)
        if status != 0:
            raise of_status(status, lib.tailwater_operation_error(self.pointer).decode())


def _bytes(data: Data) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(data)


def _text(text: Optional[str]) -> Optional[bytes]:
    if text is not None and "\0" in text:
        raise ValueError(f"{text!r} has a zero in it")
    return None if text is None else text.encode()


def _given(data: Data) -> GivenBytes:
    raw = _bytes(data)
    return GivenBytes(raw, len(raw))


def _ms(what: str, seconds: Optional[float], none: int) -> int:
    if seconds is None:
        return none
    if not 0 <= seconds < 1e12:
        raise ValueError(f"{what}: {seconds} is no number of seconds")
    # What is longer than nothing is not nothing.
    return -int(-seconds * 1_000 // 1)


def _options(options: Options) -> COptions:
    transports = {"auto": 0, "shm": 1, "tcp": 2}
    if options.transport not in transports:
        raise ValueError(f"{options.transport!r} is no transport: use one of {', '.join(transports)}")
    return COptions(
        _text(options.name),
        _text(options.ca_file),
        _text(options.certificate_file),
        _text(options.key_file),
        transports[options.transport],
        _ms("deadline", options.deadline, 0),
    )


def _handle(take: str, free: str) -> Callable[[Operation], Handle]:
    def result(operation: Operation) -> Handle:
        operation.check()
        return Handle(getattr(lib, take)(operation.pointer), free)

    return result


def open_client(address: str, options: Options) -> Request[Handle]:
    """Connects to a node."""
    text, given = _text(address), _options(options)
    return Request(
        lambda notifier, tag: int(lib.tailwater_client_open(text, given, notifier, tag)),
        _handle("tailwater_operation_client", "tailwater_client_free"),
    )


def cell_of_client(client: Handle, name: str, deadline: Optional[float]) -> Request[Handle]:
    """Opens a cell by its name."""
    text, deadline_ms = _text(name), _ms("deadline", deadline, 0)
    return Request(
        lambda notifier, tag: int(lib.tailwater_client_cell(client.pointer, text, deadline_ms, notifier, tag)),
        _handle("tailwater_operation_cell", "tailwater_cell_free"),
    )


def cell_at(seeds: Sequence[str], options: Options) -> Request[Handle]:
    """Opens a cell by addresses of its backends."""
    given = _options(options)
    texts = (ctypes.c_char_p * len(seeds))(*[_text(seed) for seed in seeds])
    return Request(
        lambda notifier, tag: int(lib.tailwater_cell_at(texts, len(seeds), given, notifier, tag)),
        _handle("tailwater_operation_cell", "tailwater_cell_free"),
    )


def get(cell: Handle, keys: Iterable[Data], relaxed: bool) -> Request[list[Union[Hit, Inconclusive, None]]]:
    """Looks keys up."""
    given = [_given(key) for key in keys]
    array = (GivenBytes * len(given))(*given)
    mode = 1 if relaxed else 0

    def result(operation: Operation) -> list[Union[Hit, Inconclusive, None]]:
        operation.check()
        count = ctypes.c_size_t()
        lookups = lib.tailwater_operation_lookups(operation.pointer, count)
        return [_lookup(lookups[at]) for at in range(count.value)]

    return Request(
        lambda notifier, tag: int(lib.tailwater_cell_get(cell.pointer, array, len(array), mode, notifier, tag)), result
    )


def _lookup(lookup: ctypes.Structure) -> Union[Hit, Inconclusive, None]:
    if lookup.found == 0:
        value = ctypes.string_at(lookup.value.data, lookup.value.len)
        return Hit(value, _version(lookup.version), lookup.expires_ms or None)
    if lookup.found == 1:
        return None
    return Inconclusive(lookup.why.decode())


def _version(version: ctypes.Structure) -> Version:
    return Version(version.timestamp_us, version.client_id, version.sequence)


def _changes(operation: Operation) -> list[Union[Version, ChangeError]]:
    operation.check()
    count = ctypes.c_size_t()
    changes = lib.tailwater_operation_changes(operation.pointer, count)
    return [_change(changes[at]) for at in range(count.value)]


def _change(change: ctypes.Structure) -> Union[Version, ChangeError]:
    if change.changed == 0:
        return _version(change.version)
    why = change.why.decode()
    if change.changed == 1:
        return Conflict(why, _version(change.version))
    if change.changed == 2:
        return Conflict(why, None)
    return UnknownOutcome(why) if change.changed == 4 else NotApplied(why)


def set_many(
    cell: Handle, items: Iterable[tuple[Data, Data]], ttl: Optional[float]
) -> Request[list[Union[Version, ChangeError]]]:
    """Sets keys."""
    ttl_ms = _ms("ttl", ttl, 0)
    given = [CItem(_given(key), _given(value), ttl_ms) for key, value in items]
    array = (CItem * len(given))(*given)
    return Request(
        lambda notifier, tag: int(lib.tailwater_cell_set(cell.pointer, array, len(array), notifier, tag)), _changes
    )


def cas(
    cell: Handle, key: Data, value: Data, expected: Optional[Version], ttl: Optional[float]
) -> Request[list[Union[Version, ChangeError]]]:
    """Sets a key if it is at a version."""
    item = CItem(_given(key), _given(value), _ms("ttl", ttl, 0))
    version = None if expected is None else CVersion(*expected)
    return Request(
        lambda notifier, tag: int(lib.tailwater_cell_cas(cell.pointer, item, version, notifier, tag)), _changes
    )


def delete_many(cell: Handle, keys: Iterable[Data]) -> Request[list[Union[Version, ChangeError]]]:
    """Deletes keys."""
    given = [_given(key) for key in keys]
    array = (GivenBytes * len(given))(*given)
    return Request(
        lambda notifier, tag: int(lib.tailwater_cell_delete(cell.pointer, array, len(array), notifier, tag)), _changes
    )


def only(results: Sequence[Union[T, Error]]) -> T:
    """The one result there is; raises it if it is an error."""
    (result,) = results
    if isinstance(result, Error):
        raise result
    return result


def open_consumer(client: Handle, stream: str, start: Start) -> Request[Handle]:
    """Opens a consumer of a stream."""
    text = _text(stream)
    is_every_shard = not isinstance(start, Mapping)
    places: Mapping[int, Union[str, int]] = start if isinstance(start, Mapping) else {0: start}
    given = [CStart(shard, *_start(place)) for shard, place in places.items()]
    starts = (CStart * len(given))(*given)
    return Request(
        lambda notifier, tag: int(
            lib.tailwater_consumer_open(client.pointer, text, starts, len(starts), is_every_shard, notifier, tag)
        ),
        _handle("tailwater_operation_consumer", "tailwater_consumer_free"),
    )


def _start(place: Union[str, int]) -> tuple[int, int]:
    if isinstance(place, int):
        if 0 <= place < 1 << 63:
            return 2, place
    elif place == "earliest":
        return 0, 0
    elif place == "latest":
        return 1, 0
    elif place[:1] == "-" and place[1:].isdecimal():
        return 3, int(place[1:])
    elif place[:1] == "@" and place[1:].isdecimal():
        return 4, int(place[1:])
    raise ValueError(f'{place!r} is no place to begin: use "earliest", "latest", an offset, "-N" or "@MS"')


def poll(consumer: Handle, timeout: Optional[float]) -> Request[Optional[Batch]]:
    """Asks a consumer for the next records."""
    timeout_ms = _ms("timeout", timeout, -1)

    def result(operation: Operation) -> Optional[Batch]:
        operation.check()
        batch = lib.tailwater_operation_batch(operation.pointer)
        return Batch(batch) if batch else None

    return Request(
        lambda notifier, tag: int(lib.tailwater_consumer_poll(consumer.pointer, timeout_ms, notifier, tag)), result
    )


def positions(consumer: Handle) -> dict[int, int]:
    """Where a consumer goes on in each shard."""
    count = lib.tailwater_consumer_positions(consumer.pointer, None, 0)
    array = (CPosition * count)()
    lib.tailwater_consumer_positions(consumer.pointer, array, count)
    return {position.shard: position.next_offset for position in array}
