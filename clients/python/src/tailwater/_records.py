"""Records that borrow from their batch's memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from types import TracebackType

from ._abi import Handle, lib

# TailwaterRecord: offset, timestamp, key, value, headers, each of bytes as a pointer and a length.
_RECORD = struct.Struct("@QqPNPNPN")
# TailwaterHeader: name, value.
_HEADER = struct.Struct("@PNPN")

# Views of a batch's memory are cut out of one object that stands for all addresses from `_BASE` on. It holds the
# batch's handle, and each view holds it, so that the memory is there as long as a view of it is. Nobody reads through
# it, though a view names it as its `obj`. The first page is never mapped, and a buffer that begins at address 0 would count as none.
_BASE = 4_096
_Addresses = ctypes.c_char * (1 << 60)
_EMPTY = memoryview(b"")


class _View:
    """Cuts read-only views out of a batch's memory."""

    __slots__ = ("_all",)

    def __init__(self, handle: Handle) -> None:
        addresses = _Addresses.from_address(_BASE)
        addresses.handle = handle  # type: ignore[attr-defined]
        self._all = memoryview(addresses).cast("B").toreadonly()

    def bytes(self, pointer: int, length: int) -> memoryview:
        """So many bytes there, which are the batch's."""
        if length == 0:
            return _EMPTY
        return self._all[pointer - _BASE : pointer - _BASE + length]


class Record:
    """One record of a shard. Its bytes are not copied: they are where the library has read and checked them.

    `bytes(record.value)` is a copy. A view is good as long as something refers to it, whatever becomes of the batch.
    """

    __slots__ = ("shard", "offset", "timestamp_ms", "key", "value", "_view", "_headers")

    shard: int
    """The shard that it is of."""
    offset: int
    """Its offset in the shard."""
    timestamp_ms: int | None
    """Its time in milliseconds since 1970, if it has one."""
    key: memoryview | None
    """Its key, if it has one."""
    value: memoryview | None
    """Its value, if it has one."""

    def __init__(self, shard: int, view: _View, parts: tuple[int, ...]) -> None:
        offset, timestamp_ms, key, key_len, value, value_len, headers, header_count = parts
        self.shard = shard
        self.offset = offset
        self.timestamp_ms = timestamp_ms if timestamp_ms >= 0 else None
        self.key = view.bytes(key, key_len) if key else None
        self.value = view.bytes(value, value_len) if value else None
        self._view = view
        self._headers = (headers, header_count)

    @property
    def headers(self) -> list[tuple[str, memoryview | None]]:
        """Its headers, in order."""
        first, count = self._headers
        found: list[tuple[str, memoryview | None]] = []
        for name, name_len, value, value_len in _HEADER.iter_unpack(self._view.bytes(first, count * _HEADER.size)):
            name_bytes = bytes(self._view.bytes(name, name_len))
            found.append((name_bytes.decode(), self._view.bytes(value, value_len) if value else None))
        return found

    def __repr__(self) -> str:
        return f"<Record {self.shard}/{self.offset}>"


class Batch:
    """Records of one shard that come next, in order.

    The memory is freed when neither the batch nor a record or view of it is referred to any more.
    """

    __slots__ = ("_view", "_first", "_count", "shard", "next_offset")

    shard: int
    """The shard."""
    next_offset: int
    """The offset behind the last record."""

    def __init__(self, pointer: int) -> None:
        handle = Handle(pointer, "tailwater_batch_free")
        count = ctypes.c_size_t()
        self._first = lib.tailwater_batch_records(pointer, count)
        self._count = count.value
        self.shard = lib.tailwater_batch_shard(pointer)
        self.next_offset = lib.tailwater_batch_next_offset(pointer)
        self._view: _View | None = _View(handle)

    def _records(self) -> tuple[_View, memoryview]:
        if self._view is None:
            raise ValueError("the batch was released")
        return self._view, self._view.bytes(self._first, self._count * _RECORD.size)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        view, records = self._records()
        shard = self.shard
        for parts in _RECORD.iter_unpack(records):
            yield Record(shard, view, parts)

    def __getitem__(self, index: int) -> Record:
        view, records = self._records()
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(f"record {index} of {self._count}")
        return Record(self.shard, view, _RECORD.unpack_from(records, index * _RECORD.size))

    def release(self) -> None:
        """Lets go of the memory. Records and views of it that are still referred to stay good."""
        self._view = None

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Batch of {self._count} records of shard {self.shard}, next {self.next_offset}>"
