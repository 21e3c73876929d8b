"""kafka-python, which speaks Kafka's protocol by itself: `python kafka_python.py SERVER SCENARIO`. Ends with 0 if all
that the scenario says held."""

import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

SERVER = sys.argv[1]
PATIENCE = 60
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


{"records": records}[sys.argv[2]]()
