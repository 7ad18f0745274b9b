/* Latency, bandwidth and message rate between ranks 0 and 1, swept over message sizes.
 *
 *   sweep [--min BYTES] [--max BYTES] [--window N] [--iters-scale F]
 *         [--rate] [--no-bandwidth] [--fresh] [--offset BYTES] [--json]
 *
 *   latency    half the round trip of a ping-pong
 *   bandwidth  the sender keeps a window of messages (64) under way, the receiver answers each
 *              full window with one empty message
 *   --rate     windowed messages per second instead of the other two (default sizes 1 B to 1 KiB)
 *   --fresh    each message's buffer is rewritten by the sender just before it is sent, so that no
 *              message is in a cache of the receiver or mapped from before; the time for that is
 *              measured and taken off. In windows, every message has a buffer of its own and the
 *              whole window is rewritten while the clock stands.
 *   --offset BYTES  buffers begin so many bytes behind the beginning of a page: 16 is where long
 *              blocks of glibc's malloc begin (0 unless told)
 *   --iters-scale F  F times as many iterations (0.2: a quick look)
 *   --json     one JSON object for each size: size, latency_us, latency_min_us, bandwidth_mbs
 *              (10^6 bytes per second), bandwidth_max_mbs, or rate_mps, rate_max_mps
 *
 * The exchanges are those of exchange.h. The iteration count of each point is chosen by a short trial, then BATCHES batches are timed; the
 * figure is the median batch, which one disturbance of the machine cannot move. The best batch is
 * given in the JSON form as well.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"

static const double batch_seconds = 0.02; /* at --iters-scale 1 */

struct options {
    size_t min, max, offset;
    int window, rate, bandwidth, fresh, json;
    double scale;
};

static int rank;
static struct options opt = {1, 0, 0, 64, 0, 1, 0, 0, 1.0};

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--json") == 0) opt.json = 1;
        else if (strcmp(name, "--fresh") == 0) opt.fresh = 1;
        else if (strcmp(name, "--rate") == 0) opt.rate = 1;
        else if (strcmp(name, "--no-bandwidth") == 0) opt.bandwidth = 0;
        else if (strcmp(name, "--min") == 0) opt.min = strtoull(value, NULL, 0), i++;
        else if (strcmp(name, "--max") == 0) opt.max = strtoull(value, NULL, 0), i++;
        else if (strcmp(name, "--offset") == 0) opt.offset = strtoull(value, NULL, 0), i++;
        else if (strcmp(name, "--window") == 0) opt.window = atoi(value), i++;
        else if (strcmp(name, "--iters-scale") == 0) opt.scale = atof(value), i++;
        else die("sweep", "unknown argument (see the head of sweep.c)");
    }
    if (opt.max == 0) opt.max = opt.rate ? 1024 : 4 << 20;
    if (opt.min == 0 || opt.max < opt.min || opt.offset >= PAGE || opt.window < 1 || opt.scale <= 0)
        die("sweep", "bad value of an argument");
}

static void print_rate(size_t bytes, struct timing t) {
    if (opt.json)
        printf("{\"size\":%zu,\"rate_mps\":%.0f,\"rate_max_mps\":%.0f}\n", bytes, opt.window / t.median, opt.window / t.best);
    else
        printf("%10zu %14.0f\n", bytes, opt.window / t.median);
}

static void print_pair(size_t bytes, struct timing trip, struct timing window) {
    double us = trip.median * 1e6 / 2, all = (double)bytes * opt.window / 1e6;
    if (!opt.json) {
        printf("%10zu %12.2f %12.1f\n", bytes, us, opt.bandwidth ? all / window.median : 0);
        return;
    }
    printf("{\"size\":%zu,\"latency_us\":%.3f,\"latency_min_us\":%.3f", bytes, us, trip.best * 1e6 / 2);
    if (opt.bandwidth)
        printf(",\"bandwidth_mbs\":%.4f,\"bandwidth_max_mbs\":%.4f", all / window.median, all / window.best);
    printf("}\n");
}

static void sweep(struct exchange *x) {
    double seconds = batch_seconds * opt.scale;
    if (rank == 0 && !opt.json)
        printf(opt.rate ? "%10s %14s\n" : "%10s %12s %12s\n", "bytes",
               opt.rate ? "messages/s" : "latency us", "MB/s");
    for (size_t bytes = opt.min; bytes <= opt.max; bytes *= 2) {
        struct timing trip = {0}, window = {0};
        if (!opt.rate) trip = measure(ping_pong, x, bytes, seconds, 3, 0);
        if (opt.rate || opt.bandwidth) window = measure(stream, x, bytes, seconds, 1, 0);
        if (rank != 0) continue;
        if (opt.rate)
            print_rate(bytes, window);
        else
            print_pair(bytes, trip, window);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2) die("sweep", "needs exactly two ranks");
    parse(argc, argv);
    struct exchange x = {.program = "sweep", .peer = 1 - rank, .first = rank == 0, .window = opt.window, .fresh = opt.fresh,
                         .offset = opt.offset};
    open_exchange(&x, opt.max);
    sweep(&x);
    close_exchange(&x);
    MPI_Finalize();
    return 0;
}
