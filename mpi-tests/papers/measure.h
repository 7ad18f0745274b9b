/* What the programs of this folder share: a clock, two cores, and how a figure is told.
 *
 * A program measures all variants of something once, in turn, and prints one JSON object for each point:
 * {"figure": …, "series": …, "x": …, "value": …}. run.sh runs it once a round and takes medians over
 * the rounds. What cannot be measured here is told as {"figure": …, "series": …, "missing": why}.
 * Every program knows one option, --quick: fewer sizes and turns, to see that it works.
 */
#ifndef RUSTMX_MEASURE_H
#define RUSTMX_MEASURE_H

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../bench/batches.h"

enum { PAGE = 4096, LINE = 64 };

static int quick;
static int cores[2]; /* the first and the last that this process may use */

static inline double now(void) { /* nanoseconds */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline void begin(int argc, char **argv) {
    cpu_set_t set;
    if (argc > 1 && strcmp(argv[1], "--quick") == 0) quick = 1;
    else if (argc > 1) fprintf(stderr, "%s: the only option is --quick\n", argv[0]), exit(2);
    if (sched_getaffinity(0, sizeof set, &set) != 0) die("sched_getaffinity");
    cores[0] = cores[1] = -1;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set)) {
            if (cores[0] < 0) cores[0] = i;
            cores[1] = i;
        }
    if (cores[0] == cores[1]) fprintf(stderr, "%s: needs two cores\n", argv[0]), exit(1);
    setvbuf(stdout, NULL, _IOLBF, 0);
}

/* Pins the calling thread. */
static inline void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) die("sched_setaffinity");
}

static inline void point(const char *figure, const char *series, double x, double value) {
    printf("{\"figure\": \"%s\", \"series\": \"%s\", \"x\": %.10g, \"value\": %.10g}\n", figure, series, x, value);
}

static inline void missing(const char *figure, const char *series, const char *why) {
    printf("{\"figure\": \"%s\", \"series\": \"%s\", \"missing\": \"%s\"}\n", figure, series, why);
}

static inline void *memory(size_t bytes, int flags) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    memset(at, 1, bytes);
    return at;
}

/* Starts a second process, on the second core, that lives as long as this one; 0 in the second. */
static inline pid_t second(void) {
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cores[child == 0]);
    return child;
}

/* Spins until a word that somebody else writes has this value. */
static inline void await(atomic_ulong *word, unsigned long value) {
    while (atomic_load_explicit(word, memory_order_acquire) != value) {}
}

static inline void set(atomic_ulong *word, unsigned long value) {
    atomic_store_explicit(word, value, memory_order_release);
}

/* A copy that the compiler leaves where it is. */
static inline void copy(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    __asm__ volatile("" ::: "memory");
}

#endif
