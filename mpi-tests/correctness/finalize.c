/* Messages still under way when their sender enters MPI_Finalize must arrive all the same.
 *
 * --mode burst: the peers know each other already; many small sends, then finalize at once, while
 *               the receiver computes for half a second before it receives.
 * --mode first: the same, but no message was ever sent before between the two, so that connecting
 *               falls into the time when the receiver computes and the sender finalizes.
 *
 * There is no barrier at the end, on purpose; a receiver that misses a message hangs or aborts.
 */
#include "check.h"
#include <time.h>

enum { TAG = 3, LONGEST = 1024, HELLO = 4 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void compute(double seconds) {
    volatile uint64_t sink = 0;
    for (double end = now() + seconds; now() < end;)
        for (int i = 0; i < 1000; i++) sink += (uint64_t)i;
}

static size_t length_of(int i) {
    return i % 3 == 0 ? (size_t)(i % 9) : (size_t)(i * 37 % (LONGEST + 1));
}

static void send_burst(int peer, int messages) {
    unsigned char *out = need_memory((size_t)messages * LONGEST);
    MPI_Request *requests = need_memory(sizeof *requests * (size_t)messages);
    for (int i = 0; i < messages; i++) {
        unsigned char *one = out + (size_t)i * LONGEST;
        pattern_fill(one, length_of(i), seed_of(check_rank, peer, (uint64_t)i));
        MPI_Isend(one, (int)length_of(i), MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(messages, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(out);
}

static void receive_burst(int peer, int messages) {
    unsigned char in[LONGEST + GUARD_BYTES];
    compute(0.5);
    for (int i = 0; i < messages; i++) {
        char what[48];
        MPI_Status status;
        guard_set(in, length_of(i));
        MPI_Recv(in, LONGEST, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &status);
        snprintf(what, sizeof what, "message %d of %d", i, messages);
        expect_status(&status, peer, TAG, length_of(i), what);
        expect_pattern(in, length_of(i), seed_of(peer, check_rank, (uint64_t)i), what);
        expect_guard(in, length_of(i), what);
    }
}

int main(int argc, char **argv) {
    const char *mode = check_option(argc, argv, "--mode");
    int first = mode != NULL && strcmp(mode, "first") == 0;
    check_begin(argc, argv, first ? "finalize_first" : "finalize");
    int peer = check_rank ^ 1;
    /* Few in the first case: all must fit what a not yet connected sender can hold back. */
    int messages = first ? 20 : scaled(2000, 100);
    if (peer < check_size) {
        if (!first)
            MPI_Sendrecv(NULL, 0, MPI_BYTE, peer, HELLO, NULL, 0, MPI_BYTE, peer, HELLO,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (check_rank % 2 == 1)
            send_burst(peer, messages);
        else
            receive_burst(peer, messages);
    }
    check_ok();
    MPI_Finalize();
    return 0;
}
