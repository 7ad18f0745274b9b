/* The least that a message of a process takes to another one and back: plain loops without matching, protocols or MPI, two
 * processes pinned to two cores. What no message-passing library on them can undercut by much.
 *
 *   loops [--fresh] [--min BYTES] [--max BYTES] [--cores A,B]
 *
 *   --fresh  the sender rewrites each message before it is sent; that is left out of the time
 *
 * Ways of a message, of which the quickest is told:
 *   bounce    by memory that both share, in steps of 8, 16 or 32 KiB: the sender copies in, the receiver out behind it. Who answers
 *             uses the same memory, which it has just read.
 *   kernel    process_vm_readv by the receiver alone, or the receiver reads a half while the sender writes the other one; not where
 *             the kernel forbids it
 *   mapped    the same two out of buffers that both have mapped, by memcpy
 *
 * Prints a JSON object for each size: {"size": 65536, "private_us": 1.05, "private_way": "bounce, steps of 16384", "mapped_us": 0.62,
 * "mapped_way": "mapped, both"}; private: the quickest of bounce and kernel, mapped: of all. Half a round trip in microseconds.
 * Medians of BATCHES.
 */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "batches.h"

enum { BATCHES = 7, LEAST_TURNS = 4, ROOM = 512 << 10, MOST = 32 << 20 };
static const double batch_seconds = 2e-3;

/* Words on lines of their own. Each counts up, and is written by one process. */
struct words {
    _Alignas(64) atomic_ulong written; /* bytes of all messages of this process that are there */
    _Alignas(64) atomic_ulong taken;   /* of all messages to it, those that it has copied out */
    _Alignas(64) atomic_ulong begun;   /* messages of which the other one may copy */
    _Alignas(64) atomic_ulong helped;  /* messages of which it has copied its half */
    _Alignas(64) _Atomic double aside; /* seconds that its rewriting took */
    _Alignas(64) atomic_int forbidden; /* it may not reach the other one's memory */
};

struct shared {
    struct words of[2];
    _Alignas(4096) unsigned char room[ROOM];
    _Alignas(4096) unsigned char out[2][MOST];
    _Alignas(4096) unsigned char in[2][MOST];
};

enum by { BOUNCE, KERNEL, MAPPED };

struct way {
    enum by by;
    size_t step; /* of bounce; of the others: whether both copy */
    const char *name;
};

static const struct way ways[] = {
    {BOUNCE, 8 << 10, "bounce, steps of 8192"}, {BOUNCE, 16 << 10, "bounce, steps of 16384"}, {BOUNCE, 32 << 10, "bounce, steps of 32768"},
    {KERNEL, 0, "kernel, alone"},               {KERNEL, 1, "kernel, both"},
    {MAPPED, 0, "mapped, alone"},               {MAPPED, 1, "mapped, both"},
};
enum { WAYS = sizeof ways / sizeof *ways, PRIVATE_WAYS = 5 };

static struct shared *shared;
static pid_t pids[2];
static int me, fresh;
/* What both sides have counted of each one's messages so far. */
static unsigned long bytes_of[2], messages_of[2];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) perror("loops: sched_setaffinity");
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* The second process ends before the first one only if it failed; the second one dies with the first. */
static void ended(int signal) {
    (void)signal;
    int status;
    if (waitpid(pids[1], &status, WNOHANG) == pids[1] && status != 0) _exit(1);
}

static unsigned long await(atomic_ulong *word, unsigned long least) {
    unsigned long value;
    while ((value = atomic_load_explicit(word, memory_order_acquire)) < least) {}
    return value;
}

static void tell(atomic_ulong *word, unsigned long value) { atomic_store_explicit(word, value, memory_order_release); }

static size_t min(size_t a, size_t b) { return a < b ? a : b; }

/* One copy of a part by the kernel: to `to`, out of `from`; the remote one of the two is in the other process. */
static void by_kernel(int writes, unsigned char *to, unsigned char *from, size_t bytes) {
    struct iovec dst = {to, bytes}, src = {from, bytes};
    ssize_t done = bytes == 0 ? 0
                   : writes   ? process_vm_writev(pids[!me], &src, 1, &dst, 1, 0)
                              : process_vm_readv(pids[!me], &dst, 1, &src, 1, 0);
    if (done != (ssize_t)bytes) fail("loops: process_vm_readv");
}

static void send_by(const struct way *way, size_t bytes) {
    struct words *own = &shared->of[me], *its = &shared->of[!me];
    unsigned char *out = shared->out[me], *in = shared->in[!me];
    if (way->by == BOUNCE) {
        for (size_t at = 0; at < bytes;) {
            size_t there = at % ROOM, part = min(min(way->step, bytes - at), ROOM - there);
            if (at + part > ROOM) await(&its->taken, bytes_of[me] + at + part - ROOM);
            memcpy(shared->room + there, out + at, part);
            at += part;
            tell(&own->written, bytes_of[me] + at);
        }
    } else {
        tell(&own->begun, messages_of[me] + 1);
        size_t half = way->step ? bytes / 2 : bytes;
        if (way->step && way->by == KERNEL) by_kernel(1, in + half, out + half, bytes - half);
        if (way->step && way->by == MAPPED) memcpy(in + half, out + half, bytes - half);
        if (way->step) tell(&own->helped, messages_of[me] + 1);
        /* Its buffer is the sender's again when the message is there. */
        await(&its->taken, bytes_of[me] + bytes);
    }
}

