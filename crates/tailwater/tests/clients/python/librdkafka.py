"""librdkafka through confluent-kafka: `python librdkafka.py SERVER SCENARIO`. Ends with 0 if all that the scenario says
held."""

import itertools
import signal
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

SERVER = sys.argv[1]
PATIENCE = 60
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BEGIN = 1_700_000_000_000


def producer(**more):
    wanted = {"bootstrap.servers": SERVER, "enable.idempotence": True, "linger.ms": 5}
    return Producer({**wanted, **{name.replace("_", "."): value for name, value in more.items()}})


def consumer(**more):
    wanted = {"bootstrap.servers": SERVER, "group.id": "nobody", "enable.auto.commit": False, "check.crcs": True}
    callback = {"on_commit": more.pop("on_commit")} if "on_commit" in more else {}
    return Consumer({**wanted, **callback, **{name.replace("_", "."): value for name, value in more.items()}})


def done(futures):
    return {key: future.result(PATIENCE) for key, future in futures.items()}


def read(reader, count):
    """So many records, in their order."""
    records = []
    while len(records) < count:
        record = reader.poll(PATIENCE)
        assert record is not None, f"{len(records)} of {count} records came"
        assert record.error() is None, record.error()
        records.append(record)
    return records


def produce(topic, numbers, partition, **more):
    """Sends numbered records; the offsets that they got."""
    offsets = []

    def delivered(error, message):
        assert error is None, error
        offsets.append(message.offset())

    sender = producer(**more)
    for number in numbers:
        sender.produce(
            topic,
            key=f"key {number}",
            value=f"value {number} " + "x" * (number % 500),
            partition=partition,
            timestamp=BEGIN + number,
            headers=[("number", str(number))],
            on_delivery=delivered,
        )
        sender.poll(0)
    assert sender.flush(PATIENCE) == 0
    return offsets


def records():
    """Every codec, written by idempotent producers, comes back whole, in order and with its time."""
    admin = AdminClient({"bootstrap.servers": SERVER})
    done(admin.create_topics([NewTopic("codecs", len(CODECS), 1)]))
    count = 2000
    for partition, codec in enumerate(CODECS):
        offsets = produce("codecs", range(count), partition, compression_type=codec)
        assert offsets == list(range(count)), codec
    reader = consumer()
    for partition, codec in enumerate(CODECS):
        reader.assign([TopicPartition("codecs", partition, OFFSET_BEGINNING)])
        for number, record in enumerate(read(reader, count)):
            assert record.offset() == number
            assert record.key() == f"key {number}".encode()
            assert record.value() == (f"value {number} " + "x" * (number % 500)).encode()
            assert record.timestamp()[1] == BEGIN + number
            assert record.headers() == [("number", str(number).encode())]
            assert record.leader_epoch() == 1
        assert reader.get_watermark_offsets(TopicPartition("codecs", partition), timeout=PATIENCE) == (0, count)
        # By time: the first record that is not older; the end for a time that has not come.
        for time, expected in [(BEGIN + 777, 777), (0, 0), (BEGIN + count, -1)]:
            found = reader.offsets_for_times([TopicPartition("codecs", partition, time)], timeout=PATIENCE)
            assert [place.offset for place in found] == [expected], (time, found)
    reader.assign([TopicPartition("codecs", 0, OFFSET_END)])
    assert reader.poll(1) is None
    reader.close()


