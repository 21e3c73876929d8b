import io.aeron.Aeron;
import io.aeron.ExclusivePublication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.agrona.IoUtil;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * A process for each consumer, with Aeron IPC: one publication, and N processes with a subscription each. A process is the program
 * READER, which has Aeron's C client (aeron-reader.c), or without one a JVM with 16 MB of heap. Ends with one JSON object on the last
 * line of standard output:
 *
 * <pre>AeronReaders [--consumers 16] [--rate-mbit 240] [--message-bytes 1024] [--duration-s 10] [--warmup-s 10] [--reader READER]</pre>
 *
 * This process holds the embedded media driver and the producer. Nothing is stored, no checksum is computed, and a subscription that
 * falls behind slows the producer. What readers count lies in a file of /dev/shm that all map:
 *
 * <pre>
 *   0  is measuring     8  is over
 *   64 + i * SLOT       the next number that is due, delivered, lost, the longest delay, then the delays' buckets
 * </pre>
 */
public final class AeronReaders {
    private static final long SECOND_NS = 1_000_000_000L;
    private static final int STREAM = 7422;
    private static final int FRAGMENTS_MAX = 64;
    private static final long GIVE_UP_NS = 10 * SECOND_NS;
    private static final long KEPT_UP_NS = SECOND_NS;

    private static final int MEASURING = 0;
    private static final int OVER = 8;
    private static final int FIRST = 64;
    private static final int BUCKETS = 64 * 64;
    private static final int EXPECTED = 0;
    private static final int DELIVERED = 8;
    private static final int LOST = 16;
    private static final int MOST = 24;
    private static final int DELAYS = 32;
    private static final int SLOT = DELAYS + 8 * BUCKETS;