static void receive_by(const struct way *way, size_t bytes) {
    struct words *own = &shared->of[me], *its = &shared->of[!me];
    unsigned char *out = shared->out[!me], *in = shared->in[me];
    if (way->by == BOUNCE) {
        for (size_t at = 0; at < bytes;) {
            size_t end = min(await(&its->written, bytes_of[!me] + at + 1) - bytes_of[!me], bytes);
            while (at < end) {
                size_t there = at % ROOM, part = min(min(way->step, end - at), ROOM - there);
                memcpy(in + at, shared->room + there, part);
                at += part;
                /* Who never waits for room is not told. */
                if (bytes > ROOM) tell(&own->taken, bytes_of[!me] + at);
            }
        }
    } else {
        await(&its->begun, messages_of[!me] + 1);
        size_t half = way->step ? bytes / 2 : bytes;
        if (way->by == KERNEL) by_kernel(0, in, out, half);
        else memcpy(in, out, half);
        if (way->step) await(&its->helped, messages_of[!me] + 1);
        tell(&own->taken, bytes_of[!me] + bytes);
    }
}

/* One message from one of the two to the other one. */
static void pass(int from, const struct way *way, size_t bytes, int stamp) {
    if (me == from) {
        if (fresh) {
            double start = now();
            memset(shared->out[me], stamp, bytes);
            shared->of[me].aside = shared->of[me].aside + now() - start;
        }
        send_by(way, bytes);
    } else {
        receive_by(way, bytes);
        if (fresh && (shared->in[me][0] != (unsigned char)stamp || shared->in[me][bytes - 1] != (unsigned char)stamp)) {
            fprintf(stderr, "loops: a message by %s has wrong content\n", way->name);
            exit(1);
        }
    }
    bytes_of[from] += bytes;
    messages_of[from]++;
}

/* Seconds of half a turn. */
static double turns(const struct way *way, size_t bytes, long count) {
    double aside = shared->of[0].aside + shared->of[1].aside, start = now();
    for (long i = 0; i < count; i++) {
        pass(0, way, bytes, (int)(2 * i));
        pass(1, way, bytes, (int)(2 * i + 1));
    }
    double spent = now() - start;
    aside = shared->of[0].aside + shared->of[1].aside - aside;
    return (spent - aside) / (double)count / 2;
}

/* Both sides begin at the same time. Counts as a message of each. */
static void meet(void) {
    tell(&shared->of[me].begun, (messages_of[me] += 1));
    await(&shared->of[!me].begun, (messages_of[!me] += 1));
}

/* Whether both may have the kernel copy. */
static int may_copy(void) {
    unsigned char byte;
    struct iovec to = {&byte, 1}, from = {shared->room, 1};
    /* Yama lets only a parent look into its child, unless that is allowed. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    meet();
    shared->of[me].forbidden = process_vm_readv(pids[!me], &to, 1, &from, 1, 0) != 1;
    meet();
    return !shared->of[0].forbidden && !shared->of[1].forbidden;
}

static double median_of(const struct way *way, size_t bytes) {
    double batches[BATCHES];
    /* Both must count the same turns: a number that follows from the size, 10 GB/s and a microsecond. */
    long count = (long)(batch_seconds / (2e-6 + (double)bytes / 1e10)) + LEAST_TURNS;
    for (int b = 0; b < BATCHES; b++) {
        meet();
        batches[b] = turns(way, bytes, count);
    }
    return median(batches, BATCHES);
}

int main(int argc, char **argv) {
    int cores[2] = {0, 1};
    size_t first = 1024, last = 4 << 20;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--fresh") == 0) fresh = 1;
        else if (strcmp(argv[i], "--min") == 0) first = strtoull(value, NULL, 0), i++;
        else if (strcmp(argv[i], "--max") == 0) last = strtoull(value, NULL, 0), i++;
        else if (strcmp(argv[i], "--cores") == 0 && sscanf(value, "%d,%d", &cores[0], &cores[1]) == 2) i++;
        else {
            fprintf(stderr, "loops: unknown argument %s (see the head of loops.c)\n", argv[i]);
            return 2;
        }
    }
    if (first == 0 || last > MOST) {
        fprintf(stderr, "loops: sizes go from 1 to %d\n", MOST);
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("loops: mmap");
    pids[0] = getpid();
    signal(SIGCHLD, ended);
    pids[1] = fork();
    if (pids[1] < 0) fail("loops: fork");
    me = pids[1] == 0;
    if (me) prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cores[me]);
    int kernel = may_copy();
    for (size_t bytes = first; bytes <= last; bytes *= 2) {
        double best[2] = {0, 0};
        const char *name[2] = {"", ""};
        for (int w = 0; w < WAYS; w++) {
            if (ways[w].by == KERNEL && !kernel) continue;
            double seconds = median_of(&ways[w], bytes);
            for (int any = w >= PRIVATE_WAYS; any < 2; any++)
                if (best[any] == 0 || seconds < best[any]) best[any] = seconds, name[any] = ways[w].name;
        }
        if (me) continue;
        printf("{\"size\": %zu, \"private_us\": %.3f, \"private_way\": \"%s\", \"mapped_us\": %.3f, \"mapped_way\": \"%s\"}\n", bytes,
               best[0] * 1e6, name[0], best[1] * 1e6, name[1]);
        fflush(stdout);
    }
    return 0;
}
