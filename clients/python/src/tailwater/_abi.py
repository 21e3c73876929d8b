"""libtailwater's C ABI, as `tailwater.h` has it."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

ABI_VERSION = 1
"""The version of the ABI that this package is for."""

PENDING = 1


class GivenBytes(ctypes.Structure):
    """TailwaterBytes that are handed in. The field keeps the object alive that it was given."""

    _fields_ = [("data", c_char_p), ("len", c_size_t)]


class LentBytes(ctypes.Structure):
    """TailwaterBytes that the library lends."""

    _fields_ = [("data", c_void_p), ("len", c_size_t)]


class CVersion(ctypes.Structure):
    """TailwaterVersion."""

    _fields_ = [("timestamp_us", c_uint64), ("client_id", c_uint32), ("sequence", c_uint32)]


class CItem(ctypes.Structure):
    """TailwaterItem."""

    _fields_ = [("key", GivenBytes), ("value", GivenBytes), ("ttl_ms", c_uint64)]


class CLookup(ctypes.Structure):
    """TailwaterLookup."""

    _fields_ = [
        ("found", c_int),
        ("version", CVersion),
        ("value", LentBytes),
        ("expires_ms", c_uint64),
        ("why", c_char_p),
    ]


class CChange(ctypes.Structure):
    """TailwaterChange."""

    _fields_ = [("changed", c_int), ("version", CVersion), ("why", c_char_p)]


class COptions(ctypes.Structure):
    """TailwaterOptions."""

    _fields_ = [
        ("name", c_char_p),
        ("ca_file", c_char_p),
        ("certificate_file", c_char_p),
        ("key_file", c_char_p),
        ("transport", c_uint32),
        ("deadline_ms", c_uint32),
    ]


class CStart(ctypes.Structure):
    """TailwaterStart."""

    _fields_ = [("shard", c_uint32), ("kind", c_uint32), ("value", c_int64)]


class CPosition(ctypes.Structure):
    """TailwaterPosition."""

    _fields_ = [("shard", c_uint32), ("next_offset", c_uint64)]


_STARTED = (c_void_p, c_uint64)  # what every operation begins with at its end: a notifier, and a tag

_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "tailwater_version": (c_char_p, ()),
    "tailwater_notifier_new": (c_void_p, ()),
    "tailwater_notifier_fd": (c_int, (c_void_p,)),
    "tailwater_notifier_take": (c_size_t, (c_void_p, POINTER(c_uint64), c_size_t)),
    "tailwater_notifier_free": (None, (c_void_p,)),
    "tailwater_operation_wait": (c_int, (c_void_p, c_int64)),
    "tailwater_operation_status": (c_int, (c_void_p,)),
    "tailwater_operation_error": (c_char_p, (c_void_p,)),
    "tailwater_operation_free": (None, (c_void_p,)),
    "tailwater_operation_client": (c_void_p, (c_void_p,)),
    "tailwater_operation_cell": (c_void_p, (c_void_p,)),
    "tailwater_operation_consumer": (c_void_p, (c_void_p,)),
    "tailwater_operation_batch": (c_void_p, (c_void_p,)),
    "tailwater_operation_lookups": (POINTER(CLookup), (c_void_p, POINTER(c_size_t))),
    "tailwater_operation_changes": (POINTER(CChange), (c_void_p, POINTER(c_size_t))),
    "tailwater_client_open": (c_void_p, (c_char_p, POINTER(COptions), *_STARTED)),
    "tailwater_client_cell": (c_void_p, (c_void_p, c_char_p, c_uint32, *_STARTED)),
    "tailwater_client_free": (None, (c_void_p,)),
    "tailwater_cell_at": (c_void_p, (POINTER(c_char_p), c_size_t, POINTER(COptions), *_STARTED)),
    "tailwater_cell_get": (c_void_p, (c_void_p, POINTER(GivenBytes), c_size_t, c_uint32, *_STARTED)),
    "tailwater_cell_set": (c_void_p, (c_void_p, POINTER(CItem), c_size_t, *_STARTED)),
    "tailwater_cell_cas": (c_void_p, (c_void_p, POINTER(CItem), POINTER(CVersion), *_STARTED)),
    "tailwater_cell_delete": (c_void_p, (c_void_p, POINTER(GivenBytes), c_size_t, *_STARTED)),
    "tailwater_cell_free": (None, (c_void_p,)),
    "tailwater_consumer_open": (c_void_p, (c_void_p, c_char_p, POINTER(CStart), c_size_t, c_bool, *_STARTED)),
    "tailwater_consumer_poll": (c_void_p, (c_void_p, c_int64, *_STARTED)),
    "tailwater_consumer_positions": (c_size_t, (c_void_p, POINTER(CPosition), c_size_t)),
    "tailwater_consumer_free": (None, (c_void_p,)),
    "tailwater_batch_shard": (c_uint32, (c_void_p,)),
    "tailwater_batch_next_offset": (c_uint64, (c_void_p,)),
    "tailwater_batch_records": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "tailwater_batch_free": (None, (c_void_p,)),
}


def _load() -> ctypes.CDLL:
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libtailwater.so")
    path = os.environ.get("TAILWATER_LIBRARY") or beside
    try:
        # Calls run without the interpreter's lock.
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{error}: install the wheel of `make wheel`, or name the file in TAILWATER_LIBRARY") from error
    try:
        version = library.tailwater_abi_version
    except AttributeError:
        raise ImportError(f"{path} is not libtailwater") from None
    version.restype = c_uint32
    if version() != ABI_VERSION:
        raise ImportError(f"{path} has version {version()} of its ABI, and this package is for {ABI_VERSION}")
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


lib = _load()


def library_version() -> str:
    """The version of libtailwater, as "0.1.0"."""
    return str(lib.tailwater_version().decode())


class Handle:
    """Something that the library gave, and that is freed when nothing refers to this any more.

    Whoever calls the library with the pointer holds the handle meanwhile. So no thread can free it under another one.
    """

    __slots__ = ("_free", "pointer", "__weakref__")

    def __init__(self, pointer: int, free: str) -> None:
        # Kept here, as modules lose their names when the interpreter ends.
        self._free = getattr(lib, free)
        self.pointer = pointer

    def __del__(self) -> None:
        self._free(self.pointer)
