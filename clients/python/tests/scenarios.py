"""The package against a real node: `python scenarios.py ADDRESS SEED GUIDE`. The node has a cell `tiles`, one of whose
backends is at SEED, a stream `news` of two shards with 2,000 lines in each: "SHARD N", and a key "key N" in every
other one, and a stream `headed` of one record with headers. GUIDE is docs/languages.md, whose examples are run. Ends with 0 if all held.
"""

import asyncio
import contextlib
import gc
import inspect
import io
import os
import re
import sys
import threading
import time
import warnings

import tailwater
from tailwater import _requests, aio

ADDRESS, SEED, GUIDE = sys.argv[1:]
LINES = 2_000
# How long a condition is waited for before the test fails: for machines that are very busy.
PATIENCE = 300


def raises(kind, call, *words):
    """What a call raises, which has to be that, and to say these words."""
    try:
        result = call()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError(f"{result!r} in place of {kind.__name__}")


def keys(cell):
    """A key is set, got, exchanged and deleted, and what did not happen is told."""
    assert cell.get("tea") is None
    first = cell.set("tea", b"Assam")
    assert cell.get("tea") == tailwater.Hit(b"Assam", first, None)
    # Two of three replicas have acknowledged it, and any one is asked.
    until("a replica to have it", lambda: cell.get(b"tea", relaxed=True) == (b"Assam", first, None))
    second = cell.cas("tea", bytearray(b"Ceylon"), first)
    assert second > first and cell.get(memoryview(b"tea")).version == second
    # An exchange that changes nothing writes back what one replica lacks, at a new version.
    stale = raises(tailwater.Conflict, lambda: cell.cas("tea", "Oolong", first), "at version")
    assert stale.held >= second and str(stale.held) in str(stale)
    taken = raises(tailwater.Conflict, lambda: cell.cas("tea", "Oolong", None))
    assert taken.held >= stale.held and cell.get("tea").value == b"Ceylon"
    assert cell.delete("tea") > taken.held and cell.get("tea") is None
    assert raises(tailwater.Conflict, lambda: cell.cas("tea", "Oolong", second), "no value").held is None
    cell.cas("tea", "Oolong", None, ttl=3600)
    left = cell.get("tea").expires_ms / 1_000 - time.time()
    assert 0 < left < 3601, left
    cell.set("short", "lived", ttl=0.001)
    until("a value to expire", lambda: cell.get("short") is None)
    # Zeros and no bytes at all are bytes.
    for value in (b"", b"\0", b"a\0b"):
        cell.set(b"\0key", value)
        assert cell.get(b"\0key").value == value
    raises(tailwater.NotApplied, lambda: cell.set("k" * 2_000, b""), "2000", "too large")
    assert cell.delete("never") and cell.get("never") is None


def many_keys(cell):
    """Many keys at once come in their order, those without a value among them."""
    versions = cell.set_many({f"key {number}": b"%d" % number for number in range(1_000)}, ttl=60)
    assert len(set(versions)) == 1_000
    found = cell.get_many(f"key {number}" for number in range(1_100))
    assert [hit and hit.value for hit in found] == [b"%d" % number for number in range(1_000)] + [None] * 100
    assert cell.get_many([]) == []
    mixed = cell.set_many([("good", b""), ("k" * 2_000, b"")])
    assert isinstance(mixed[0], tailwater.Version) and isinstance(mixed[1], tailwater.NotApplied), mixed
    cell.delete_many(f"key {number}" for number in range(1_000))
    assert cell.get_many(["key 0", "key 999"]) == [None, None]


def until(what, condition):
    """Waits for a condition that nothing tells of."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.005)


def patiently(call):
    """What a call answers, which is made again while the node or a backend is too busy to answer."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except tailwater.Unreachable:
            assert time.monotonic() < end, "nobody answered"


def check(record, expected):
    """A record is the next one of its shard."""
    number = expected[record.shard]
    assert record.offset == number, record
    assert bytes(record.value) == b"%d %d" % (record.shard, number), record
    assert (record.key and bytes(record.key)) == (None if number % 2 else b"key %d" % number), record
    assert record.timestamp_ms > 1_700_000_000_000 and record.headers == []
    assert record.value.readonly
    expected[record.shard] += 1


