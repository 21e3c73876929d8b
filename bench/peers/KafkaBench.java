import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.CRC32C;
import org.HdrHistogram.Histogram;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Loads one Kafka broker on loopback, or several, and ends with one JSON object on the last line of standard output.
 *
 * <pre>
 * KafkaBench ready                                            exits 0 once the broker answers
 * KafkaBench append --record-bytes 128 --in-flight 4096       acks=all; acknowledgement delays
 *            --shards 1000                                    each record to the next of so many partitions, 1 unless said
 *            --replicas 3 --topic min.insync.replicas=2       copies of each, 1 unless said, and what the topic has set
 * KafkaBench fanout --consumers 16 --rate-mbit 240            one producer, one partition, every consumer reads everything
 * </pre>
 *
 * Both loads run once for {@code --warmup-s} (30: the JIT of client and broker needs it) and then, on a topic of their own,
 * for {@code --duration-s}. A message carries its number and the time just before it was appended; each consumer checks
 * the number, and the checksum of each batch. Producer and consumers share this process and its clock. Several brokers are
 * those at {@code --bootstrap}, and their processes {@code --server-pid}, each with commas.
 */
public final class KafkaBench {
    private static final long SECOND_NS = 1_000_000_000L;
    /** How long after the last append a consumer may end and still have kept up. */
    private static final long KEPT_UP_NS = SECOND_NS;
    /** How long after the last append consumers are waited for before what they lack counts as lost. */
    private static final long GIVE_UP_NS = 20 * SECOND_NS;
    /** Longest delay a histogram can hold; longer ones count as this. */
    private static final long DELAY_NS_MAX = 120 * SECOND_NS;

    public static void main(String[] args) throws Exception {
        Options options = new Options(args);
        switch (options.mode) {
            case "ready" -> ready(options);
            case "append" -> append(options);
            case "fanout" -> fanout(options);
            default -> throw new IllegalArgumentException("mode " + options.mode + ": ready, append or fanout");
        }
    }

    private static void ready(Options options) throws Exception {
        Properties properties = options.connection();
        properties.put("request.timeout.ms", "2000");
        properties.put("default.api.timeout.ms", "2000");
        try (Admin admin = Admin.create(properties)) {
            admin.describeCluster().nodes().get();
        }
    }

    // ---- append ----------------------------------------------------------------------------------------------------

    private static void append(Options options) throws Exception {
        appendFor(options, options.number("warmup-s", 30));
        long cpu = Processes.cpuTicks(options.serverPids());
        long clientCpu = Processes.cpuTicks(ProcessHandle.current().pid());
        long durationS = options.number("duration-s", 10);
        Appended appended = appendFor(options, durationS);
        double rate = (double) appended.acknowledged / durationS;
        System.out.println(json(
                "\"peer\":\"kafka\",\"mode\":\"append\",\"linger_ms\":%d,\"batch_bytes\":%d,\"record_bytes\":%d,"
                        + "\"in_flight\":%d,\"shards\":%d,\"duration_s\":%d,\"records_per_s\":%.0f,\"mbyte_s\":%.2f,\"ack_ms\":%s,\"cpu_s\":{\"server\":%.2f,\"clients\":%.2f},\"failed\":%d",
                options.number("linger-ms", 0), options.number("batch-bytes", 131072),
                options.number("record-bytes", 128), options.number("in-flight", 4096), options.number("shards", 1),
                durationS, rate,
                rate * options.number("record-bytes", 128) / 1e6, percentiles(appended.delays),
                Processes.secondsSince(cpu, options.serverPids()),
                Processes.secondsSince(clientCpu, ProcessHandle.current().pid()), appended.failed));
    }

    private static final class Appended {
        /** Written by the producer's own thread alone, which runs every callback. */
        final Histogram delays = new Histogram(DELAY_NS_MAX, 3);
        long acknowledged;
        long failed;
    }