def pipelines():
    """Four idempotent producers with five requests in flight each: nothing lost, nothing twice, each in its order."""
    admin = AdminClient({"bootstrap.servers": SERVER})
    done(admin.create_topics([NewTopic("pipelines", 1, 1)]))
    count = 5000

    def send(name):
        sender = producer(max_in_flight=5, batch_num_messages=50)
        for number in range(count):
            while True:
                try:
                    sender.produce("pipelines", key=name, value=str(number))
                    break
                except BufferError:
                    sender.poll(1)
            sender.poll(0)
        assert sender.flush(PATIENCE) == 0

    senders = [threading.Thread(target=send, args=(f"producer {name}",)) for name in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    reader = consumer()
    reader.assign([TopicPartition("pipelines", 0, OFFSET_BEGINNING)])
    seen = {}
    for record in read(reader, 4 * count):
        numbers = seen.setdefault(record.key(), [])
        numbers.append(int(record.value()))
    assert all(numbers == list(range(count)) for numbers in seen.values()) and len(seen) == 4
    reader.close()


def admin():
    client = AdminClient({"bootstrap.servers": SERVER})
    done(client.create_topics([NewTopic("t", 1, 1, config={"retention.ms": "5000", "segment.bytes": "65536"})]))
    assert failure(client.create_topics([NewTopic("t", 1, 1)])) == "TOPIC_ALREADY_EXISTS"
    assert failure(client.create_topics([NewTopic("u", 1, 1, config={"cleanup.policy": "compact"})])) == "INVALID_CONFIG"
    assert set(client.list_topics(timeout=PATIENCE).topics) == {"t"}
    done(client.create_partitions([NewPartitions("t", 3)]))
    assert failure(client.create_partitions([NewPartitions("t", 2)])) == "INVALID_PARTITIONS"
    assert len(client.list_topics("t", timeout=PATIENCE).topics["t"].partitions) == 3

    def config():
        return next(iter(done(client.describe_configs([ConfigResource(ResourceType.TOPIC, "t")])).values()))

    assert (config()["retention.ms"].value, config()["segment.bytes"].value) == ("5000", "65536")
    edit = ConfigEntry("retention.ms", "7000", incremental_operation=AlterConfigOpType.SET)
    done(client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[edit])]))
    assert (config()["retention.ms"].value, config()["segment.bytes"].value) == ("7000", "65536")
    # The older way replaces everything.
    done(client.alter_configs([ConfigResource(ResourceType.TOPIC, "t", set_config={"retention.ms": "9000"})]))
    assert (config()["retention.ms"].value, config()["segment.bytes"].is_default) == ("9000", True)

    produce("t", range(50), 2)
    place = TopicPartition("t", 2)
    assert next(iter(done(client.list_offsets({place: OffsetSpec.latest()})).values())).offset == 50
    assert next(iter(done(client.list_offsets({place: OffsetSpec.for_timestamp(BEGIN + 9)})).values())).offset == 9
    assert next(iter(done(client.list_offsets({place: OffsetSpec.max_timestamp()})).values())).offset == 49
    low = next(iter(done(client.delete_records([TopicPartition("t", 2, 20)])).values()))
    assert low.low_watermark == 20
    assert next(iter(done(client.list_offsets({place: OffsetSpec.earliest()})).values())).offset == 20
    cluster = client.describe_cluster(request_timeout=PATIENCE).result(PATIENCE)
    assert len(cluster.nodes) == 1 and cluster.controller.id == 1
    done(client.delete_topics(["t"]))
    assert failure(client.delete_topics(["t"])) == "UNKNOWN_TOPIC_OR_PART"
    assert client.list_topics(timeout=PATIENCE).topics == {}


def failure(futures):
    """The name of the error that a call has to end with."""
    try:
        done(futures)
    except KafkaException as error:
        return error.args[0].name()
    raise AssertionError("it should have failed")


