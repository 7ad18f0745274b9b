/* What ranks notice of faults of the network between them, and what a job costs; one line of JSON by rank 0.
 *
 * survive pauses SECONDS        ranks 0 and 1 exchange, after a line "begun", verified messages of 8 B to 256 KiB: how many rounds, and the longest one; if
 *                               it fails: after how many milliseconds of waiting, and with what words
 * survive sleeper SECONDS       rank 1 makes no call for so long, while rank 0 sends it 1000 short messages and 16 MiB
 * survive crowd BYTES           every rank: allreduce, alltoall and bcast of so many bytes, verified, and messages of rank 0 to all: seconds; peak
 *                               memory and descriptors of the rank that has most
 */
#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST = 256 << 10, STEPS = 4, SHORTS = 1000, LONG = 16 << 20 };

static int rank, ranks;

static void die(const char *what) {
    fprintf(stderr, "survive: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void fill(unsigned char *p, int n, int seed) {
    for (int i = 0; i < n; i++) p[i] = (unsigned char)(i * 31 + (i >> 8) + seed);
}

static void check(const unsigned char *p, int n, int seed) {
    for (int i = 0; i < n; i++)
        if (p[i] != (unsigned char)(i * 31 + (i >> 8) + seed)) die("wrong bytes");
}

static void tell_failure(int code, long rounds, double waited, double after) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(code, text, &n);
    for (char *p = text; *p; p++)
        if (*p == '"' || *p == '\\' || (unsigned char)*p < ' ') *p = ' ';
    printf("{\"failed\": true, \"rounds\": %ld, \"waited_ms\": %.0f, \"after_s\": %.2f, \"error\": \"%s\"}\n", rounds, waited * 1e3, after, text);
    fflush(stdout);
    /* MPI_Finalize of a job that has lost a rank need not end. */
    _exit(3);
}

static void pauses(double seconds) {
    static const int sizes[STEPS] = {8, 1024, 16384, LONGEST};
    unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    double begun = MPI_Wtime(), longest = 0;
    long rounds = 0;
    for (int more = 1; more && rank < 2; rounds++) {
        int n = sizes[rounds % STEPS], code;
        double start = MPI_Wtime();
        fill(out, n, rank + (int)rounds);
        more = start - begun < seconds;
        /* Rank 0 says whether there is another round. */
        out[0] = (unsigned char)more;
        code = MPI_Sendrecv(out, n, MPI_BYTE, 1 - rank, 1, in, n, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        double took = MPI_Wtime() - start;
        if (code != MPI_SUCCESS) tell_failure(code, rounds, took, MPI_Wtime() - begun);
        if (rank == 1) more = in[0];
        in[0] = (unsigned char)(1 - rank + (int)rounds);
        check(in, n, 1 - rank + (int)rounds);
        if (rank == 0 && rounds == STEPS) printf("begun\n"), fflush(stdout);
        /* First contact is another matter. */
        if (took > longest && rounds >= STEPS) longest = took;
    }
    if (rank == 0)
        printf("{\"failed\": false, \"rounds\": %ld, \"longest_ms\": %.1f, \"seconds\": %.1f}\n", rounds, longest * 1e3, MPI_Wtime() - begun);
}

static void sleeper(double seconds) {
    unsigned char *bytes = malloc(LONG);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    if (rank == 0) {
        MPI_Request requests[SHORTS + 1];
        fill(bytes, LONG, 5);
        for (int i = 0; i < SHORTS; i++) MPI_Isend(bytes, 8, MPI_BYTE, 1, i, MPI_COMM_WORLD, &requests[i]);
        MPI_Isend(bytes, LONG, MPI_BYTE, 1, SHORTS, MPI_COMM_WORLD, &requests[SHORTS]);
        MPI_Waitall(SHORTS + 1, requests, MPI_STATUSES_IGNORE);
        printf("{\"failed\": false, \"seconds\": %.1f}\n", MPI_Wtime() - begun);
    } else if (rank == 1) {
        usleep((useconds_t)(seconds * 1e6));
        MPI_Recv(bytes, LONG, MPI_BYTE, 0, SHORTS, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(bytes, LONG, 5);
        for (int i = 0; i < SHORTS; i++) {
            MPI_Recv(bytes, 8, MPI_BYTE, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(bytes, 8, 5);
        }
    }
}

static long peak_kib(void) {
    char line[200];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

static long descriptors(void) {
    long n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n - 3; /* ".", "..", and the directory */
}

static void crowd(int bytes) {
    int n = bytes / 4 > 0 ? bytes / 4 : 1;
    int *out = malloc(sizeof(int) * (size_t)n * (size_t)ranks), *in = malloc(sizeof(int) * (size_t)n * (size_t)ranks);
    long before = peak_kib();
    double took[4], start = MPI_Wtime();
    for (int i = 0; i < n; i++) out[i] = rank + i;
    MPI_Allreduce(out, in, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++)
        if (in[i] != ranks * (ranks - 1) / 2 + ranks * i) die("allreduce: wrong sum");
    took[0] = MPI_Wtime() - start, start = MPI_Wtime();
    for (int i = 0; i < n * ranks; i++) out[i] = rank * 1000000 + i;
    MPI_Alltoall(out, n, MPI_INT, in, n, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < n; i++)
            if (in[from * n + i] != from * 1000000 + rank * n + i) die("alltoall: wrong number");
    took[1] = MPI_Wtime() - start, start = MPI_Wtime();
    for (int root = 0; root < ranks; root += ranks > 8 ? ranks / 8 : 1) {
        for (int i = 0; i < n; i++) out[i] = rank == root ? root * 7 + i : -1;
        MPI_Bcast(out, n, MPI_INT, root, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++)
            if (out[i] != root * 7 + i) die("bcast: wrong number");
    }
    took[2] = MPI_Wtime() - start, start = MPI_Wtime();
    /* Everybody with everybody, so that all connections are there. */
    for (int step = 1; step < ranks; step++)
        MPI_Sendrecv(&rank, 1, MPI_INT, (rank + step) % ranks, 9, in, 1, MPI_INT, (rank - step + ranks) % ranks, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    took[3] = MPI_Wtime() - start;
    long own[3] = {peak_kib(), descriptors(), before}, most[3] = {0};
    MPI_Reduce(own, most, 3, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"failed\": false, \"ranks\": %d, \"allreduce_s\": %.2f, \"alltoall_s\": %.2f, \"bcast_s\": %.2f, \"pairs_s\": %.2f, \"peak_kib\": %ld, "
               "\"peak_kib_before\": %ld, \"descriptors\": %ld}\n",
               ranks, took[0], took[1], took[2], took[3], most[0], most[2], most[1]);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double amount = argc == 3 ? atof(argv[2]) : 0;
    if (argc != 3 || ranks < 2) die("see the head of survive.c");
    if (!strcmp(argv[1], "pauses")) pauses(amount);
    else if (!strcmp(argv[1], "sleeper")) sleeper(amount);
    else if (!strcmp(argv[1], "crowd")) crowd((int)amount);
    else die("see the head of survive.c");
    MPI_Finalize();
    return 0;
}
