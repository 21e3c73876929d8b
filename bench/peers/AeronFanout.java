import io.aeron.Aeron;
import io.aeron.ExclusivePublication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.agrona.concurrent.BackoffIdleStrategy;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * Fans one Aeron IPC publication out to N subscriptions and ends with one JSON object on the last line of standard output:
 *
 * <pre>AeronFanout [--consumers 256] [--rate-mbit 240] [--message-bytes 1024] [--duration-s 10] [--warmup-s 10]</pre>
 *
 * One process holds the embedded media driver, the producer's thread and one thread that polls all subscriptions. That is the
 * least Aeron can cost, and less than separate processes would. Nothing is stored: Aeron IPC is no log, and a subscription that
 * falls behind slows the producer. A message carries its number and the time just before it was offered; subscriptions check the
 * number. Aeron has no checksum over IPC and none is computed.
 */
public final class AeronFanout {
    private static final long SECOND_NS = 1_000_000_000L;
    private static final int STREAM = 7421;
    /** Fragments one subscription takes in one turn. */
    private static final int FRAGMENTS_MAX = 64;
    /** How long subscriptions are waited for after the last message. */
    private static final long GIVE_UP_NS = 10 * SECOND_NS;
    /** How long after the last message a subscription may end and still have kept up. */
    private static final long KEPT_UP_NS = SECOND_NS;

    private final int consumers;
    private final int messageBytes;
    private final double perSecond;
    private final Lane[] lanes;
    private final Delays delays = new Delays();
    private volatile boolean stop;
    private volatile boolean measuring;
    private volatile long slowest;
    private volatile long lastAt;

    private AeronFanout(int consumers, int rateMbit, int messageBytes) {
        this.consumers = consumers;
        this.messageBytes = Math.max(16, messageBytes);
        perSecond = rateMbit * 1e6 / 8 / this.messageBytes;
        lanes = new Lane[consumers];
    }

    public static void main(String[] args) throws Exception {
        int consumers = option(args, "consumers", 256);
        int rateMbit = option(args, "rate-mbit", 240);
        AeronFanout fanout = new AeronFanout(consumers, rateMbit, option(args, "message-bytes", 1024));
        MediaDriver.Context context = new MediaDriver.Context()
                .threadingMode(ThreadingMode.SHARED)
                .sharedIdleStrategy(idle())
                .dirDeleteOnStart(true)
                .dirDeleteOnShutdown(true)
                .aeronDirectoryName("/dev/shm/tailwater-aeron-" + ProcessHandle.current().pid());
        try (MediaDriver driver = MediaDriver.launch(context);
                Aeron aeron = Aeron.connect(new Aeron.Context().aeronDirectoryName(driver.aeronDirectoryName()))) {
            fanout.run(aeron, rateMbit, option(args, "warmup-s", 10), option(args, "duration-s", 10));
        }
    }

    static int option(String[] args, String name, int otherwise) {
        int at = Arrays.asList(args).indexOf("--" + name);
        return at < 0 ? otherwise : Integer.parseInt(args[at + 1]);
    }

    /** Spins a little, yields a little, then sleeps for up to a millisecond: Aeron's own choice where cores are shared. */
    static IdleStrategy idle() {
        return new BackoffIdleStrategy(10, 20, TimeUnit.MICROSECONDS.toNanos(1), TimeUnit.MILLISECONDS.toNanos(1));
    }

    private void run(Aeron aeron, int rateMbit, long warmupS, long durationS) throws Exception {
        List<Subscription> subscriptions = new ArrayList<>();
        for (int i = 0; i < consumers; i++) {
            lanes[i] = new Lane();
            subscriptions.add(aeron.addSubscription("aeron:ipc", STREAM));
        }
        try (ExclusivePublication publication = aeron.addExclusivePublication("aeron:ipc", STREAM)) {
            for (Subscription subscription : subscriptions) {
                while (!subscription.isConnected()) {
                    Thread.sleep(1);
                }
            }
            Thread poller = new Thread(() -> poll(subscriptions), "poller");
            poller.start();

            long produced = produce(publication, 0, warmupS, perSecond, messageBytes);
            awaitAll(produced);
            for (Lane lane : lanes) {
                lane.delivered = 0;
            }
            measuring = true;
            long ticks = cpuTicks();
            long begin = System.nanoTime();
            long last = produce(publication, produced, durationS, perSecond, messageBytes);
            long lastSentAt = System.nanoTime();
            awaitAll(last);
            long cpu = cpuTicks() - ticks;
            stop = true;
            poller.join();
            report(rateMbit, durationS, last - produced, last, (lastSentAt - begin) / 1e9,
                    Math.max(0, lastAt - lastSentAt), cpu / 100.0);
        }
        subscriptions.forEach(Subscription::close);
    }

