/* Half a round trip between ranks 0 and 1, in turns with other programs on the same two cores.
 *
 *   turns --turn I --of N --start T --seconds S --rounds R --sizes BYTES,… --near NS [--fresh] [--offset BYTES]
 *
 * A host that moves its virtual cores within seconds makes launches one after the other incomparable.
 * So N of these programs, each over another stack, are launched at once, and take turns of TURN
 * seconds: who has no turn sleeps. All are at the same size at the same time: size by size for S
 * seconds, R rounds of them, from T on (seconds of CLOCK_MONOTONIC).
 *
 * Just before and just after each message the ranks hand a cache line of their own to and fro. If both
 * took less than NS nanoseconds, the two cores were near each other (a common cache), if both took longer, far;
 * a message between which they moved counts for neither. Nor does the first part of a turn, in which
 * caches are filled with what the program needs.
 *
 *   --fresh         each message is rewritten by its sender before it is sent, while no clock runs
 *   --offset BYTES  buffers begin so many bytes behind the beginning of a page
 *
 * Of each size and phase the first MOST messages of a round are kept.
 *
 * Prints a JSON object for each round, size and phase that had messages: {"round": 0, "size": 4096, "phase": "near",
 * "latency_us": 0.81, "handover_ns": 52.1, "messages": 9120}: medians of one message each.
 */
#include <mpi.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "exchange.h"

static const double TURN = 0.010;
/* A process wakes some time after it wanted to. */
static const double WAKES_IN = 0.0005;
/* What of a turn does not count. */
static const double WARMS_UP = 0.001;
/* Seconds of one hand-over: more is no place, but a core that somebody took away. */
static const double FAR = 1e-6;

enum { MOST = 1 << 18, PHASES = 2 };
static const char *const phases[PHASES] = {"near", "far"};

struct options {
    int turn, of, rounds, fresh;
    double start, seconds, near;
    size_t offset;
    const char *sizes;
};

struct lines {
    _Alignas(64) atomic_ulong to;
    _Alignas(64) atomic_ulong back;
};

/* What was measured of one size in one phase. */
struct sample {
    double *us, *ns;
    size_t count;
};