def records(client):
    """All records of both shards come in order, from wherever one begins."""
    expected = {0: 0, 1: 0}
    consumer = client.consumer("news", start="earliest")
    assert consumer.positions() == expected
    # Views outlive their batches, whatever becomes of those.
    views = []
    for batch in consumer:
        for record in batch:
            check(record, expected)
            views.append((record.shard, record.offset, record.value))
        assert batch[-1].offset == batch.next_offset - 1 == consumer.positions()[batch.shard] - 1
        batch.release()
        raises(ValueError, lambda: batch[0], "released")
        if sum(expected.values()) == 2 * LINES:
            break
    assert consumer.positions() == {0: LINES, 1: LINES}
    assert consumer.poll(0) is None and consumer.poll(0.01) is None
    del batch, record
    consumer.close()
    raises(ValueError, consumer.poll, "closed")
    gc.collect()
    assert all(bytes(view) == b"%d %d" % (shard, offset) for shard, offset, view in views)
    # From offsets, by shards.
    with client.consumer("news", start={1: LINES - 3}) as some:
        last = [bytes(record.value) for record in some.poll(PATIENCE)]
        assert last == [b"1 %d" % number for number in range(LINES - 3, LINES)]
        assert some.positions() == {1: LINES}
    with client.consumer("news", start="-1") as newest:
        assert {bytes(newest.poll(PATIENCE)[-1].value) for _ in range(2)} == {b"%d %d" % (shard, LINES - 1) for shard in (0, 1)}
    with client.consumer("news", start="latest") as none:
        assert none.poll(0.01) is None
    with client.consumer("headed", start="earliest") as consumer:
        (headed,) = consumer.poll(PATIENCE)
        assert [(name, bytes(value)) for name, value in headed.headers] == [("colour", b"red"), ("empty", b"")]


def one_poll_at_a_time(client):
    """A second poll is told that there is one; a poll that is given up loses nothing; closing ends a poll."""

    async def two():
        async with await aio.connect(ADDRESS) as client:
            consumer = await client.consumer("news", start="latest")
            waiting = asyncio.ensure_future(consumer.poll())
            await asyncio.sleep(0)
            try:
                await consumer.poll(0)
                raise AssertionError("two polls at once")
            except tailwater.Busy as error:
                assert "one at a time" in str(error)
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError:
                pass
            # The task that was cancelled may still hold the consumer for a moment.
            async def is_free():
                try:
                    return await consumer.poll(0) is None
                except tailwater.Busy:
                    return False

            while not await is_free():
                await asyncio.sleep(0.001)

    asyncio.run(two())
    # One that has records already when it is given up: they come again, and in order.
    consumer = client.consumer("news", start={0: 0})
    with _requests.Operation(_requests.poll(consumer._open(), PATIENCE).start(None, 0)) as given_up:
        assert given_up.wait(PATIENCE * 1_000)
        raises(tailwater.Busy, lambda: consumer.poll(0), "one at a time")
    assert consumer.positions() == {0: 0}
    assert consumer.poll(PATIENCE)[0].offset == 0
    consumer = client.consumer("news", start="latest")
    ended = []
    thread = threading.Thread(target=lambda: ended.append(raises(ValueError, consumer.poll, "closed")))
    thread.start()
    consumer.close()
    thread.join(PATIENCE)
    assert ended


async def asynchronous():
    """Everything with asyncio, many operations at a time on one thread."""
    threads = threading.active_count()
    async with await aio.connect(ADDRESS, tailwater.Options(transport="tcp", name="asynchronous")) as client:
        cell = await client.cell("tiles", deadline=PATIENCE)
        versions = await asyncio.gather(*[cell.set(f"a{number}", str(number)) for number in range(200)])
        hits = await asyncio.gather(*[cell.get(f"a{number}") for number in range(200)])
        assert [(hit.value, hit.version) for hit in hits] == [
            (b"%d" % number, version) for number, version in enumerate(versions)
        ]
        assert await cell.cas("a0", "b", versions[0]) > versions[0]
        await cell.delete_many(f"a{number}" for number in range(200))
        assert await cell.get_many(["a0", "a199"]) == [None, None]
        expected = {0: 0, 1: 0}
        consumer = await client.consumer("news", start="earliest")
        async for batch in consumer:
            for record in batch:
                check(record, expected)
            if sum(expected.values()) == 2 * LINES:
                break
        assert await consumer.poll(0.01) is None
        assert consumer.positions() == expected
        try:
            await client.cell("nowhere")
            raise AssertionError("there is none")
        except tailwater.NotFound:
            pass
    assert threading.active_count() == threads


