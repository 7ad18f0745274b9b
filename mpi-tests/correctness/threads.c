/* MPI_THREAD_MULTIPLE: several threads of each rank exchange messages at the same time, each on a
 * tag of its own in a shared communicator and in a communicator of its own; then all threads take
 * messages of one tag as they come. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, COMMON = 500 };

struct worker {
    pthread_t thread;
    int number;
    MPI_Comm own;
};

static int right, left, rounds;
static MPI_Comm shared;

static size_t length_of(int round) {
    static const size_t sizes[] = {0, 8, 64, 1000, 4096, 8192, 20000, 70000, 300000};
    return sizes[(size_t)round % (sizeof sizes / sizeof sizes[0])];
}

static uint64_t seed_for(int from, int to, int thread, int round, int own) {
    return seed_of(from, to, (uint64_t)((round * 2 + own) * THREADS + thread));
}

static void exchange(const struct worker *me, int round, int own, unsigned char *out,
                     unsigned char *in) {
    MPI_Comm comm = own ? me->own : shared;
    int tag = own ? 1 : me->number; /* in its own communicator all threads use the same tag */
    int bytes = (int)length_of(round + me->number);
    char what[64];
    snprintf(what, sizeof what, "thread %d, round %d, %s communicator", me->number, round,
             own ? "own" : "shared");
    MPI_Request requests[2];
    MPI_Status statuses[2];
    pattern_fill(out, (size_t)bytes, seed_for(check_rank, right, me->number, round, own));
    guard_set(in, (size_t)bytes);
    if (round % 2)
        MPI_Irecv(in, bytes, MPI_BYTE, own ? MPI_ANY_SOURCE : left, tag, comm, &requests[0]);
    MPI_Isend(out, bytes, MPI_BYTE, right, tag, comm, &requests[1]);
    if (round % 2 == 0) MPI_Irecv(in, bytes, MPI_BYTE, left, tag, comm, &requests[0]);
    MPI_Waitall(2, requests, statuses);
    expect_status(&statuses[0], left, tag, (size_t)bytes, what);
    expect_pattern(in, (size_t)bytes, seed_for(left, check_rank, me->number, round, own), what);
    expect_guard(in, (size_t)bytes, what);
}

/* Any thread may get any thread's message; its content says which one it is. */
static void common_tag(const struct worker *me) {
    for (int i = 0; i < rounds; i++) {
        int out[3] = {me->number, i, me->number * 31 + i}, in[3] = {-1, -1, -1};
        MPI_Request request;
        MPI_Isend(out, 3, MPI_INT, right, COMMON, shared, &request);
        MPI_Recv(in, 3, MPI_INT, left, COMMON, shared, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        EXPECT(in[0] >= 0 && in[0] < THREADS && in[2] == in[0] * 31 + in[1],
               "thread %d got a torn message: %d, %d, %d", me->number, in[0], in[1], in[2]);
    }
}

static void *work(void *argument) {
    struct worker *me = argument;
    unsigned char *out = need_memory(300000), *in = need_memory(300000 + GUARD_BYTES);
    for (int round = 0; round < rounds; round++) {
        exchange(me, round, 0, out, in);
        exchange(me, round, 1, out, in);
    }
    common_tag(me);
    MPI_Barrier(me->own); /* a collective in each thread, on its own communicator */
    free(out);
    free(in);
    return NULL;
}

int main(int argc, char **argv) {
    check_begin_threads(argc, argv, "threads", MPI_THREAD_MULTIPLE);
    struct worker workers[THREADS];
    rounds = scaled(200, 10);
    right = (check_rank + 1) % check_size;
    left = (check_rank + check_size - 1) % check_size;
    MPI_Comm_dup(MPI_COMM_WORLD, &shared);
    for (int i = 0; i < THREADS; i++) {
        workers[i].number = i;
        MPI_Comm_dup(MPI_COMM_WORLD, &workers[i].own);
    }
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread");
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        MPI_Comm_free(&workers[i].own);
    }
    MPI_Comm_free(&shared);
    return check_end();
}
