"""kafka-python, which speaks Kafka's protocol by itself: `python kafka_python.py SERVER SCENARIO`. Ends with 0 if all
that the scenario says held."""

import sys
import threading
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import CommitFailedError, RebalanceInProgressError
from kafka.net.sasl.oauth import AbstractTokenProvider

SERVER = sys.argv[1]
PATIENCE = 300
BEGIN = 1_700_000_000_000


def records():
    """Every codec comes back whole, in order and with its time."""
    admin = KafkaAdminClient(bootstrap_servers=SERVER)
    codecs = [None, "gzip", "snappy", "lz4", "zstd"]
    admin.create_topics([NewTopic("python", len(codecs), 1)])
    count = 1000
    for partition, codec in enumerate(codecs):
        producer = KafkaProducer(bootstrap_servers=SERVER, compression_type=codec, acks="all", linger_ms=5)
        sent = [
            producer.send(
                "python",
                key=b"key %d" % number,
                value=b"value %d" % number,
                partition=partition,
                timestamp_ms=BEGIN + number,
                headers=[("number", b"%d" % number)],
            )
            for number in range(count)
        ]
        producer.flush(PATIENCE)
        assert [future.get(PATIENCE).offset for future in sent] == list(range(count)), codec
        producer.close()
    consumer = KafkaConsumer(bootstrap_servers=SERVER, check_crcs=True, consumer_timeout_ms=PATIENCE * 1000)
    for partition, codec in enumerate(codecs):
        place = TopicPartition("python", partition)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        for number in range(count):
            record = next(consumer)
            assert (record.offset, record.key, record.value) == (number, b"key %d" % number, b"value %d" % number)
            assert record.timestamp == BEGIN + number and record.headers[0][1] == b"%d" % number
        assert consumer.beginning_offsets([place]) == {place: 0}
        assert consumer.end_offsets([place]) == {place: count}
        assert consumer.offsets_for_times({place: BEGIN + 321})[place].offset == 321
    consumer.close()
    admin.delete_topics(["python"])
    assert "python" not in admin.list_topics()
    admin.close()


def group():
    """Two members share a topic, one takes over from the other, and nothing is lost or out of order."""
    admin = KafkaAdminClient(bootstrap_servers=SERVER)
    admin.create_topics([NewTopic("shared", 4, 1)])
    producer = KafkaProducer(bootstrap_servers=SERVER, acks="all")
    written = [0]

    def write():
        for number in range(200):
            producer.send("shared", value=b"%d" % number, partition=number % 4)
        producer.flush(PATIENCE)
        written[0] += 50

    following = {}
    lock = threading.Lock()

    class Member(threading.Thread):
        """Polls all the time: what a join is answered between two polls, kafka-python forgets, and joins again."""

        def __init__(self):
            super().__init__(daemon=True)
            self.ends = threading.Event()
            self.assigned = set()
            self.failure = None
            self.start()

        def run(self):
            try:
                consumer = KafkaConsumer(
                    "shared",
                    bootstrap_servers=SERVER,
                    group_id="g",
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    heartbeat_interval_ms=200,
                    session_timeout_ms=10_000,
                )
                while not self.ends.is_set():
                    self.take(consumer)
                consumer.close()
            except BaseException as failure:
                self.failure = failure

        def take(self, consumer):
            for place, records in consumer.poll(timeout_ms=1_000).items():
                with lock:
                    for record in records:
                        expected = following.get(place.partition, 0)
                        assert record.offset <= expected, (place, record.offset, expected)
                        following[place.partition] = max(expected, record.offset + 1)
            self.assigned = {place.partition for place in consumer.assignment()}
            if self.assigned:
                try:
                    consumer.commit()
                except (CommitFailedError, RebalanceInProgressError):
                    pass  # a rebalance: it is committed later, or read again, by whoever has it

        def close(self):
            self.ends.set()
            self.join(PATIENCE)
            assert not self.is_alive() and not self.failure, self.failure

    def until(what, condition, members):
        end = time.monotonic() + 500
        while not condition():
            assert time.monotonic() < end, f"waited for {what}"
            for one in members:
                assert not one.failure, one.failure
            # Nothing tells of what the members have read and own.
            time.sleep(0.02)

    def shared(*members):
        owned = [one.assigned for one in members]
        return all(len(some) == 4 // len(members) for some in owned) and set().union(*owned) == set(range(4))

    def all_read():
        return all(following.get(partition, 0) == written[0] for partition in range(4))

    write()
    one, two = Member(), Member()
    until("an even share", lambda: shared(one, two), [one, two])
    write()
    until("records of two", all_read, [one, two])
    one.close()
    write()
    until("the rest", lambda: shared(two) and all_read(), [two])

    def all_committed():
        offsets = admin.list_group_offsets("g")["g"]
        return all(offsets[TopicPartition("shared", number)].offset == written[0] for number in range(4))

    until("the commits", all_committed, [two])
    two.close()
    assert all_committed()
    admin.close()


def logins():
    """In TLS by each mechanism, and by a certificate alone: SERVER logins FILE, which has files and secrets."""
    with open(sys.argv[3]) as file:
        at = dict(line.rstrip("\n").split("=", 1) for line in file)

    class Token(AbstractTokenProvider):
        def token(self):
            return at["token"]

    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "certificate"]:
        login = {"bootstrap_servers": SERVER, "security_protocol": "SASL_SSL", "ssl_cafile": at["ca"]}
        if mechanism == "certificate":
            login |= {"bootstrap_servers": at["certificates"], "security_protocol": "SSL"}
            login |= {"ssl_certfile": at["certificate"], "ssl_keyfile": at["certificate"]}
        elif mechanism == "OAUTHBEARER":
            login |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Token()}
        else:
            login |= {"sasl_mechanism": mechanism, "sasl_plain_username": at["user"]}
            login |= {"sasl_plain_password": at["password"]}
        producer = KafkaProducer(acks="all", **login)
        sent = producer.send("logins", value=mechanism.encode(), partition=0).get(PATIENCE)
        producer.close()
        consumer = KafkaConsumer(consumer_timeout_ms=PATIENCE * 1000, **login)
        place = TopicPartition("logins", 0)
        consumer.assign([place])
        consumer.seek(place, sent.offset)
        assert next(consumer).value == mechanism.encode(), mechanism
        consumer.close()


{"records": records, "group": group, "logins": logins}[sys.argv[2]]()
