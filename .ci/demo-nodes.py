"""A member of a group of its own, which prints what it reads: demo-nodes.py confluent|kafka BROKERS"""

import sys

client, brokers = sys.argv[1:]
if client == "confluent":
    import confluent_kafka

    settings = {"bootstrap.servers": brokers, "group.id": client, "auto.offset.reset": "earliest", "session.timeout.ms": 10000}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["numbers"])
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            print(message.value().decode(), flush=True)
else:
    import kafka

    consumer = kafka.KafkaConsumer(
        "numbers", bootstrap_servers=brokers.split(","), group_id=client, auto_offset_reset="earliest", session_timeout_ms=10000
    )
    for message in consumer:
        print(message.value.decode(), flush=True)
