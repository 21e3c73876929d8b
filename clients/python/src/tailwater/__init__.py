"""Cells and the one-sided consumer of Tailwater.

    import tailwater

    with tailwater.connect("127.0.0.1:7420") as client:
        tiles = client.cell("tiles")
        tiles.set("tea", b"Darjeeling", ttl=60)
        print(tiles.get("tea").value)

        for batch in client.consumer("news", start="earliest"):
            for record in batch:
                print(record.offset, bytes(record.value))

`tailwater.aio` has the same for asyncio. Reads ask no application of the server: the library reads the memory of the
cells, and a node is asked for what they do not have.

Any threads may use a client, a cell or a consumer. A process that was forked after its parent had used the package
can't use it: its calls raise `Forked`. Start processes by multiprocessing's "spawn" or "forkserver".
"""

from ._abi import ABI_VERSION, library_version
from ._errors import (
    Busy,
    ChangeError,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Error,
    Forked,
    Inconclusive,
    Internal,
    InvalidArgument,
    NotApplied,
    NotAuthorized,
    NotFound,
    Overloaded,
    Refused,
    StreamDeleted,
    Truncated,
    UnknownOutcome,
    Unreachable,
)
from ._requests import Hit, Options, Start, Version
from ._records import Batch, Record
from ._sync import Cell, Client, Consumer, connect, open_cell

__all__ = [
    "ABI_VERSION",
    "Batch",
    "Busy",
    "Cell",
    "ChangeError",
    "Client",
    "Conflict",
    "Consumer",
    "Corrupt",
    "DeadlineExceeded",
    "Error",
    "Forked",
    "Hit",
    "Inconclusive",
    "Internal",
    "InvalidArgument",
    "NotApplied",
    "NotAuthorized",
    "NotFound",
    "Options",
    "Overloaded",
    "Record",
    "Refused",
    "Start",
    "StreamDeleted",
    "Truncated",
    "UnknownOutcome",
    "Unreachable",
    "Version",
    "connect",
    "library_version",
    "open_cell",
]
