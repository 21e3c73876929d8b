/*
 * One subscription of Aeron IPC in a process of its own, with Aeron's C client: AeronReaders starts as many as it has consumers.
 *
 *     aeron-reader DIRECTORY NUMBER
 *
 * It counts in DIRECTORY-counts, a file of /dev/shm that AeronReaders.java describes, and ends when that says so, or when its
 * parent has ended.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "aeronc.h"

enum { STREAM = 7422, FRAGMENTS_MAX = 64, BUCKETS = 64 * 64 };
enum { MEASURING = 0, OVER = 8, FIRST = 64 };
enum { EXPECTED = 0, DELIVERED = 8, LOST = 16, MOST = 24, DELAYS = 32, SLOT = DELAYS + 8 * BUCKETS };

static uint8_t *counts;
static uint8_t *slot;
static int64_t expected;

static _Atomic int64_t *at(uint8_t *base, size_t offset) {
    return (_Atomic int64_t *)(base + offset);
}

/* Only this process writes its slot. */
static void add(size_t offset, int64_t value) {
    int64_t now = atomic_load_explicit(at(slot, offset), memory_order_relaxed);
    atomic_store_explicit(at(slot, offset), now + value, memory_order_relaxed);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "aeron-reader: %s: %s\n", what, aeron_errmsg());
    exit(1);
}

static void record(int64_t delay) {
    uint64_t ns = delay < 64 ? 64 : (uint64_t)delay;
    int high = 63 - __builtin_clzll(ns);
    add(DELAYS + 8 * (size_t)(high * 64 + (int)((ns >> (high - 6)) % 64)), 1);
    if ((int64_t)ns > atomic_load_explicit(at(slot, MOST), memory_order_relaxed)) {
        atomic_store_explicit(at(slot, MOST), (int64_t)ns, memory_order_relaxed);
    }
}

/* A message is its number, the time of the producer's clock, and what fills it up. */
static void on_fragment(void *clientd, const uint8_t *buffer, size_t length, aeron_header_t *header) {
    (void)clientd, (void)length, (void)header;
    int64_t head[2];
    memcpy(head, buffer, sizeof head);
    add(LOST, head[0] - expected);
    expected = head[0] + 1;
    if (atomic_load_explicit(at(counts, MEASURING), memory_order_acquire) != 0) {
        add(DELIVERED, 1);
        record(now_ns() - head[1]);
    }
}

/* As AeronFanout's: 10 spins, 20 yields, then parked from 1 us to 1 ms. */
static void idle(int taken) {
    static int spun, yielded;
    static long parked_ns = 1000;
    if (taken > 0) {
        spun = yielded = 0;
        parked_ns = 1000;
    } else if (spun < 10) {
        spun++;
    } else if (yielded < 20) {
        yielded++;
        sched_yield();
    } else {
        struct timespec park = {0, parked_ns};
        nanosleep(&park, NULL);
        parked_ns = parked_ns * 2 > 1000000 ? 1000000 : parked_ns * 2;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fputs("usage: aeron-reader DIRECTORY NUMBER\n", stderr);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char name[4096];
    snprintf(name, sizeof name, "%s-counts", argv[1]);
    int file = open(name, O_RDWR);
    struct stat stat;
    if (file < 0 || fstat(file, &stat) < 0) {
        perror(name);
        return 1;
    }
    counts = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    slot = counts + FIRST + (size_t)atoi(argv[2]) * SLOT;

    aeron_context_t *context;
    aeron_t *aeron;
    aeron_async_add_subscription_t *adding;
    aeron_subscription_t *subscription = NULL;
    if (aeron_context_init(&context) < 0 || aeron_context_set_dir(context, argv[1]) < 0 || aeron_init(&aeron, context) < 0 ||
        aeron_start(aeron) < 0) {
        fail("start");
    }
    if (aeron_async_add_subscription(&adding, aeron, "aeron:ipc", STREAM, NULL, NULL, NULL, NULL) < 0) {
        fail("subscribe");
    }
    while (subscription == NULL) {
        if (aeron_async_add_subscription_poll(&subscription, adding) < 0) {
            fail("subscribe");
        }
        usleep(1000);
    }
    while (!aeron_subscription_is_connected(subscription)) {
        usleep(1000);
    }
    atomic_store_explicit(at(slot, EXPECTED), 0, memory_order_release);
    while (atomic_load_explicit(at(counts, OVER), memory_order_acquire) == 0) {
        int taken = aeron_subscription_poll(subscription, on_fragment, NULL, FRAGMENTS_MAX);
        if (taken < 0) {
            fail("poll");
        }
        atomic_store_explicit(at(slot, EXPECTED), expected, memory_order_release);
        idle(taken);
    }
    return 0;
}