static int rank;
static struct options opt;
static struct lines *lines;
static unsigned long passed;
static struct sample samples[PHASES];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void sleep_until(double when) {
    struct timespec t = {.tv_sec = (time_t)when};
    t.tv_nsec = (long)((when - (double)t.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--fresh") == 0) opt.fresh = 1;
        else if (strcmp(name, "--turn") == 0) opt.turn = atoi(value), i++;
        else if (strcmp(name, "--of") == 0) opt.of = atoi(value), i++;
        else if (strcmp(name, "--start") == 0) opt.start = atof(value), i++;
        else if (strcmp(name, "--seconds") == 0) opt.seconds = atof(value), i++;
        else if (strcmp(name, "--rounds") == 0) opt.rounds = atoi(value), i++;
        else if (strcmp(name, "--near") == 0) opt.near = atof(value) * 1e-9, i++;
        else if (strcmp(name, "--offset") == 0) opt.offset = strtoull(value, NULL, 0), i++;
        else if (strcmp(name, "--sizes") == 0) opt.sizes = value, i++;
        else die("turns", "unknown argument (see the head of turns.c)");
    }
    if (opt.of < 1 || opt.turn < 0 || opt.turn >= opt.of || !(opt.seconds >= opt.of * TURN) || opt.rounds < 1 || !(opt.near > 0) || opt.sizes == NULL || opt.offset >= PAGE)
        die("turns", "bad or missing value of an argument (see the head of turns.c)");
}

/* Lines that both ranks map, in a file that nobody else has. */
static void share_lines(void) {
    char name[64] = "";
    int file = -1;
    if (rank == 0) {
        snprintf(name, sizeof name, "/dev/shm/rustmx-turns.XXXXXX");
        file = mkstemp(name);
        if (file < 0 || ftruncate(file, sizeof *lines) != 0) die("turns", "no file in /dev/shm");
    }
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank != 0) file = open(name, O_RDWR);
    lines = mmap(NULL, sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (lines == MAP_FAILED) die("turns", "cannot map the file in /dev/shm");
    MPI_Barrier(MPI_COMM_WORLD);
    close(file);
    if (rank == 0) unlink(name);
}

/* Seconds of one hand-over, of four; two before them, which bring the ranks into step, are not timed. Rank 0's clock counts. */
static double hand_over(void) {
    double start = 0;
    for (int i = 0; i < 3; i++) {
        if (i == 1) start = now();
        passed++;
        if (rank == 0) {
            atomic_store_explicit(&lines->to, passed, memory_order_release);
            while (atomic_load_explicit(&lines->back, memory_order_acquire) != passed) {}
        } else {
            while (atomic_load_explicit(&lines->to, memory_order_acquire) != passed) {}
            atomic_store_explicit(&lines->back, passed, memory_order_release);
        }
    }
    return (now() - start) / 4;
}

/* One round trip, and what it counts for. Returns the seconds it took. */
static double trip(struct exchange *x, size_t bytes, long number, int counts) {
    int n = (int)bytes;
    rewrite(x, x->out, bytes, number);
    MPI_Barrier(MPI_COMM_WORLD);
    double before = hand_over(), start = now();
    if (rank == 0) {
        MPI_Send(x->out, n, MPI_BYTE, 1, PING, MPI_COMM_WORLD);
        MPI_Recv(x->in, n, MPI_BYTE, 1, PING, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(x->in, n, MPI_BYTE, 0, PING, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(x->out, n, MPI_BYTE, 0, PING, MPI_COMM_WORLD);
    }
    double took = now() - start, after = hand_over();
    look(x, x->in, bytes, number);
    int phase = before < opt.near && after < opt.near ? 0 : before >= opt.near && after >= opt.near && before < FAR && after < FAR ? 1 : -1;
    if (rank == 0 && counts && phase >= 0 && samples[phase].count < MOST) {
        struct sample *s = &samples[phase];
        s->us[s->count] = took * 1e6 / 2;
        s->ns[s->count++] = (before + after) / 2 * 1e9;
    }
    return took;
}

/* All turns of this program at one size. */
static void turns_until(struct exchange *x, size_t bytes, double start, double end) {
    static long number;
    double took = 0;
    for (long k = 0;; k++) {
        double mine = start + (double)(k * opt.of + opt.turn) * TURN, over = mine + TURN - WAKES_IN;
        if (over > end) return;
        sleep_until(mine + WAKES_IN);
        /* Of the longest messages one a turn counts at least, if the next turn is not late for it. */
        int warm = took < (TURN - 2 * WAKES_IN - WARMS_UP) / 2;
        for (;;) {
            char go = now() + took < over;
            MPI_Bcast(&go, 1, MPI_CHAR, 0, MPI_COMM_WORLD);
            if (!go) break;
            double begun = now();
            trip(x, bytes, number++, !warm || begun > mine + WAKES_IN + WARMS_UP);
            took = now() - begun;
        }
    }
}

static void tell(int round, size_t bytes) {
    for (int phase = 0; phase < PHASES; phase++) {
        struct sample *s = &samples[phase];
        if (s->count > 0)
            printf("{\"round\":%d,\"size\":%zu,\"phase\":\"%s\",\"latency_us\":%.3f,\"handover_ns\":%.1f,\"messages\":%zu}\n", round, bytes,
                   phases[phase], median(s->us, s->count), median(s->ns, s->count), s->count);
        s->count = 0;
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2) die("turns", "needs exactly two ranks");
    parse(argc, argv);
    size_t sizes[64], count = 0, longest = 0;
    for (const char *at = opt.sizes; *at != 0 && count < 64; count++) {
        char *end;
        sizes[count] = strtoull(at, &end, 0);
        if (end == at || sizes[count] == 0) die("turns", "bad --sizes");
        longest = sizes[count] > longest ? sizes[count] : longest;
        at = *end == ',' ? end + 1 : end;
    }
    struct exchange x = {.program = "turns", .peer = 1 - rank, .first = rank == 0, .window = 1, .fresh = opt.fresh, .offset = opt.offset};
    open_exchange(&x, longest);
    for (int phase = 0; phase < PHASES; phase++) {
        samples[phase] = (struct sample){malloc(MOST * sizeof(double)), malloc(MOST * sizeof(double)), 0};
        if (samples[phase].us == NULL || samples[phase].ns == NULL) die("turns", "no memory");
    }
    share_lines();
    MPI_Barrier(MPI_COMM_WORLD);
    if (now() > opt.start) die("turns", "was launched too slowly: all had begun to take turns");
    for (int round = 0; round < opt.rounds; round++)
        for (size_t i = 0; i < count; i++) {
            double start = opt.start + ((double)round * (double)count + (double)i) * opt.seconds;
            /* Sorting takes the end of the time of a size, and nobody's turn. */
            turns_until(&x, sizes[i], start, start + opt.seconds * 0.95);
            tell(round, sizes[i]);
        }
    MPI_Barrier(MPI_COMM_WORLD);
    munmap(lines, sizeof *lines);
    close_exchange(&x);
    MPI_Finalize();
    return 0;
}
