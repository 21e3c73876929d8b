// A process for each consumer, with librdkafka: one producer, N processes that each read everything from a broker. It ends with one
// JSON object on the last line of standard output.
//
//   rdkafka-readers --bootstrap HOST:PORT [--server-pid PID] [--consumers 16] [--rate-mbit 240] [--message-bytes 1024]
//                   [--duration-s 10] [--warmup-s 5] [--linger-ms 5] [--reader client]
//
// A message carries its number and the time just before it was handed to the producer. Readers check the number and count the delay.
// They compute no checksum but librdkafka's own (check.crcs=true). Readers are forked before librdkafka starts its threads; what they
// count lies in memory that all share.

#define _GNU_SOURCE
#include <librdkafka/rdkafka.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ll
// How long after the last message a reader may end and still have kept up, and how long they are waited for.
#define KEPT_UP_NS SECOND_NS
#define GIVE_UP_NS (10 * SECOND_NS)
// A sixty-fourth of a power of two in each.
#define BUCKETS (64 * 64)

struct reader {
    _Atomic int64_t expected;
    int64_t delivered, lost, most;
    _Atomic int is_ready;
    uint32_t delays[BUCKETS];
};

struct shared {
    _Atomic int is_measuring, is_over;
    struct reader readers[];
};

static const char *bootstrap = "127.0.0.1:9092", *linger_ms = "5";
static char topic[64];

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "rdkafka-readers: %s: %s\n", what, why);
    exit(1);
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    char why[256];
    if (rd_kafka_conf_set(conf, key, value, why, sizeof why) != RD_KAFKA_CONF_OK)
        die(key, why);
}

static rd_kafka_t *client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char why[256];
    set(conf, "bootstrap.servers", bootstrap);
    rd_kafka_t *made = rd_kafka_new(type, conf, why, sizeof why);
    if (!made)
        die("client", why);
    return made;
}

static void count(struct reader *reader, int64_t delay) {
    uint64_t ns = delay < 64 ? 64 : (uint64_t)delay;
    int high = 63 - __builtin_clzll(ns);
    reader->delays[high * 64 + (ns >> (high - 6)) % 64]++;
    if ((int64_t)ns > reader->most)
        reader->most = ns;
}

// One reader's process.
static void read_all(struct shared *shared, struct reader *reader) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "group.id", "readers");
    set(conf, "enable.auto.commit", "false");
    set(conf, "check.crcs", "true");
    set(conf, "auto.offset.reset", "earliest");
    // What a reader holds ahead: half a second's worth and more, and not 64 MiB in each of hundreds.
    set(conf, "queued.max.messages.kbytes", "16384");
    rd_kafka_t *consumer = client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_topic_partition_list_t *all = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(all, topic, 0)->offset = RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_resp_err_t assigned = rd_kafka_assign(consumer, all);
    if (assigned)
        die("assign", rd_kafka_err2str(assigned));
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
    static rd_kafka_message_t *messages[4096];
    while (!shared->is_over) {
        ssize_t taken = rd_kafka_consume_batch_queue(queue, 100, messages, 4096);
        int64_t now = now_ns(), expected = reader->expected;
        for (ssize_t i = 0; i < taken; i++) {
            rd_kafka_message_t *message = messages[i];
            if (!message->err && message->len >= 16) {
                int64_t number, at;
                memcpy(&number, message->payload, 8);
                memcpy(&at, (char *)message->payload + 8, 8);
                reader->lost += number - expected;
                expected = number + 1;
                if (shared->is_measuring) {
                    reader->delivered++;
                    count(reader, now - at);
                }
                reader->is_ready = 1;
            }
            rd_kafka_message_destroy(message);
        }
        reader->expected = expected;
    }
    _exit(0);
}

// CPU time of a process in hundredths of a second; 0 if there is none.
static double ticks_of(int pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = pid ? fopen(path, "r") : NULL;
    if (!file)
        return 0;
    long user = 0, system = 0;
    if (fgets(line, sizeof line, file)) {
        char *rest = strrchr(line, ')');
        if (rest)
            sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system);
    }
    fclose(file);
    return user + system;
}

// When the last message was handed over.
static int64_t handed_at;

static int64_t produce(rd_kafka_t *producer, int64_t first, double seconds, double per_second, int bytes) {
    char *message = calloc(1, bytes);
    int64_t begin = now_ns(), total = per_second * seconds, sent = 0;
    while (sent < total && now_ns() - begin < 2 * seconds * SECOND_NS) {
        int64_t due = (now_ns() - begin) / 1e9 * per_second;
        if (due > total)
            due = total;
        while (sent < due) {
            int64_t number = first + sent, at = now_ns();
            memcpy(message, &number, 8);
            memcpy(message + 8, &at, 8);
            rd_kafka_resp_err_t refused = rd_kafka_producev(
                producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(0),
                RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_VALUE(message, bytes), RD_KAFKA_V_END);
            if (refused == RD_KAFKA_RESP_ERR__QUEUE_FULL)
                break;
            if (refused)
                die("produce", rd_kafka_err2str(refused));
            sent++;
        }
        rd_kafka_poll(producer, 0);
        usleep(500);
    }
    handed_at = now_ns();
    rd_kafka_flush(producer, 10000);
    free(message);
    return first + sent;
}

// Until all have everything below `number`; when the last one had it.
static int64_t await_all(struct shared *shared, int consumers, int64_t number) {
    int64_t deadline = now_ns() + GIVE_UP_NS;
    for (;;) {
        int i = 0;
        while (i < consumers && shared->readers[i].expected >= number)
            i++;
        if (i == consumers || now_ns() > deadline)
            return now_ns();
        usleep(1000);
    }
}