    private void poll(List<Subscription> subscriptions) {
        IdleStrategy idle = idle();
        while (!stop) {
            int taken = 0;
            for (int i = 0; i < consumers; i++) {
                taken += subscriptions.get(i).poll(lanes[i].handler, FRAGMENTS_MAX);
            }
            if (taken > 0) {
                long least = Long.MAX_VALUE;
                for (Lane lane : lanes) {
                    least = Math.min(least, lane.expected);
                }
                lastAt = System.nanoTime();
                slowest = least;
            }
            idle.idle(taken);
        }
    }

    /** Sends messages `first..` on a fixed schedule; what is due is sent at once. Answers the number after the last. */
    static long produce(ExclusivePublication publication, long first, long seconds, double perSecond, int messageBytes) {
        UnsafeBuffer message = new UnsafeBuffer(new byte[messageBytes]);
        long total = (long) (perSecond * seconds);
        long begin = System.nanoTime();
        long sent = 0;
        while (sent < total && System.nanoTime() - begin < 2 * seconds * SECOND_NS) {
            long due = Math.min(total, (long) ((System.nanoTime() - begin) / 1e9 * perSecond));
            while (sent < due) {
                message.putLong(0, first + sent);
                message.putLong(8, System.nanoTime());
                long result = publication.offer(message);
                if (result > 0) {
                    sent++;
                } else if (result == ExclusivePublication.CLOSED || result == ExclusivePublication.MAX_POSITION_EXCEEDED) {
                    throw new IllegalStateException("publication answers " + result);
                } else {
                    break; // back pressure
                }
            }
            LockSupport.parkNanos(100_000);
        }
        return first + sent;
    }

    private void awaitAll(long number) throws InterruptedException {
        long deadline = System.nanoTime() + GIVE_UP_NS;
        while (slowest < number && System.nanoTime() < deadline) {
            Thread.sleep(1);
        }
    }

    private void report(int rateMbit, long durationS, long produced, long last, double producedS, long behindNs, double cpuS) {
        long delivered = 0;
        long lost = 0;
        for (Lane lane : lanes) {
            delivered += lane.delivered;
            lost += lane.lost + last - lane.expected;
        }
        double wall = producedS + behindNs / 1e9;
        double held = produced / producedS / perSecond;
        System.out.println(String.format(Locale.ROOT,
                "{\"peer\":\"aeron-ipc\",\"mode\":\"fanout\",\"consumers\":%d,\"rate_mbit\":%d,\"message_bytes\":%d,\"duration_s\":%d,"
                        + "\"produced\":%d,\"delivered\":%d,\"lost\":%d,\"rate_held\":%.4f,\"delivered_per_s\":%.0f,\"delivered_gbit_s\":%.3f,"
                        + "\"delay_ms\":{\"p50\":%.4f,\"p99\":%.4f,\"p999\":%.4f,\"max\":%.4f},\"cpu_s\":{\"all\":%.2f},\"cores\":%.3f,"
                        + "\"wall_s\":%.2f,\"last_behind_s\":%.3f,\"keeps_up\":%b}",
                consumers, rateMbit, messageBytes, durationS, produced, delivered, lost, held, delivered / wall,
                delivered * 8.0 * messageBytes / wall / 1e9, delays.atMs(0.5), delays.atMs(0.99), delays.atMs(0.999),
                delays.most / 1e6, cpuS, cpuS / wall, wall, behindNs / 1e9,
                held >= 0.99 && lost == 0 && behindNs <= KEPT_UP_NS));
    }

    /** CPU time of this process in hundredths of a second. */
    private static long cpuTicks() throws Exception {
        String stat = Files.readString(Path.of("/proc/self/stat"));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return Long.parseLong(fields[11]) + Long.parseLong(fields[12]);
    }

    /** One subscription's position; touched by the poller alone, but between warm-up and measurement, when nothing is sent. */
    private final class Lane {
        long expected;
        long delivered;
        long lost;
        final FragmentHandler handler = (buffer, offset, length, header) -> {
            long number = buffer.getLong(offset);
            lost += number - expected; // Aeron keeps the order, so this is a gap or 0
            expected = number + 1;
            delivered++;
            if (measuring) {
                delays.record(System.nanoTime() - buffer.getLong(offset + 8));
            }
        };
    }

    /** Delays in buckets of a sixty-fourth of a power of two. */
    private static final class Delays {
        final long[] counts = new long[64 * 64];
        long total;
        long most;

        void record(long delay) {
            long ns = Math.max(delay, 64);
            int high = 63 - Long.numberOfLeadingZeros(ns);
            counts[high * 64 + (int) (ns >> (high - 6)) % 64]++;
            total++;
            most = Math.max(most, ns);
        }

        double atMs(double quantile) {
            long want = (long) (total * quantile);
            for (int i = 0; i < counts.length; i++) {
                want -= counts[i];
                if (want < 0) {
                    return ((64L + i % 64) << (i / 64 - 6)) / 1e6;
                }
            }
            return most / 1e6;
        }
    }
}
