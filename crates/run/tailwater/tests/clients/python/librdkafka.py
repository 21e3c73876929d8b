"""librdkafka through confluent-kafka: `python librdkafka.py SERVER SCENARIO`. Ends with 0 if all that the scenario says
held."""

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
PATIENCE = 300
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BEGIN = 1_700_000_000_000


def producer(**more):
    wanted = {"bootstrap.servers": SERVER, "enable.idempotence": True, "linger.ms": 5}
    return Producer({**wanted, **{name if name.endswith("_cb") else name.replace("_", "."): value for name, value in more.items()}})


def consumer(**more):
    wanted = {"bootstrap.servers": SERVER, "group.id": "nobody", "enable.auto.commit": False, "check.crcs": True}
    return Consumer({**wanted, **{name if name.endswith("_cb") else name.replace("_", "."): value for name, value in more.items()}})


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
    done(client.create_topics([NewTopic("t", 1, 1, config={"retention.ms": "5000000", "segment.bytes": "65536"})]))
    assert failure(client.create_topics([NewTopic("t", 1, 1)])) == "TOPIC_ALREADY_EXISTS"
    assert failure(client.create_topics([NewTopic("u", 1, 1, config={"cleanup.policy": "compact"})])) == "INVALID_CONFIG"
    assert set(client.list_topics(timeout=PATIENCE).topics) == {"t"}
    done(client.create_partitions([NewPartitions("t", 3)]))
    assert failure(client.create_partitions([NewPartitions("t", 2)])) == "INVALID_PARTITIONS"
    assert len(client.list_topics("t", timeout=PATIENCE).topics["t"].partitions) == 3

    def config():
        return next(iter(done(client.describe_configs([ConfigResource(ResourceType.TOPIC, "t")])).values()))

    assert (config()["retention.ms"].value, config()["segment.bytes"].value) == ("5000000", "65536")
    edit = ConfigEntry("retention.ms", "7000000", incremental_operation=AlterConfigOpType.SET)
    done(client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[edit])]))
    assert (config()["retention.ms"].value, config()["segment.bytes"].value) == ("7000000", "65536")
    # The older way replaces everything.
    done(client.alter_configs([ConfigResource(ResourceType.TOPIC, "t", set_config={"retention.ms": "9000000"})]))
    assert (config()["retention.ms"].value, config()["segment.bytes"].is_default) == ("9000000", True)

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


