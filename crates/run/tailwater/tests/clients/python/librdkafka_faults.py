"""librdkafka while its node is killed, or with many others beside it: `python librdkafka_faults.py SERVER SCENARIO`. Ends
with 0 if all that the scenario says held."""

import collections
import contextlib
import itertools
import os
import re
import signal
import sys
import tempfile
import time

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

SERVER = sys.argv[1]
PATIENCE = 300


def producer(**more):
    wanted = {"bootstrap.servers": SERVER, "enable.idempotence": True, "linger.ms": 5}
    return Producer({**wanted, **{name.replace("_", "."): value for name, value in more.items()}})


def consumer(**more):
    wanted = {"bootstrap.servers": SERVER, "group.id": "nobody", "enable.auto.commit": False, "check.crcs": True}
    callback = {"on_commit": more.pop("on_commit")} if "on_commit" in more else {}
    return Consumer({**wanted, **callback, **{name.replace("_", "."): value for name, value in more.items()}})


class Asked:
    """Whether somebody asked with SIGTERM to come to an end."""

    def __init__(self):
        self.to_end = False
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "to_end", True))


def numbers():
    """Waits for lines with a count; for each it sends so many records, some every few ms, and says so when all are
    acknowledged."""
    sender, sent = producer(), itertools.count()
    for line in sys.stdin:
        for _ in range(int(line) // 20):
            for number in itertools.islice(sent, 20):
                sender.produce("numbers", key=f"key {number % 50}", value=str(number))
            sender.poll(0)
            time.sleep(0.005)
        assert sender.flush(PATIENCE) == 0
        print("sent", flush=True)


def endless_producer():
    """Sends the numbers of each of eight keys, with as many in flight as there is room for, and says how many were
    acknowledged. Nothing may fail and, for each key, acknowledgements come in order."""
    asked, acknowledged, next_of = Asked(), itertools.count(1), {}

    def delivered(error, message):
        assert error is None, error
        key, number = message.key(), int(message.value())
        assert number == next_of.get(key, 0), (key, number)
        next_of[key] = number + 1
        count = next(acknowledged)
        if count % 500 == 0:
            print(count, flush=True)

    quick = {"retry_backoff_ms": 20, "reconnect_backoff_max_ms": 100, "batch_num_messages": 50}
    sender = producer(acks="all", queue_buffering_max_messages=1000, **quick)
    for number in itertools.count():
        if asked.to_end:
            break
        while True:
            try:
                sender.produce("endless", key=f"key {number % 8}", value=str(number // 8), on_delivery=delivered)
                break
            except BufferError:
                sender.poll(0.1)
        sender.poll(0)
    assert sender.flush(PATIENCE) == 0
    print("total", sum(next_of.values()), flush=True)


def endless_group():
    """Two members of a group of the classic protocol."""
    members("endless", session_timeout_ms=6000, heartbeat_interval_ms=200)


def endless_group_848():
    """Two members of a group of KIP-848, where the node says how often they have to be heard of."""
    members("endless_848", group_protocol="consumer")


# The last commits, as they were asked for and answered.
COMMITS = collections.deque(maxlen=200)


def tell_of_commit(error, committed):
    COMMITS.append(f"answered {[(one.partition, one.offset, str(error or one.error or 'kept')) for one in committed]}")


# What librdkafka says of where it begins to read, of leader epochs, and of what it validates.
TELLING = re.compile(rb"VALID|Seek|Start fetch|fetch decide|-> leader|OFFSET|ASSIGN|FENCED")


@contextlib.contextmanager
def account_of_failures(lines_max=400):
    """Keeps what librdkafka writes to standard error, and shows the last of what tells something if it ends with an error,
    or is asked to with SIGUSR1; then it writes `told`, too."""
    with tempfile.TemporaryFile() as log:
        shown = os.dup(2)
        os.dup2(log.fileno(), 2)

        def tell(*_):
            read = os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).splitlines(keepends=True)
            telling = [line for line in read if TELLING.search(line)][-lines_max:]
            os.write(shown, b"".join(telling) + "".join(f"{line}\n" for line in COMMITS).encode())

        def tell_when_asked(*_):
            tell()
            print("told", flush=True)

        signal.signal(signal.SIGUSR1, tell_when_asked)
        try:
            yield
        except BaseException:
            tell()
            raise
        finally:
            os.dup2(shown, 2)
            os.close(shown)


class Place:
    """How far a group's members have committed a partition. librdkafka keeps commits back while no coordinator is there,
    and makes them when its member has joined again, even if the partition is another's by then: what was committed may so be
    followed by less, until all that were asked for are answered."""

    def __init__(self):
        self.settled = self.furthest = self.under_way = 0
        # The least of those that were kept since nothing was under way.
        self.least = None

    def asked(self, offset):
        self.under_way += 1
        self.furthest = max(self.furthest, offset)
        self.settled = min(self.settled, offset)

    def answered(self, offset, is_kept):
        self.under_way -= 1
        if is_kept:
            self.least = offset if self.least is None else min(self.least, offset)
        if self.under_way == 0 and self.least is not None:
            self.settled, self.least = max(self.settled, self.least), None


def commit(member, uncommitted, places):
    """Commits what is uncommitted of partitions of which no commit is under way, whoever asked for that: of two at a time
    the earlier one may be made last, as librdkafka sends those again that its connection ended with. Whether there was
    any."""
    due = {partition: offset for partition, offset in uncommitted.items() if places[partition].under_way == 0}
    if due:
        COMMITS.append(f"asked {due}")
        for partition, offset in due.items():
            places[partition].asked(offset)
        # Not synchronously: while the node is gone that would wait for a rebalance that needs a poll.
        member.commit(offsets=[TopicPartition("endless", *place) for place in due.items()], asynchronous=True)
    return bool(due)


def members(group, **how):
    with account_of_failures():
        two_members(group, **how)


def begin_at_the_start(group):
    """Commits the start of each partition, so that nobody has to look for it. A query of librdkafka's for the start that
    was to be tried again later is also made when its partition was taken and given again meanwhile, and then the member
    reads from the start, whatever was committed."""
    member = consumer(group_id=group)
    member.commit(offsets=[TopicPartition("endless", partition, 0) for partition in range(4)], asynchronous=False)
    member.close()


def two_members(group, **how):
    """Two members of a group that commit what they read, and say how many records they have seen. Whoever is given a
    partition goes on where it was last committed, and from there on without a gap. No error of a client is final."""
    begin_at_the_start(group)
    asked, seen, places = Asked(), set(), [Place() for _ in range(4)]
    members = []
    for _ in range(2):
        # For each partition: what it reads next, None before the first record; and what it has to commit yet.
        next_of, uncommitted = {}, {}

        def answered(error, committed, uncommitted=uncommitted):
            tell_of_commit(error, committed)
            for one in committed:
                is_kept = error is None and one.error is None
                places[one.partition].answered(one.offset, is_kept)
                if is_kept and uncommitted.get(one.partition) == one.offset:
                    del uncommitted[one.partition]
            print(len(seen), flush=True)

        def taken(_, partitions, uncommitted=uncommitted):
            for one in partitions:
                uncommitted.pop(one.partition, None)

        def given(_, partitions, next_of=next_of, uncommitted=uncommitted):
            taken(_, partitions, uncommitted)
            for one in partitions:
                next_of[one.partition] = None

        quick = {"auto_offset_reset": "error", "reconnect_backoff_max_ms": 100, "debug": "fetch,topic,cgrp"}
        member = consumer(group_id=group, on_commit=answered, **quick, **how)
        member.subscribe(["endless"], on_assign=given, on_revoke=taken, on_lost=taken)
        members.append((member, next_of, uncommitted))
    for member, next_of, uncommitted in itertools.cycle(members):
        for record in itertools.islice(iter(lambda: member.poll(0.01), None), 200):
            if record.error():
                is_reset = record.error().code() == KafkaError._AUTO_OFFSET_RESET
                assert not (is_reset or record.error().fatal()), record.error()
                continue
            partition, offset = record.partition(), record.offset()
            if next_of[partition] is None:
                place = places[partition]
                if not place.settled <= offset <= place.furthest:
                    there = member.committed([TopicPartition("endless", partition)], PATIENCE)
                    ends = member.get_watermark_offsets(TopicPartition("endless", partition), PATIENCE)
                    assert False, (group, partition, offset, vars(place), str(there), ends)
            else:
                assert offset == next_of[partition], (partition, offset)
            next_of[partition] = uncommitted[partition] = offset + 1
            seen.add((partition, offset))
        commit(member, uncommitted, places)
        if asked.to_end:
            break
    for member, _, _ in members:
        member.close()


# What a member is told whose membership the node does not know, or knows to be another one's.
LOST = {22: "ILLEGAL_GENERATION", 25: "UNKNOWN_MEMBER_ID", 110: "FENCED_MEMBER_EPOCH", 113: "STALE_MEMBER_EPOCH"}


def steady_group_848():
    """Two members of a group of KIP-848. Once they share the partitions none of these is given or taken any more, each
    record comes once, and no commit is refused for who commits it, whatever happens to the node."""
    with account_of_failures():
        steady()


def steady():
    asked, members, is_steady, places = Asked(), [], False, [Place() for _ in range(4)]
    next_of, owner_of, seen = dict.fromkeys(range(4), 0), {}, 0
    for who in range(2):
        uncommitted = {}

        def answered(error, committed, uncommitted=uncommitted):
            tell_of_commit(error, committed)
            for one in committed:
                why = error or one.error
                places[one.partition].answered(one.offset, why is None)
                assert why is None or why.code() not in LOST, (LOST[why.code()], one)
                if why is None and uncommitted.get(one.partition) == one.offset:
                    del uncommitted[one.partition]

        def given(_, partitions, who=who):
            assert not is_steady, ("given", who, partitions)
            owner_of.update({one.partition: who for one in partitions})

        def taken(_, partitions, who=who):
            assert not is_steady, ("taken", who, partitions)
            for one in partitions:
                assert owner_of.pop(one.partition) == who

        quick = {"auto_offset_reset": "earliest", "reconnect_backoff_max_ms": 100, "debug": "fetch,topic,cgrp"}
        member = consumer(group_id="steady", group_protocol="consumer", on_commit=answered, **quick)
        member.subscribe(["endless"], on_assign=given, on_revoke=taken, on_lost=taken)
        members.append((who, member, uncommitted))
    for who, member, uncommitted in itertools.cycle(members):
        if not is_steady and sorted(owner_of.values()) == [0, 0, 1, 1]:
            is_steady = True
            print("steady", flush=True)
        for record in itertools.islice(iter(lambda: member.poll(0.01), None), 200):
            if record.error():
                assert not record.error().fatal(), record.error()
                continue
            partition, offset = record.partition(), record.offset()
            assert (owner_of[partition], next_of[partition]) == (who, offset), (who, partition, offset, owner_of, next_of)
            next_of[partition] = uncommitted[partition] = offset + 1
            seen += 1
        if commit(member, uncommitted, places):
            print(seen, flush=True)
        if asked.to_end:
            break
    is_steady = False
    for _, member, _ in members:
        member.close()


SCENARIOS = [numbers, endless_producer, endless_group, endless_group_848, steady_group_848]
{scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[2]]()
