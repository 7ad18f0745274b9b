/* What the machine allows, between two processes pinned to two cores.
 *
 *   limits [--handover] [--cores A,B]
 *
 *   handover  one cache line handed from one process to the other, one way, in nanoseconds: the
 *             floor under a message
 *   memcpy    what the other process wrote just before, copied out of shared memory, GB/s: the
 *             floor under a long message that is copied once; for several sizes
 *
 * Prints one JSON object: {"handover_ns": 147.1, "memcpy_gbs": {"4096": 5.2, …}}. --handover leaves
 * the copies out and takes some 50 ms. Medians of BATCHES.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "batches.h"

enum { BATCHES = 7, TURNS = 20000, MOST = 4 << 20 };

struct shared {
    _Alignas(64) atomic_ulong to;
    _Alignas(64) atomic_ulong back;
    _Alignas(64) char line[64];
    _Alignas(4096) unsigned char data[MOST];
};

static struct shared *shared;
static unsigned char own[MOST];
static unsigned long turn; /* both processes count the same turns */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) perror("limits: sched_setaffinity");
}

static void await(atomic_ulong *word, unsigned long value) {
    while (atomic_load_explicit(word, memory_order_acquire) != value) {}
}

/* The first process starts a turn and waits for its answer; the second waits and answers. */
static void pass(int first) {
    turn++;
    if (first) {
        atomic_store_explicit(&shared->to, turn, memory_order_release);
        await(&shared->back, turn);
    } else {
        await(&shared->to, turn);
        atomic_store_explicit(&shared->back, turn, memory_order_release);
    }
}

static double handover(int first) {
    double batches[BATCHES];
    for (int b = 0; b < BATCHES; b++) {
        double start = now();
        for (int i = 0; i < TURNS; i++) pass(first);
        batches[b] = (now() - start) * 1e9 / TURNS / 2;
    }
    return median(batches, BATCHES);
}

/* The second process writes, the first copies; only the copy is timed. */
static double copy(int first, size_t bytes) {
    double batches[BATCHES];
    int rounds = (int)((8 << 20) / bytes) + 2;
    for (int b = 0; b < BATCHES; b++) {
        double spent = 0;
        for (int i = 0; i < rounds; i++) {
            if (!first) memset(shared->data, b + i, bytes);
            pass(!first); /* written */
            if (first) {
                double start = now();
                memcpy(own, shared->data, bytes);
                spent += now() - start;
            }
            pass(first); /* copied */
        }
        batches[b] = spent / rounds;
    }
    return (double)bytes / median(batches, BATCHES) / 1e9;
}

int main(int argc, char **argv) {
    int cores[2] = {0, 1}, copies = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--handover") == 0) copies = 0;
        else if (strcmp(argv[i], "--cores") == 0 && i + 1 < argc && sscanf(argv[i + 1], "%d,%d", &cores[0], &cores[1]) == 2) i++;
        else {
            fprintf(stderr, "limits: unknown argument %s (see the head of limits.c)\n", argv[i]);
            return 2;
        }
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("limits: mmap");
        return 1;
    }
    pid_t child = fork();
    if (child < 0) {
        perror("limits: fork");
        return 1;
    }
    int first = child != 0;
    if (!first) prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cores[first ? 0 : 1]);
    double ns = handover(first);
    if (first) printf("{\"handover_ns\": %.1f", ns);
    if (copies) {
        static const size_t sizes[] = {4096, 65536, 1 << 20, 4 << 20};
        if (first) printf(", \"memcpy_gbs\": {");
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            double gbs = copy(first, sizes[i]);
            if (first) printf("%s\"%zu\": %.2f", i ? ", " : "", sizes[i], gbs);
        }
        if (first) printf("}");
    }
    if (!first) _exit(0);
    printf("}\n");
    int status;
    waitpid(child, &status, 0);
    return status != 0;
}