def errors(client):
    """What can't be done says why, and what to do."""
    raises(tailwater.NotFound, lambda: client.cell("nowhere"), "no cell nowhere", "tailwater cell create")
    raises(tailwater.NotFound, lambda: client.consumer("nowhere"), "nowhere")
    raises(tailwater.InvalidArgument, lambda: tailwater.connect("here"), "IP:PORT")
    refused = raises(tailwater.Unreachable, lambda: tailwater.open_cell("unix:/nowhere.sock"), "/nowhere.sock")
    assert refused.retriable and isinstance(refused, ConnectionError)
    raises(tailwater.InvalidArgument, lambda: tailwater.open_cell(), "no seed")
    raises(ValueError, lambda: client.consumer("news", start="soon"), "earliest")
    raises(ValueError, lambda: tailwater.connect(ADDRESS, tailwater.Options(transport="carrier")), "shm")
    raises(tailwater.InvalidArgument, lambda: tailwater.connect(ADDRESS, tailwater.Options(ca_file="/nowhere")), "/nowhere")


def fork(cell):
    """A forked child is told that it can't use the library, and ends as others do."""
    with warnings.catch_warnings():
        # Python warns of just that.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        told = False
        try:
            cell.get("tea")
        except tailwater.Forked as error:
            told = "spawn" in str(error)
        # What it has of its parent's is freed on its way out.
        cell.close()
        del cell
        gc.collect()
        os._exit(0 if told else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cell.get("tea").value == b"Oolong"


def resident_kib():
    """Memory of this process."""
    with open("/proc/self/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))


def nothing_is_left_behind(client, cell):
    """Batches, lookups and operations that are gone keep no memory."""

    def some(rounds):
        for _ in range(rounds):
            with client.consumer("news", start="earliest") as consumer:
                seen = 0
                while seen < 2 * LINES:
                    seen += len(list(consumer.poll(PATIENCE)))
            for _ in range(100):
                cell.get_many(["tea"] * 10)
        gc.collect()

    cell.set("tea", b"x" * 100_000)
    some(3)
    before, objects = resident_kib(), len(gc.get_objects())
    some(10)
    grown = resident_kib() - before
    # A hundredth of what was looked up: 1,000 MB.
    assert grown < 20_000, f"{grown} KiB more"
    assert len(gc.get_objects()) - objects < 1_000


def guide():
    """The guide's examples run, on this node."""
    with open(GUIDE) as text:
        examples = re.findall(r"```python\n(.*?)```", text.read(), re.DOTALL)
    assert len(examples) >= 2, len(examples)
    for example in examples:
        example = example.replace("127.0.0.1:7420", ADDRESS).replace("unix:/srv/tiles.sock", SEED)
        example = example.replace("deadline=2.0", f"deadline={PATIENCE}")
        with contextlib.redirect_stdout(io.StringIO()):
            patiently(lambda: exec(compile(example, GUIDE, "exec"), {"__name__": "__main__"}))


def main():
    """All of it."""
    patient = tailwater.Options(deadline=PATIENCE)
    with patiently(lambda: tailwater.open_cell(SEED, options=patient)) as cell:
        keys(cell)
    with tailwater.connect(ADDRESS) as client:
        cell = client.cell("tiles", deadline=PATIENCE)
        many_keys(cell)
        records(client)
        one_poll_at_a_time(client)
        errors(client)
        fork(cell)
        nothing_is_left_behind(client, cell)
    asyncio.run(asynchronous())
    guide()
    assert inspect.getdoc(tailwater.Cell.get), "what is public has a text"


main()
print("all done")
