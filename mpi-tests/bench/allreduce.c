/* Small allreduces by any number of ranks, meant for more ranks than cores.
 *
 *   allreduce [--bytes N] [--seconds F]
 *
 * Sums doubles (8 bytes: one) over all ranks, verifies each result, and prints one JSON object:
 * ranks, bytes, latency_us (the median of BATCHES batches on rank 0), latency_min_us.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batches.h"

enum { BATCHES = 7, LEAST = 5, MOST = 20000 };

static int rank, ranks;
static double *in, *out;

static void die(const char *text) {
    fprintf(stderr, "allreduce: %s\n", text);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static double run(int count, long turns) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < turns; i++) {
        in[0] = (double)(rank + i);
        MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (out[0] != (double)ranks * (double)(ranks - 1) / 2 + (double)ranks * (double)i) die("wrong sum");
    }
    return (MPI_Wtime() - start) / (double)turns;
}

int main(int argc, char **argv) {
    long bytes = 8;
    double seconds = 1, batches[BATCHES];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--bytes") == 0) bytes = atol(value), i++;
        else if (strcmp(argv[i], "--seconds") == 0) seconds = atof(value), i++;
        else die("unknown argument (see the head of allreduce.c)");
    }
    int count = (int)(bytes / (long)sizeof *in);
    if (count < 1 || seconds <= 0) die("bad value of an argument");
    in = calloc((size_t)count, sizeof *in);
    out = calloc((size_t)count, sizeof *out);
    if (in == NULL || out == NULL) die("no memory");
    run(count, LEAST);
    long turns = (long)(seconds / BATCHES / run(count, LEAST));
    turns = turns < LEAST ? LEAST : turns > MOST ? MOST : turns;
    MPI_Bcast(&turns, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    for (int b = 0; b < BATCHES; b++) batches[b] = run(count, turns);
    double middle = median(batches, BATCHES);
    if (rank == 0)
        printf("{\"ranks\":%d,\"bytes\":%ld,\"latency_us\":%.2f,\"latency_min_us\":%.2f}\n", ranks, bytes,
               middle * 1e6, batches[0] * 1e6);
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