    private static Appended appendFor(Options options, long seconds) throws Exception {
        Appended appended = new Appended();
        if (seconds == 0) {
            return appended;
        }
        int shards = options.number("shards", 1);
        String topic = createTopic(options, shards);
        byte[] value = new byte[options.number("record-bytes", 128)];
        Arrays.fill(value, (byte) 'x');
        int inFlight = options.number("in-flight", 4096);
        Semaphore permits = new Semaphore(inFlight);
        long end = System.nanoTime() + seconds * SECOND_NS;
        int next = 0;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options.producer())) {
            producer.partitionsFor(topic); // metadata before the first record
            for (long before = System.nanoTime(); before < end; before = System.nanoTime()) {
                if (!permits.tryAcquire()) {
                    permits.acquire();
                    before = System.nanoTime();
                }
                final long sent = before;
                int shard = next;
                next = shard + 1 == shards ? 0 : shard + 1;
                producer.send(new ProducerRecord<>(topic, shard, null, value), (metadata, error) -> {
                    permits.release();
                    long now = System.nanoTime();
                    if (error != null) {
                        appended.failed++;
                    } else if (now <= end) {
                        appended.acknowledged++;
                        appended.delays.recordValue(Math.min(now - sent, DELAY_NS_MAX));
                    }
                });
            }
            permits.acquire(inFlight); // everything is answered: no callback runs any more
        }
        deleteTopic(options, topic);
        return appended;
    }

    // ---- fanout ----------------------------------------------------------------------------------------------------

    private static void fanout(Options options) throws Exception {
        if (options.number("warmup-s", 30) > 0) {
            new Fanout(options, options.number("warmup-s", 30)).run();
        }
        new Fanout(options, options.number("duration-s", 10)).run().print(options);
    }

    /** What one consumer saw; written by its own thread alone. */
    private static final class Lane {
        final Histogram delays = new Histogram(DELAY_NS_MAX, 3);
        long expected;
        long delivered;
        long lost;
        long reordered;
        volatile long progress; // messages handed out and checked, for the thread that waits for the end
        volatile long lastAt;

        /** One message, with `now` taken after it was decoded. */
        void take(long number, long sentAt, long now) {
            if (number >= expected) {
                lost += number - expected;
                expected = number + 1;
                delivered++;
                delays.recordValue(Math.min(Math.max(now - sentAt, 0), DELAY_NS_MAX));
            } else {
                reordered++;
            }
        }

        void publish() {
            lastAt = System.nanoTime();
            progress = expected;
        }
    }

    private static final class Fanout {
        final Options options;
        final int consumers;
        final int messageBytes;
        final double perSecond;
        final long seconds;
        final List<Lane> lanes = new ArrayList<>();
        final AtomicLong failed = new AtomicLong();
        final AtomicReference<Throwable> failure = new AtomicReference<>();
        volatile boolean stop;
        long produced;
        double producedSeconds;
        long lastAppendAt;
        double serverCpu;
        double clientCpu;

        Fanout(Options options, long seconds) {
            this.options = options;
            this.seconds = seconds;
            consumers = options.number("consumers", 1);
            messageBytes = Math.max(16, options.number("message-bytes", 1024));
            perSecond = options.number("rate-mbit", 240) * 1e6 / 8 / messageBytes;
        }

        Fanout run() throws Exception {
            String topic = createTopic(options, 1);
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < consumers; i++) {
                lanes.add(new Lane());
            }
            if (options.text("reader", "client").equals("minimal")) {
                threads.add(start("minimal", () -> MinimalReader.run(this, topic)));
            } else {
                for (Lane lane : lanes) {
                    threads.add(start("consumer", () -> consume(topic, lane)));
                }
            }
            long serverTicks = Processes.cpuTicks(options.serverPids());
            long clientTicks = Processes.cpuTicks(ProcessHandle.current().pid());
            produce(topic);
            while (System.nanoTime() < lastAppendAt + GIVE_UP_NS && failure.get() == null
                    && lanes.stream().anyMatch(lane -> lane.progress < produced)) {
                Thread.sleep(5);
            }
            serverCpu = Processes.secondsSince(serverTicks, options.serverPids());
            clientCpu = Processes.secondsSince(clientTicks, ProcessHandle.current().pid());
            stop = true;
            for (Thread thread : threads) {
                thread.join();
            }
            deleteTopic(options, topic);
            if (failure.get() != null) {
                throw new IllegalStateException("a consumer failed", failure.get());
            }
            return this;
        }

        private Thread start(String name, Body body) {
            Thread thread = new Thread(() -> {
                try {
                    body.run();
                } catch (Throwable error) {
                    failure.compareAndSet(null, error);
                }
            }, name);
            thread.start();
            return thread;
        }

        /** Sends on a fixed schedule; what is due is sent at once, so a late tick is made up for. */
        private void produce(String topic) {
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options.producer())) {
                producer.partitionsFor(topic); // metadata before the clock starts
                long begin = System.nanoTime();
                long total = (long) (perSecond * seconds);
                // At twice the planned time the rate is long missed, and the run must end.
                for (long now = begin; produced < total && now - begin < 2 * seconds * SECOND_NS; now = System.nanoTime()) {
                    long due = Math.min(total, (long) ((now - begin) / 1e9 * perSecond));
                    while (produced < due) {
                        byte[] value = new byte[messageBytes];
                        ByteBuffer.wrap(value).putLong(produced).putLong(System.nanoTime());
                        producer.send(new ProducerRecord<>(topic, 0, null, value), (metadata, error) -> {
                            if (error != null) {
                                failed.incrementAndGet();
                            }
                        });
                        produced++;
                    }
                    LockSupport.parkNanos(500_000);
                }
                lastAppendAt = System.nanoTime();
                producedSeconds = (lastAppendAt - begin) / 1e9;
                producer.flush();
            }
        }

        private void consume(String topic, Lane lane) {
            Properties properties = options.connection();
            properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
            properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
            properties.put("fetch.min.bytes", "1");
            properties.put("check.crcs", "true");
            properties.put("enable.auto.commit", "false");
            TopicPartition partition = new TopicPartition(topic, 0);
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
                consumer.assign(List.of(partition));
                consumer.seek(partition, 0);
                while (!stop) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                        ByteBuffer value = ByteBuffer.wrap(record.value());
                        lane.take(value.getLong(), value.getLong(), System.nanoTime());
                    }
                    if (lane.progress < lane.expected) {
                        lane.publish();
                    }
                }
            }
        }

        void print(Options options) {
            Histogram all = new Histogram(DELAY_NS_MAX, 3);
            long delivered = 0;
            long lost = failed.get();
            long reordered = 0;
            long lastAt = lastAppendAt;
            for (Lane lane : lanes) {
                all.add(lane.delays);
                delivered += lane.delivered;
                lost += lane.lost + produced - lane.expected;
                reordered += lane.reordered;
                lastAt = Math.max(lastAt, lane.lastAt);
            }
            double held = produced / producedSeconds / perSecond;
            boolean keepsUp = held >= 0.99 && lost == 0 && lastAt - lastAppendAt <= KEPT_UP_NS;
            double wall = (lastAt - lastAppendAt) / 1e9 + producedSeconds;
            System.out.println(json(
                    "\"peer\":\"kafka\",\"mode\":\"fanout\",\"reader\":\"%s\",\"linger_ms\":%d,\"batch_bytes\":%d,"
                            + "\"consumers\":%d,\"rate_mbit\":%d,\"message_bytes\":%d,\"duration_s\":%d,\"produced\":%d,\"delivered\":%d,\"lost\":%d,\"reordered\":%d,\"rate_held\":%.4f,"
                            + "\"delivered_gbit_s\":%.3f,\"delay_ms\":%s,\"cpu_s\":{\"server\":%.2f,\"clients\":%.2f},\"wall_s\":%.2f,"
                            + "\"last_behind_s\":%.3f,\"keeps_up\":%b",
                    options.text("reader", "client"), options.number("linger-ms", 0), options.number("batch-bytes", 131072),
                    consumers, options.number("rate-mbit", 240), messageBytes, seconds,
                    produced, delivered, lost, reordered, held, delivered * 8.0 * messageBytes / wall / 1e9, percentiles(all),
                    serverCpu, clientCpu, wall, (lastAt - lastAppendAt) / 1e9, keepsUp));
        }
    }

    private interface Body {
        void run() throws Exception;
    }

    /**
     * The least that a reader of Kafka's protocol can do: one thread, one connection for each consumer, one fetch in flight on
     * each (Fetch version 4), batches checked by CRC32C and decoded in place.
     *
     * <pre>
     * batch:  0 baseOffset i64 | 8 length i32 | 12 epoch i32 | 16 magic i8 | 17 crc u32 | 21 attributes i16 | 23 lastOffsetDelta i32
     *         27 baseTimestamp i64 | 35 maxTimestamp i64 | 43 producerId i64 | 51 producerEpoch i16 | 53 baseSequence i32
     *         57 count i32 | 61 records; length counts from 12, the checksum covers 21 to the end
     * record: length, attributes i8, timestampDelta, offsetDelta, keyLength, key, valueLength, value, headers (varints, zigzag)
     * </pre>
     */
    private static final class MinimalReader {
        private static final int FETCH_BYTES_MAX = 1 << 20;
        private static final int BATCH_HEADER = 61;
        /** Kafka's errors of a topic whose partition has not begun on its broker. */
        private static final short UNKNOWN_TOPIC = 3;
        private static final short NO_LEADER = 5;
        private static final short NOT_LEADER = 6;

        final String topic;
        final Lane lane;
        final SocketChannel channel;
        final ByteBuffer in = ByteBuffer.allocate(FETCH_BYTES_MAX + 4096);
        final CRC32C crc = new CRC32C();
        long nextOffset;

        private MinimalReader(int port, String topic, Lane lane) throws IOException {
            this.topic = topic;
            this.lane = lane;
            channel = SocketChannel.open(new InetSocketAddress("127.0.0.1", port));
            channel.socket().setTcpNoDelay(true);
        }

        static void run(Fanout fanout, String topic) throws IOException {
            try (Selector selector = Selector.open()) {
                List<MinimalReader> readers = new ArrayList<>();
                for (Lane lane : fanout.lanes) {
                    MinimalReader reader = new MinimalReader(fanout.options.number("port", 9092), topic, lane);
                    readers.add(reader);
                    reader.channel.configureBlocking(false);
                    reader.channel.register(selector, SelectionKey.OP_READ, reader);
                    reader.request();
                }
                while (!fanout.stop) {
                    selector.select(100);
                    for (SelectionKey key : selector.selectedKeys()) {
                        ((MinimalReader) key.attachment()).receive();
                    }
                    selector.selectedKeys().clear();
                }
                for (MinimalReader reader : readers) {
                    reader.channel.close();
                }
            }
        }

        private void request() throws IOException {
            byte[] name = topic.getBytes(StandardCharsets.UTF_8);
            ByteBuffer out = ByteBuffer.allocate(128 + name.length);
            out.putInt(0).putShort((short) 1).putShort((short) 4).putInt(7).putShort((short) -1); // size, Fetch, version, correlation, client
            out.putInt(-1).putInt(500).putInt(1).putInt(FETCH_BYTES_MAX).put((byte) 0); // replica, wait ms, min, max, isolation
            out.putInt(1).putShort((short) name.length).put(name);
            out.putInt(1).putInt(0).putLong(nextOffset).putInt(FETCH_BYTES_MAX);
            out.putInt(0, out.position() - 4).flip();
            while (out.hasRemaining()) {
                channel.write(out); // a hundred bytes into an empty socket buffer
            }
        }

        private void receive() throws IOException {
            if (channel.read(in) < 0) {
                throw new IOException("the broker closed a connection");
            }
            if (in.position() < 4 || in.position() < 4 + in.getInt(0)) {
                return;
            }
            in.flip();
            int names = 4 + 4 + 4 + 4; // size, correlation, throttle, topics
            int at = names + 2 + in.getShort(names) + 4 + 4; // name, partitions, partition
            short error = in.getShort(at);
            if (nextOffset == 0 && (error == UNKNOWN_TOPIC || error == NO_LEADER || error == NOT_LEADER)) {
                LockSupport.parkNanos(1_000_000); // the topic was created just now
                in.clear();
                request();
                return;
            }
            if (error != 0) {
                throw new IOException("fetch failed with Kafka error " + error);
            }
            at += 2 + 8 + 8; // error, high watermark, last stable offset
            int aborted = in.getInt(at);
            at += 4 + Math.max(aborted, 0) * 16;
            int records = at + 4;
            int end = records + in.getInt(at);
            batches(records, end);
            in.clear();
            if (lane.progress < lane.expected) {
                lane.publish();
            }
            request();
        }

        private void batches(int from, int end) throws IOException {
            while (from + BATCH_HEADER <= end) {
                int next = from + 12 + in.getInt(from + 8);
                if (next > end) {
                    return; // the broker cuts the last batch where the response is full
                }
                crc.reset();
                crc.update(in.array(), from + 21, next - from - 21);
                if ((int) crc.getValue() != in.getInt(from + 17)) {
                    throw new IOException("corrupt batch at offset " + in.getLong(from));
                }
                long baseOffset = in.getLong(from);
                long now = System.nanoTime();
                in.position(from + BATCH_HEADER);
                for (int i = in.getInt(from + 57); i > 0; i--) {
                    int length = varint();
                    int recordEnd = in.position() + length;
                    in.get();
                    varint(); // a timestamp delta of one batch fits
                    long offset = baseOffset + varint();
                    int keyLength = Math.max(varint(), 0);
                    in.position(in.position() + keyLength);
                    varint(); // the value's length
                    if (offset >= nextOffset) {
                        lane.take(in.getLong(), in.getLong(), now);
                        nextOffset = offset + 1;
                    }
                    in.position(recordEnd);
                }
                from = next;
            }
        }

        private int varint() {
            int value = 0;
            for (int shift = 0;; shift += 7) {
                byte b = in.get();
                value |= (b & 0x7f) << shift;
                if (b >= 0) {
                    return (value >>> 1) ^ -(value & 1);
                }
            }
        }
    }

    // ---- helpers ---------------------------------------------------------------------------------------------------

    private static String createTopic(Options options, int shards) throws Exception {
        String topic = "bench-" + Long.toHexString(System.nanoTime());
        try (Admin admin = Admin.create(options.connection())) {
            NewTopic wanted = new NewTopic(topic, shards, (short) options.number("replicas", 1)).configs(options.topicSettings());
            admin.createTopics(List.of(wanted)).all().get();
        }
        return topic;
    }

    private static void deleteTopic(Options options, String topic) throws Exception {
        try (Admin admin = Admin.create(options.connection())) {
            admin.deleteTopics(List.of(topic)).all().get();
        }
    }

    private static String percentiles(Histogram ns) {
        return json("\"p50\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f", ns.getValueAtPercentile(50) / 1e6,
                ns.getValueAtPercentile(99) / 1e6, ns.getValueAtPercentile(99.9) / 1e6, ns.getMaxValue() / 1e6);
    }

    private static String json(String format, Object... values) {
        return "{" + String.format(Locale.ROOT, format, values) + "}";
    }

    /** `--name value` pairs after the mode. */
    private static final class Options {
        final String mode;
        private final Map<String, String> values = new HashMap<>();

        Options(String[] args) {
            mode = args.length > 0 ? args[0] : "";
            for (int i = 1; i + 1 < args.length; i += 2) {
                if (!args[i].startsWith("--")) {
                    throw new IllegalArgumentException("expected --name value, got " + args[i]);
                }
                values.put(args[i].substring(2), args[i + 1]);
            }
        }

        String text(String name, String otherwise) {
            return values.getOrDefault(name, otherwise);
        }

        int number(String name, int otherwise) {
            return Integer.parseInt(text(name, Integer.toString(otherwise)));
        }

        long[] serverPids() {
            return Arrays.stream(text("server-pid", "0").split(",")).mapToLong(Long::parseLong).toArray();
        }

        Map<String, String> topicSettings() {
            Map<String, String> settings = new HashMap<>();
            for (String setting : text("topic", "").split(",")) {
                int at = setting.indexOf('=');
                if (at > 0) {
                    settings.put(setting.substring(0, at), setting.substring(at + 1));
                }
            }
            return settings;
        }

        Properties connection() {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", text("bootstrap", "127.0.0.1:" + number("port", 9092)));
            return properties;
        }

        Properties producer() {
            Properties properties = connection();
            properties.put("key.serializer", ByteArraySerializer.class.getName());
            properties.put("value.serializer", ByteArraySerializer.class.getName());
            properties.put("acks", "all");
            properties.put("linger.ms", text("linger-ms", "0"));
            properties.put("batch.size", text("batch-bytes", "131072"));
            properties.put("buffer.memory", text("buffer-bytes", "67108864"));
            properties.put("max.in.flight.requests.per.connection", text("requests-in-flight", "5"));
            return properties;
        }
    }

    /** CPU time of processes and all their threads, from /proc. */
    private static final class Processes {
        private static final double TICKS_PER_SECOND = 100;

        static long cpuTicks(long... pids) throws IOException {
            long ticks = 0;
            for (long pid : pids) {
                ticks += cpuTicksOf(pid);
            }
            return ticks;
        }

        private static long cpuTicksOf(long pid) throws IOException {
            if (pid == 0) {
                return 0;
            }
            String stat = Files.readString(Path.of("/proc/" + pid + "/stat"));
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            return Long.parseLong(fields[11]) + Long.parseLong(fields[12]);
        }

        static double secondsSince(long ticks, long... pids) throws IOException {
            return (cpuTicks(pids) - ticks) / TICKS_PER_SECOND;
        }
    }
}
