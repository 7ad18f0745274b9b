/* Latency, bandwidth and message rate between ranks 0 and 1, swept over message sizes.
 *
 *   sweep [--min BYTES] [--max BYTES] [--window N] [--iters-scale F]
 *         [--rate] [--no-bandwidth] [--fresh] [--json]
 *
 *   latency    half the round trip of a ping-pong
 *   bandwidth  the sender keeps a window of messages (64) under way, the receiver answers each
 *              full window with one empty message
 *   --rate     windowed messages per second instead of the other two (default sizes 1 B to 1 KiB)
 *   --fresh    each message's buffer is rewritten by the sender just before it is sent, so that no
 *              message is in a cache of the receiver or mapped from before; the time for that is
 *              measured and taken off. In windows, every message has a buffer of its own and the
 *              whole window is rewritten while the clock stands.
 *   --iters-scale F  F times as many iterations (0.2: a quick look)
 *   --json     one JSON object for each size: size, latency_us, latency_min_us, bandwidth_mbs
 *              (10^6 bytes per second), bandwidth_max_mbs, or rate_mps, rate_max_mps
 *
 * Without --fresh all messages of a window leave from the same buffer and come into the same one,
 * as in other MPI benchmarks; both are written once before the clock starts.
 *
 * The iteration count of each point is chosen by a short trial, then BATCHES batches are timed; the
 * figure is the median batch, which one disturbance of the machine cannot move. The best batch is
 * given in the JSON form as well.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 5, TRIALS = 3, PING = 1, STREAM = 2, ACK = 3 };

static const double batch_seconds = 0.02; /* at --iters-scale 1 */

struct options {
    size_t min, max;
    int window, rate, bandwidth, fresh, json;
    double scale;
};

struct result {
    double median, best; /* seconds for one message */
};

static int rank;
static struct options opt = {1, 0, 64, 0, 1, 0, 0, 1.0};
static unsigned char *out, *in; /* --fresh: a slot for each message of a window */

static void die(const char *text) {
    fprintf(stderr, "sweep: %s\n", text);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--json") == 0) opt.json = 1;
        else if (strcmp(name, "--fresh") == 0) opt.fresh = 1;
        else if (strcmp(name, "--rate") == 0) opt.rate = 1;
        else if (strcmp(name, "--no-bandwidth") == 0) opt.bandwidth = 0;
        else if (strcmp(name, "--min") == 0) opt.min = strtoull(value, NULL, 0), i++;
        else if (strcmp(name, "--max") == 0) opt.max = strtoull(value, NULL, 0), i++;
        else if (strcmp(name, "--window") == 0) opt.window = atoi(value), i++;
        else if (strcmp(name, "--iters-scale") == 0) opt.scale = atof(value), i++;
        else die("unknown argument (see the head of sweep.c)");
    }
    if (opt.max == 0) opt.max = opt.rate ? 1024 : 4 << 20;
    if (opt.min == 0 || opt.max < opt.min || opt.window < 1 || opt.scale <= 0)
        die("bad value of an argument");
}

/* Writes a whole message; returns the seconds that took. */
static double rewrite(unsigned char *buffer, size_t bytes, long stamp) {
    if (!opt.fresh) return 0;
    double start = MPI_Wtime();
    memset(buffer, (int)(stamp & 0xFF), bytes);
    return MPI_Wtime() - start;
}

/* One look at both ends of a message: cheap, but a wrong or stale one does not pass for fast. */
static void look(const unsigned char *buffer, size_t bytes, long stamp) {
    unsigned char want = opt.fresh ? (unsigned char)(stamp & 0xFF) : 0x5A;
    if (buffer[0] != want || buffer[bytes - 1] != want) die("a message has wrong content");
}