    private AeronReaders() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 3 && args[0].equals("reader")) {
            read(args[1], Integer.parseInt(args[2]));
            return;
        }
        int consumers = AeronFanout.option(args, "consumers", 16);
        int rateMbit = AeronFanout.option(args, "rate-mbit", 240);
        int messageBytes = Math.max(16, AeronFanout.option(args, "message-bytes", 1024));
        int warmupS = AeronFanout.option(args, "warmup-s", 10);
        int durationS = AeronFanout.option(args, "duration-s", 10);
        int named = Arrays.asList(args).indexOf("--reader");
        List<String> program = named < 0 ? jvm() : List.of(args[named + 1]);
        String directory = "/dev/shm/tailwater-aeron-" + ProcessHandle.current().pid();
        MediaDriver.Context context = new MediaDriver.Context()
                .threadingMode(ThreadingMode.SHARED)
                .sharedIdleStrategy(AeronFanout.idle())
                .dirDeleteOnStart(true)
                .dirDeleteOnShutdown(true)
                // Hundreds of JVMs that start are slow.
                .clientLivenessTimeoutNs(60 * SECOND_NS)
                .publicationUnblockTimeoutNs(90 * SECOND_NS)
                .aeronDirectoryName(directory);
        File counts = new File(directory + "-counts");
        List<Process> readers = new ArrayList<>();
        try (MediaDriver driver = MediaDriver.launch(context);
                Aeron aeron = Aeron.connect(new Aeron.Context().aeronDirectoryName(driver.aeronDirectoryName()));
                ExclusivePublication publication = aeron.addExclusivePublication("aeron:ipc", STREAM)) {
            UnsafeBuffer shared = new UnsafeBuffer(IoUtil.mapNewFile(counts, FIRST + (long) consumers * SLOT));
            for (int i = 0; i < consumers; i++) {
                shared.putLongOrdered(FIRST + i * SLOT + EXPECTED, -1);
            }
            for (int i = 0; i < consumers; i++) {
                readers.add(start(program, directory, i));
                // A few at a time: hundreds of JVMs that start at once would time out at the driver.
                if (i % 4 == 3) {
                    awaitStarted(shared, i + 1);
                }
            }
            awaitStarted(shared, consumers);
            new Run(shared, readers, rateMbit, messageBytes).run(publication, warmupS, durationS);
        } finally {
            readers.forEach(Process::destroyForcibly);
            counts.delete();
        }
    }

    private static List<String> jvm() {
        return List.of(ProcessHandle.current().info().command().orElse("java"), "-Xmx16m", "-Xss256k", "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED", "-cp",
                System.getProperty("java.class.path"), "AeronReaders", "reader");
    }

    private static Process start(List<String> program, String directory, int number) throws IOException {
        List<String> command = new ArrayList<>(program);
        command.addAll(List.of(directory, Integer.toString(number)));
        return new ProcessBuilder(command).inheritIO().start();
    }

    private static void awaitStarted(UnsafeBuffer shared, int consumers) throws InterruptedException {
        long deadline = System.nanoTime() + 120 * SECOND_NS;
        for (int i = 0; i < consumers; i++) {
            while (shared.getLongVolatile(FIRST + i * SLOT + EXPECTED) < 0) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("reader " + i + " did not start within 120 s");
                }
                Thread.sleep(1);
            }
        }
    }

    /** One reader's process. */
    private static void read(String directory, int number) throws Exception {
        UnsafeBuffer shared = new UnsafeBuffer(IoUtil.mapExistingFile(new File(directory + "-counts"), "counts"));
        int slot = FIRST + number * SLOT;
        Aeron.Context context = new Aeron.Context().aeronDirectoryName(directory);
        try (Aeron aeron = Aeron.connect(context); Subscription subscription = aeron.addSubscription("aeron:ipc", STREAM)) {
            while (!subscription.isConnected()) {
                Thread.sleep(1);
            }
            long[] expected = {0};
            FragmentHandler handler = (buffer, offset, length, header) -> {
                long sequence = buffer.getLong(offset);
                shared.putLong(slot + LOST, shared.getLong(slot + LOST) + sequence - expected[0]);
                expected[0] = sequence + 1;
                if (shared.getLongVolatile(MEASURING) != 0) {
                    shared.putLong(slot + DELIVERED, shared.getLong(slot + DELIVERED) + 1);
                    record(shared, slot, System.nanoTime() - buffer.getLong(offset + 8));
                }
            };
            shared.putLongOrdered(slot + EXPECTED, 0);
            IdleStrategy idle = AeronFanout.idle();
            long parent = ProcessHandle.current().parent().map(ProcessHandle::pid).orElse(1L);
            long look = System.nanoTime();
            while (shared.getLongVolatile(OVER) == 0) {
                int taken = subscription.poll(handler, FRAGMENTS_MAX);
                shared.putLongOrdered(slot + EXPECTED, expected[0]);
                idle.idle(taken);
                if (System.nanoTime() - look > SECOND_NS) {
                    look = System.nanoTime();
                    if (ProcessHandle.of(parent).isEmpty()) {
                        return;
                    }
                }
            }
        }
    }

    private static void record(UnsafeBuffer shared, int slot, long delay) {
        long ns = Math.max(delay, 64);
        int high = 63 - Long.numberOfLeadingZeros(ns);
        int bucket = slot + DELAYS + 8 * (high * 64 + (int) (ns >> (high - 6)) % 64);
        shared.putLong(bucket, shared.getLong(bucket) + 1);
        shared.putLong(slot + MOST, Math.max(shared.getLong(slot + MOST), ns));
    }

    /** The producer's side of one run. */
    private record Run(UnsafeBuffer shared, List<Process> readers, int rateMbit, int messageBytes) {
        void run(ExclusivePublication publication, long warmupS, long durationS) throws Exception {
            long produced = AeronFanout.produce(publication, 0, warmupS, perSecond(), messageBytes);
            awaitAll(produced);
            shared.putLongVolatile(MEASURING, 1);
            double own = ticks(ProcessHandle.current().pid());
            double others = ticksOfReaders();
            long begin = System.nanoTime();
            long last = AeronFanout.produce(publication, produced, durationS, perSecond(), messageBytes);
            long sentAt = System.nanoTime();
            awaitAll(last);
            long end = System.nanoTime();
            double wall = (end - begin) / 1e9;
            own = (ticks(ProcessHandle.current().pid()) - own) / 100 / wall;
            others = (ticksOfReaders() - others) / 100 / wall;
            shared.putLongVolatile(OVER, 1);
            report(durationS, produced, last, (sentAt - begin) / 1e9, (end - sentAt) / 1e9, wall, own, others);
        }

        double perSecond() {
            return rateMbit * 1e6 / 8 / messageBytes;
        }

        void awaitAll(long number) throws InterruptedException {
            long deadline = System.nanoTime() + GIVE_UP_NS;
            for (int i = 0; i < readers.size(); i++) {
                while (shared.getLongVolatile(FIRST + i * SLOT + EXPECTED) < number && System.nanoTime() < deadline) {
                    Thread.sleep(1);
                }
            }
        }

        double ticksOfReaders() throws IOException {
            double all = 0;
            for (Process reader : readers) {
                all += ticks(reader.pid());
            }
            return all;
        }

        /** CPU time of a process in hundredths of a second. */
        static double ticks(long pid) throws IOException {
            String stat = Files.readString(Path.of("/proc/" + pid + "/stat"));
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            return Long.parseLong(fields[11]) + Long.parseLong(fields[12]);
        }

        void report(long durationS, long produced, long last, double producedS, double behindS, double wall, double own,
                double others) {
            long delivered = 0;
            long lost = 0;
            long most = 0;
            long[] counts = new long[BUCKETS];
            for (int i = 0; i < readers.size(); i++) {
                int slot = FIRST + i * SLOT;
                delivered += shared.getLong(slot + DELIVERED);
                lost += shared.getLong(slot + LOST) + last - shared.getLong(slot + EXPECTED);
                most = Math.max(most, shared.getLong(slot + MOST));
                for (int at = 0; at < BUCKETS; at++) {
                    counts[at] += shared.getLong(slot + DELAYS + 8 * at);
                }
            }
            double held = (last - produced) / producedS / perSecond();
            System.out.println(String.format(Locale.ROOT,
                    "{\"peer\":\"aeron-ipc\",\"mode\":\"readers\",\"consumers\":%d,\"rate_mbit\":%d,\"message_bytes\":%d,"
                            + "\"duration_s\":%d,\"produced\":%d,\"delivered\":%d,\"lost\":%d,\"rate_held\":%.4f,"
                            + "\"delivered_gbit_s\":%.3f,\"delay_ms\":{\"p50\":%.4f,\"p99\":%.4f,\"p999\":%.4f,\"max\":%.4f},"
                            + "\"cores\":{\"server\":%.3f,\"readers\":%.3f,\"producer\":0},\"last_behind_s\":%.3f,\"keeps_up\":%b}",
                    readers.size(), rateMbit, messageBytes, durationS, last - produced, delivered, lost, held,
                    delivered * 8.0 * messageBytes / wall / 1e9, atMs(counts, delivered, 0.5), atMs(counts, delivered, 0.99),
                    atMs(counts, delivered, 0.999), most / 1e6, own, others, behindS,
                    held >= 0.99 && lost == 0 && behindS <= KEPT_UP_NS / 1e9));
        }

        static double atMs(long[] counts, long total, double quantile) {
            long want = (long) (total * quantile);
            for (int i = 0; i < counts.length; i++) {
                want -= counts[i];
                if (want < 0) {
                    return ((64L + i % 64) << (i / 64 - 6)) / 1e6;
                }
            }
            return 0;
        }
    }
}