static double at_ms(const uint64_t *counts, uint64_t total, double quantile, int64_t most) {
    int64_t want = total * quantile;
    for (int i = 0; i < BUCKETS; i++) {
        want -= counts[i];
        if (want < 0)
            return (double)((64ull + i % 64) << (i / 64 - 6)) / 1e6;
    }
    return most / 1e6;
}

int main(int argc, char **argv) {
    int consumers = 16, bytes = 1024, server = 0;
    double rate_mbit = 240, duration_s = 10, warmup_s = 5;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *key = argv[i], *value = argv[i + 1];
        if (!strcmp(key, "--bootstrap")) bootstrap = value;
        else if (!strcmp(key, "--server-pid")) server = atoi(value);
        else if (!strcmp(key, "--consumers")) consumers = atoi(value);
        else if (!strcmp(key, "--rate-mbit")) rate_mbit = atof(value);
        else if (!strcmp(key, "--message-bytes")) bytes = atoi(value);
        else if (!strcmp(key, "--duration-s")) duration_s = atof(value);
        else if (!strcmp(key, "--warmup-s")) warmup_s = atof(value);
        else if (!strcmp(key, "--linger-ms")) linger_ms = value;
        else die(key, "no such option");
    }
    if (consumers < 1 || bytes < 16)
        die("options", "at least one consumer and 16 bytes");
    double per_second = rate_mbit * 1e6 / 8 / bytes;
    snprintf(topic, sizeof topic, "readers-%d", getpid());
    size_t size = sizeof(struct shared) + consumers * sizeof(struct reader);
    struct shared *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("memory", "not enough");

    // Written before anybody reads, in a process that ends: this one has no threads when it forks.
    pid_t first = fork();
    if (first == 0) {
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        rd_kafka_t *producer = client(RD_KAFKA_PRODUCER, conf);
        int64_t end = produce(producer, 0, 1, 1, bytes);
        _exit(end == 1 ? 0 : 1);
    }
    int status = 0;
    waitpid(first, &status, 0);
    if (status)
        die("topic", "the first message could not be produced");
    pid_t *pids = calloc(consumers, sizeof *pids);
    for (int i = 0; i < consumers; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            read_all(shared, &shared->readers[i]);
        // Hundreds that start at once would time out.
        usleep(20000);
    }
    int64_t started_by = now_ns() + 120 * SECOND_NS;
    for (int i = 0; i < consumers; i++)
        while (!shared->readers[i].is_ready) {
            if (now_ns() > started_by)
                die("readers", "not all of them started within 120 s");
            usleep(1000);
        }

    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "linger.ms", linger_ms);
    set(conf, "acks", "all");
    rd_kafka_t *producer = client(RD_KAFKA_PRODUCER, conf);
    int64_t produced = produce(producer, 1, warmup_s, per_second, bytes);
    await_all(shared, consumers, produced);
    shared->is_measuring = 1;
    double own = ticks_of(getpid()), of_server = ticks_of(server), of_readers = 0;
    for (int i = 0; i < consumers; i++)
        of_readers -= ticks_of(pids[i]);
    int64_t begin = now_ns();
    int64_t last = produce(producer, produced, duration_s, per_second, bytes);
    int64_t sent_at = handed_at;
    int64_t behind_ns = await_all(shared, consumers, last) - sent_at;
    double wall_s = (now_ns() - begin) / 1e9;
    own = ticks_of(getpid()) - own;
    of_server = ticks_of(server) - of_server;
    for (int i = 0; i < consumers; i++)
        of_readers += ticks_of(pids[i]);
    shared->is_over = 1;

    static uint64_t counts[BUCKETS];
    uint64_t delivered = 0;
    int64_t lost = 0, most = 0;
    for (int i = 0; i < consumers; i++) {
        struct reader *reader = &shared->readers[i];
        delivered += reader->delivered;
        lost += reader->lost + last - reader->expected;
        most = reader->most > most ? reader->most : most;
        for (int at = 0; at < BUCKETS; at++)
            counts[at] += reader->delays[at];
    }
    double held = (last - produced) / ((sent_at - begin) / 1e9) / per_second;
    printf("{\"peer\":\"librdkafka\",\"version\":\"%s\",\"mode\":\"readers\",\"consumers\":%d,\"rate_mbit\":%.0f,"
           "\"message_bytes\":%d,\"duration_s\":%.0f,\"produced\":%lld,\"delivered\":%llu,\"lost\":%lld,\"rate_held\":%.4f,"
           "\"delivered_gbit_s\":%.3f,\"delay_ms\":{\"p50\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f},"
           "\"cores\":{\"server\":%.3f,\"readers\":%.3f,\"producer\":%.3f},\"last_behind_s\":%.3f,\"keeps_up\":%s}\n",
           rd_kafka_version_str(), consumers, rate_mbit, bytes, duration_s, (long long)(last - produced),
           (unsigned long long)delivered, (long long)lost, held, delivered * 8.0 * bytes / wall_s / 1e9,
           at_ms(counts, delivered, 0.5, most), at_ms(counts, delivered, 0.99, most), at_ms(counts, delivered, 0.999, most),
           most / 1e6, of_server / 100 / wall_s, of_readers / 100 / wall_s, own / 100 / wall_s, behind_ns / 1e9,
           held >= 0.99 && lost == 0 && behind_ns <= KEPT_UP_NS ? "true" : "false");
    return 0;
}
