import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Apache's client, for the tests of ours. Each command prints lines, the last of which is "done". */
public class Ledgers {
    public static void main(String[] args) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + args[0] + "/ledgers");
        conf.setExplictLacInterval(20);
        // By default it sends 5,000 requests a second, whatever could be.
        conf.setThrottleValue(0);
        try (BookKeeper client = BookKeeper.newBuilder(conf).build()) {
            byte[] password = args[2].getBytes(UTF_8);
            switch (args[1]) {
                case "write": write(client, password, args); break;
                case "read": read(client, password, args); break;
                case "tail": tail(client, password, args); break;
                case "bench": bench(client, password, args); break;
                default: throw new IllegalArgumentException(args[1]);
            }
        }
        if (!args[1].equals("bench")) {
            System.out.println("done");
        }
        System.out.flush();
        // Some of the client's threads are no daemons.
        Runtime.getRuntime().halt(0);
    }

    /** write PASSWORD E W A DIGEST[,DIGEST...] ENTRIES close|leave|wait: a ledger for each digest. */
    private static void write(BookKeeper client, byte[] password, String[] args) throws Exception {
        for (String digest : args[6].split(",")) {
            write(client, password, DigestType.valueOf(digest), args);
        }
    }

    private static void write(BookKeeper client, byte[] password, DigestType digest, String[] args)
            throws Exception {
        int entries = Integer.parseInt(args[7]);
        WriteHandle writer = client.newCreateLedgerOp()
                .withEnsembleSize(Integer.parseInt(args[3])).withWriteQuorumSize(Integer.parseInt(args[4]))
                .withAckQuorumSize(Integer.parseInt(args[5])).withDigestType(digest)
                .withPassword(password).execute().get();
        System.out.println("ledger " + writer.getId());
        for (int entry = 0; entry < entries; entry++) {
            writer.append(("java " + entry).getBytes(UTF_8));
        }
        System.out.println("written");
        System.out.flush();
        if (args[8].equals("close")) {
            writer.close();
        } else if (args[8].equals("wait")) {
            // Until a line tells us to go on: then another append says whether we were fenced.
            System.in.read();
            try {
                writer.append("late".getBytes(UTF_8));
                System.out.println("appended");
            } catch (Exception error) {
                System.out.println("refused " + error.getClass().getSimpleName());
            }
        }
    }

    /** read PASSWORD LEDGER DIGEST recover|open */
    private static void read(BookKeeper client, byte[] password, String[] args) throws Exception {
        boolean recover = args[5].equals("recover");
        ReadHandle reader = client.newOpenLedgerOp().withLedgerId(Long.parseLong(args[3]))
                .withDigestType(DigestType.valueOf(args[4])).withPassword(password).withRecovery(recover)
                .execute().get();
        long last = recover ? reader.getLastAddConfirmed() : reader.readLastAddConfirmed();
        System.out.println("last " + last + " length " + reader.getLength() + " closed " + reader.isClosed());
        if (last >= 0) {
            try (LedgerEntries entries = reader.read(0, last)) {
                for (LedgerEntry entry : entries) {
                    System.out.println("entry " + entry.getEntryId() + " " + new String(entry.getEntryBytes(), UTF_8));
                }
            }
        }
        reader.close();
    }

    /** tail PASSWORD LEDGER DIGEST ENTRIES */
    private static void tail(BookKeeper client, byte[] password, String[] args) throws Exception {
        int wanted = Integer.parseInt(args[5]);
        ReadHandle reader = client.newOpenLedgerOp().withLedgerId(Long.parseLong(args[3]))
                .withDigestType(DigestType.valueOf(args[4])).withPassword(password).execute().get();
        System.out.println("tailing");
        System.out.flush();
        for (long next = 0; next < wanted;) {
            try (LastConfirmedAndEntry read = reader.readLastAddConfirmedAndEntry(next, 10_000, false)) {
                if (read.hasEntry()) {
                    System.out.println("entry " + next + " " + new String(read.getEntry().getEntryBytes(), UTF_8));
                    next++;
                }
            }
        }
        reader.close();
    }

    /** bench PASSWORD E W A ENTRIES BYTES IN_FLIGHT: what it measured, a line for each of two rounds, and nothing else. */
    private static void bench(BookKeeper client, byte[] password, String[] args) throws Exception {
        int entries = Integer.parseInt(args[6]);
        byte[] payload = new byte[Integer.parseInt(args[7])];
        int inFlight = Integer.parseInt(args[8]);
        WriteHandle writer = client.newCreateLedgerOp()
                .withEnsembleSize(Integer.parseInt(args[3])).withWriteQuorumSize(Integer.parseInt(args[4]))
                .withAckQuorumSize(Integer.parseInt(args[5])).withDigestType(DigestType.CRC32C)
                .withPassword(password).execute().get();
        for (int round = 0; round < 2; round++) {
            java.util.concurrent.Semaphore room = new java.util.concurrent.Semaphore(inFlight);
            long[] latencies = new long[entries];
            long cpu = cpu(), begun = System.nanoTime();
            for (int entry = 0; entry < entries; entry++) {
                room.acquire();
                long sent = System.nanoTime();
                int at = entry;
                writer.appendAsync(payload).whenComplete((id, error) -> {
                    latencies[at] = System.nanoTime() - sent;
                    room.release();
                });
            }
            room.acquire(inFlight);
            double seconds = (System.nanoTime() - begun) / 1e9, cpuSeconds = (cpu() - cpu) / 1e9;
            java.util.Arrays.sort(latencies);
            System.out.printf(java.util.Locale.ROOT,
                    "{\"entries_s\":%.0f,\"entries_cpu_s\":%.0f,\"p50_ms\":%.2f,\"p99_ms\":%.2f}%n",
                    entries / seconds, entries / cpuSeconds, latencies[entries / 2] / 1e6,
                    latencies[entries - 1 - entries / 100] / 1e6);
        }
        writer.close();
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean)
                java.lang.management.ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