class Member(threading.Thread):
    """A member of a group: notes what it reads, and commits it."""

    lock = threading.Lock()
    next = {}

    def __init__(self, **how):
        super().__init__()
        self.assigned = set()
        self.failure = None
        self.stopping = threading.Event()
        self.reader = consumer(group_id="g", auto_offset_reset="earliest", **how)
        self.start()

    def run(self):
        try:
            self.read()
        except BaseException as error:
            self.failure = error

    def read(self):
        def assigned(reader, partitions):
            self.assigned |= {place.partition for place in partitions}

        def revoked(reader, partitions):
            self.commit()
            self.assigned -= {place.partition for place in partitions}

        self.reader.subscribe(["shared"], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        while not self.stopping.is_set():
            for record in self.reader.consume(500, 0.1):
                assert record.error() is None, record.error()
                with Member.lock:
                    expected = Member.next.get(record.partition(), 0)
                    # Each partition in its order; what was not committed in time may come again.
                    assert record.offset() <= expected, (record.partition(), record.offset(), expected)
                    Member.next[record.partition()] = max(expected, record.offset() + 1)
            self.commit()
        self.reader.close()

    def commit(self):
        try:
            self.reader.commit(asynchronous=False)
        except KafkaException as error:
            # Nothing new, or a rebalance: then it is read again, by whoever has it.
            allowed = {"_NO_OFFSET", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"}
            assert error.args[0].name() in allowed | {"STALE_MEMBER_EPOCH"}, error

    def leave(self):
        self.stopping.set()
        self.join()
        if self.failure:
            raise self.failure
        self.assigned = set()


def classic(strategy):
    """How a member of the classic protocol is."""
    quick = {"heartbeat_interval_ms": 200, "session_timeout_ms": 60_000}
    return {"partition_assignment_strategy": strategy, **quick}


def wait_for(what, condition, members):
    end = time.monotonic() + 500
    while not condition():
        for member in members:
            if member.failure:
                raise member.failure
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.02)


def share(*members):
    """The members share six partitions evenly."""

    def is_even():
        owned = [set(member.assigned) for member in members]
        return all(len(some) == 6 // len(members) for some in owned) and set().union(*owned) == set(range(6))

    wait_for("an even share", is_even, members)


def group(strategy):
    """Three members come and go while records are written; all of them are read, in order, and committed."""
    admin = AdminClient({"bootstrap.servers": SERVER})
    done(admin.create_topics([NewTopic("shared", 6, 1)]))
    written = [0]

    def write():
        for partition in range(6):
            produce("shared", range(100), partition)
        written[0] += 100

    def all_read():
        return all(Member.next.get(partition, 0) == written[0] for partition in range(6))

    write()
    one = Member(**classic(strategy))
    share(one)
    two = Member(**classic(strategy))
    three = Member(**classic(strategy))
    share(one, two, three)
    write()
    wait_for("records of three", all_read, [one, two, three])
    two.leave()
    share(one, three)
    write()
    wait_for("records after one left", all_read, [one, three])
    one.leave()
    share(three)
    write()
    wait_for("records of the last one", all_read, [three])
    three.leave()
    reader = consumer(group_id="g")
    committed = reader.committed([TopicPartition("shared", partition) for partition in range(6)], timeout=PATIENCE)
    assert [place.offset for place in committed] == [written[0]] * 6, committed
    reader.close()


def moving():
    """A group moves from the classic protocol to KIP-848's, member by member, while records are written."""
    admin = AdminClient({"bootstrap.servers": SERVER})
    done(admin.create_topics([NewTopic("shared", 6, 1)]))
    sender = producer()
    written = 0

    def write_and_read(*members):
        nonlocal written
        for partition in list(range(6)) * 100:
            sender.produce("shared", value=b"value", partition=partition)
        assert sender.flush(PATIENCE) == 0
        written += 100
        is_read = lambda: all(Member.next.get(partition, 0) == written for partition in range(6))
        wait_for("records", is_read, members)

    one, two = Member(**classic("range")), Member(**classic("range"))
    share(one, two)
    write_and_read(one, two)
    three = Member(group_protocol="consumer")
    share(one, two, three)
    write_and_read(one, two, three)
    one.leave()
    share(two, three)
    two.leave()
    four = Member(group_protocol="consumer")
    share(three, four)
    write_and_read(three, four)
    three.leave()
    four.leave()
    # Nobody is in it: it goes back at once.
    five = Member(**classic("cooperative-sticky"))
    share(five)
    write_and_read(five)
    five.leave()
    reader = consumer(group_id="g")
    committed = reader.committed([TopicPartition("shared", partition) for partition in range(6)], timeout=PATIENCE)
    assert [place.offset for place in committed] == [written] * 6, committed
    reader.close()


def transactions():
    """A producer that wants transactions is told that there are none, and does not wait for them."""
    sender = Producer({"bootstrap.servers": SERVER, "transactional.id": "me"})
    try:
        sender.init_transactions(PATIENCE)
    except KafkaException as error:
        assert error.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" and error.args[0].fatal(), error
        return
    raise AssertionError("it should have failed")


def oauth():
    """A token is shown over TLS (OAUTHBEARER), and another text is refused: SERVER oauth CA TOKEN."""
    ca, token = sys.argv[3:]
    login = {"security_protocol": "SASL_SSL", "ssl_ca_location": ca, "sasl_mechanism": "OAUTHBEARER"}
    sender = producer(**login, oauth_cb=lambda _: (token, time.time() + 3_600))
    failures = []
    sender.produce("s", b"a line", on_delivery=lambda error, _: failures.append(error))
    assert sender.flush(PATIENCE) == 0 and failures == [None], failures
    refusals = []
    wrong = producer(**login, oauth_cb=lambda _: (token[:-1] + "!", time.time() + 3_600), error_cb=refusals.append)
    while not any("no such token" in error.str() for error in refusals):
        wrong.poll(PATIENCE)


def logins():
    """In TLS by each mechanism, and by a certificate alone: SERVER logins FILE, which has files and secrets."""
    with open(sys.argv[3]) as file:
        at = dict(line.rstrip("\n").split("=", 1) for line in file)
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "certificate"]:
        login = {"security_protocol": "SASL_SSL", "ssl_ca_location": at["ca"]}
        if mechanism == "certificate":
            login |= {"bootstrap_servers": at["certificates"], "security_protocol": "SSL"}
            login |= {"ssl_certificate_location": at["certificate"], "ssl_key_location": at["certificate"]}
        elif mechanism == "OAUTHBEARER":
            login |= {"sasl_mechanism": mechanism, "oauth_cb": lambda _: (at["token"], time.time() + 3_600)}
        else:
            login |= {"sasl_mechanism": mechanism, "sasl_username": at["user"], "sasl_password": at["password"]}
        sender, sent = producer(**login), []
        sender.produce("logins", mechanism, partition=0, on_delivery=lambda error, record: sent.append((error, record)))
        assert sender.flush(PATIENCE) == 0 and sent[0][0] is None, (mechanism, sent)
        reader = consumer(**login)
        reader.assign([TopicPartition("logins", 0, sent[0][1].offset())])
        record = reader.poll(PATIENCE)
        assert record and record.error() is None and record.value() == mechanism.encode(), (mechanism, record and (record.error(), record.value()))
        reader.close()


SCENARIOS = {
    "logins": logins,
    "oauth": oauth,
    "records": records,
    "pipelines": pipelines,
    "admin": admin,
    "no_sasl": no_sasl,
    "transactions": transactions,
    "moving": moving,
    "range": lambda: group("range"),
    "cooperative": lambda: group("cooperative-sticky"),
}
SCENARIOS[sys.argv[2]]()