static double ping_pong(size_t bytes, long iterations) {
    double writing = 0, other = 0;
    int peer = 1 - rank, n = (int)bytes;
    double start = MPI_Wtime();
    for (long i = 0; i < iterations; i++) {
        if (rank == 0) {
            writing += rewrite(out, bytes, i);
            MPI_Send(out, n, MPI_BYTE, peer, PING, MPI_COMM_WORLD);
        }
        MPI_Recv(in, n, MPI_BYTE, peer, PING, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        look(in, bytes, i);
        if (rank == 1) {
            writing += rewrite(out, bytes, i);
            MPI_Send(out, n, MPI_BYTE, peer, PING, MPI_COMM_WORLD);
        }
    }
    double seconds = MPI_Wtime() - start;
    /* The other side's writing lies in our time too. */
    MPI_Sendrecv(&writing, 1, MPI_DOUBLE, peer, ACK, &other, 1, MPI_DOUBLE, peer, ACK,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return (seconds - writing - other) / (2.0 * (double)iterations);
}

static unsigned char *slot(unsigned char *base, size_t bytes, int i) {
    return opt.fresh ? base + (size_t)i * bytes : base;
}

static double stream(size_t bytes, long iterations) {
    static MPI_Request *requests;
    if (requests == NULL) requests = malloc(sizeof *requests * (size_t)opt.window);
    long windows = (iterations + opt.window - 1) / opt.window;
    double seconds = 0;
    for (long w = 0; w < windows; w++) {
        for (int i = 0; rank == 0 && i < opt.window; i++) rewrite(slot(out, bytes, i), bytes, w);
        double start = MPI_Wtime();
        for (int i = 0; i < opt.window; i++) {
            if (rank == 0)
                MPI_Isend(slot(out, bytes, i), (int)bytes, MPI_BYTE, 1, STREAM, MPI_COMM_WORLD,
                          &requests[i]);
            else
                MPI_Irecv(slot(in, bytes, i), (int)bytes, MPI_BYTE, 0, STREAM, MPI_COMM_WORLD,
                          &requests[i]);
        }
        MPI_Waitall(opt.window, requests, MPI_STATUSES_IGNORE);
        if (rank == 0) {
            MPI_Recv(NULL, 0, MPI_BYTE, 1, ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            look(slot(in, bytes, opt.window - 1), bytes, w);
            MPI_Send(NULL, 0, MPI_BYTE, 0, ACK, MPI_COMM_WORLD);
        }
        seconds += MPI_Wtime() - start;
    }
    return seconds / ((double)windows * opt.window);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Rank 0's clock counts; the other rank only has to do as many iterations. */
static struct result measure(double (*run)(size_t, long), size_t bytes, long least) {
    double batches[BATCHES];
    /* The first trial also connects the two and maps what has to be mapped. The fastest counts: a
     * disturbed one would give too few iterations. */
    double trial = run(bytes, least);
    for (int i = 0; i < TRIALS; i++) {
        double again = run(bytes, least);
        if (again < trial) trial = again;
    }
    double per_message = run == ping_pong ? 2 * trial : trial;
    long iterations = (long)(batch_seconds * opt.scale / (per_message > 1e-9 ? per_message : 1e-9));
    if (iterations < least) iterations = least;
    MPI_Bcast(&iterations, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    for (int i = 0; i < BATCHES; i++) batches[i] = run(bytes, iterations);
    qsort(batches, BATCHES, sizeof batches[0], ascending);
    return (struct result){batches[BATCHES / 2], batches[0]};
}

static void print_rate(size_t bytes, struct result r) {
    if (opt.json)
        printf("{\"size\":%zu,\"rate_mps\":%.0f,\"rate_max_mps\":%.0f}\n", bytes, 1 / r.median,
               1 / r.best);
    else
        printf("%10zu %14.0f\n", bytes, 1 / r.median);
}

static void print_pair(size_t bytes, struct result latency, struct result each) {
    double us = latency.median * 1e6, mbs = opt.bandwidth ? (double)bytes / each.median / 1e6 : 0;
    if (!opt.json) {
        printf("%10zu %12.2f %12.1f\n", bytes, us, mbs);
        return;
    }
    printf("{\"size\":%zu,\"latency_us\":%.3f,\"latency_min_us\":%.3f", bytes, us,
           latency.best * 1e6);
    if (opt.bandwidth)
        printf(",\"bandwidth_mbs\":%.1f,\"bandwidth_max_mbs\":%.1f", mbs,
               (double)bytes / each.best / 1e6);
    printf("}\n");
}

static void sweep(void) {
    if (rank == 0 && !opt.json)
        printf(opt.rate ? "%10s %14s\n" : "%10s %12s %12s\n", "bytes",
               opt.rate ? "messages/s" : "latency us", "MB/s");
    for (size_t bytes = opt.min; bytes <= opt.max; bytes *= 2) {
        struct result latency = {0, 0}, each = {0, 0};
        if (!opt.rate) latency = measure(ping_pong, bytes, 3);
        if (opt.rate || opt.bandwidth) each = measure(stream, bytes, opt.window);
        if (rank != 0) continue;
        if (opt.rate)
            print_rate(bytes, each);
        else
            print_pair(bytes, latency, each);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2) die("needs exactly two ranks");
    parse(argc, argv);
    size_t room = opt.max * (size_t)(opt.fresh ? opt.window : 1);
    /* Huge alignment would flatter one transport; a page is what programs usually get. */
    if (posix_memalign((void **)&out, 4096, room) != 0 || posix_memalign((void **)&in, 4096, room) != 0)
        die("no memory");
    memset(out, 0x5A, room);
    memset(in, 0, room);
    sweep();
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