def no_sasl():
    """A client that wants to log in is told that it can't, in words of its own."""
    errors = []
    sender = Producer(
        {
            "bootstrap.servers": SERVER,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "secret",
            "error_cb": lambda error: errors.append(error.str()),
        }
    )
    while not any("SASL" in error for error in errors):
        sender.poll(1)


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
    """Two members of a group that commit what they read, and say how many records they have seen. Whoever is given a
    partition goes on where it was last committed, and from there on without a gap."""
    asked, seen = Asked(), set()
    # For each partition: the last commit that was answered, and the furthest that was asked for.
    committed, attempted = {}, {}
    quick = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200, "reconnect_backoff_max_ms": 100}
    members = []
    for _ in range(2):
        # For each partition: what it reads next, None before the first record; and what it has to commit yet.
        next_of, uncommitted = {}, {}

        def answered(_, places, uncommitted=uncommitted):
            for place in places:
                if place.error is None:
                    committed[place.partition] = place.offset
                    if uncommitted.get(place.partition) == place.offset:
                        del uncommitted[place.partition]
            print(len(seen), flush=True)

        def given(_, places, next_of=next_of, uncommitted=uncommitted):
            uncommitted.clear()
            for place in places:
                next_of[place.partition] = None

        member = consumer(group_id="endless", auto_offset_reset="earliest", on_commit=answered, **quick)
        member.subscribe(["endless"], on_assign=given)
        members.append((member, next_of, uncommitted))
    for member, next_of, uncommitted in itertools.cycle(members):
        for record in itertools.islice(iter(lambda: member.poll(0.01), None), 200):
            if record.error():
                assert not record.error().fatal(), record.error()
                continue
            partition, offset = record.partition(), record.offset()
            if next_of[partition] is None:
                assert committed.get(partition, 0) <= offset <= attempted.get(partition, 0), (partition, offset)
            else:
                assert offset == next_of[partition], (partition, offset)
            next_of[partition] = uncommitted[partition] = offset + 1
            seen.add((partition, offset))
        for partition, offset in uncommitted.items():
            attempted[partition] = max(offset, attempted.get(partition, 0))
        if uncommitted:
            places = [TopicPartition("endless", *place) for place in uncommitted.items()]
            # Not synchronously: while the node is gone that would wait for a rebalance that needs a poll.
            member.commit(offsets=places, asynchronous=True)
        if asked.to_end:
            break
    for member, _, _ in members:
        member.close()


def next_protocol():
    """Three members of a group of KIP-848 join and leave: who has what, that nothing is lost or repeated when they
    change in peace, and what they committed."""
    client = AdminClient({"bootstrap.servers": SERVER})
    done(client.create_topics([NewTopic("next", 6, 1)]))
    members, sent = [], 0

    def join():
        member = consumer(group_id="next", group_protocol="consumer", auto_offset_reset="earliest")
        member.subscribe(["next"])
        members.append(member)

    def described():
        return done(client.describe_consumer_groups(["next"]))["next"]

    def settle(*counts):
        """Polls until they have so many partitions each, each partition once, and the node says the same."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, [member.assignment() for member in members]
            for member in members:
                assert member.poll(0.02) is None
            owned = [sorted(place.partition for place in member.assignment()) for member in members]
            if sorted(map(len, owned)) != sorted(counts) or sorted(sum(owned, [])) != list(range(6)):
                continue
            group = described()
            told = [sorted(place.partition for place in member.assignment.topic_partitions) for member in group.members]
            if group.state.name == "STABLE" and sorted(told) == sorted(owned):
                assert group.type.name == "CONSUMER", group.type
                return

    def round_trip():
        """What is sent comes once, to who has its partition; and is committed."""
        nonlocal sent
        for partition in range(6):
            assert produce("next", range(sent, sent + 100), partition) == list(range(sent, sent + 100))
        found = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < 600:
            assert time.monotonic() < deadline, len(found)
            for member in members:
                for record in iter(lambda: member.poll(0.02), None):
                    assert record.error() is None, record.error()
                    assert TopicPartition("next", record.partition()) in member.assignment()
                    found.append((record.partition(), record.offset()))
        assert sorted(found) == [(partition, number) for partition in range(6) for number in range(sent, sent + 100)]
        sent += 100
        for member in members:
            member.commit(asynchronous=False)
        places = [TopicPartition("next", partition) for partition in range(6)]
        assert [place.offset for place in members[0].committed(places, timeout=PATIENCE)] == [sent] * 6

    join()
    settle(6)
    round_trip()
    join()
    join()
    settle(2, 2, 2)
    round_trip()
    members.pop(1).close()
    settle(3, 3)
    round_trip()
    while members:
        members.pop().close()
    assert described().state.name == "EMPTY"
    join()
    settle(6)
    round_trip()
    members.pop().close()


SCENARIOS = [records, pipelines, admin, no_sasl, numbers, endless_producer, endless_group, next_protocol]
{scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[2]]()
