/* Probe, Iprobe, Mprobe and Improbe with Recv, Mrecv and Imrecv, round a ring of all ranks. */
#include "check.h"

static const size_t sizes[] = {0, 1, 8, 100, 1024, 5000, 65536, 300000, 1 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0], DATA = 1, HELD = 2, NEVER = 3, SYNC = 4 };

static int right, left;
static unsigned char *in;

static void send_sizes(MPI_Request *requests, unsigned char **out, int round) {
    for (int i = 0; i < SIZES; i++) {
        pattern_fill(out[i], sizes[i], seed_of(check_rank, right, (uint64_t)(round * SIZES + i)));
        MPI_Isend(out[i], (int)sizes[i], MPI_BYTE, right, DATA, MPI_COMM_WORLD, &requests[i]);
    }
}

static void expect_data(size_t bytes, int round, int i, const char *what) {
    expect_pattern(in, bytes, seed_of(left, check_rank, (uint64_t)(round * SIZES + i)), what);
    expect_guard(in, bytes, what);
}

/* kind: 0 Probe, 1 Iprobe, 2 Mprobe, 3 Improbe; odd rounds probe with wildcards */
static void take(int kind, int round, int i) {
    static const char *names[] = {"Probe", "Iprobe", "Mprobe", "Improbe"};
    /* any source only with any tag: other tags are not under way in this phase */
    int source = round % 2 ? MPI_ANY_SOURCE : left;
    int tag = round % 2 ? MPI_ANY_TAG : DATA;
    MPI_Status probed, status;
    MPI_Message message = MPI_MESSAGE_NULL;
    int flag = 0, bytes = (int)sizes[i];

    if (kind == 0) MPI_Probe(source, tag, MPI_COMM_WORLD, &probed);
    while (kind == 1 && !flag) MPI_Iprobe(source, tag, MPI_COMM_WORLD, &flag, &probed);
    if (kind == 2) MPI_Mprobe(source, tag, MPI_COMM_WORLD, &message, &probed);
    while (kind == 3 && !flag) MPI_Improbe(source, tag, MPI_COMM_WORLD, &flag, &message, &probed);
    expect_status(&probed, left, DATA, sizes[i], names[kind]);

    guard_set(in, sizes[i]);
    if (kind == 0 || kind == 1) {
        MPI_Recv(in, bytes, MPI_BYTE, left, DATA, MPI_COMM_WORLD, &status);
    } else if (kind == 2) {
        MPI_Mrecv(in, bytes, MPI_BYTE, &message, &status);
    } else {
        MPI_Request request;
        MPI_Imrecv(in, bytes, MPI_BYTE, &message, &request);
        MPI_Wait(&request, &status);
    }
    if (kind >= 2) EXPECT(message == MPI_MESSAGE_NULL, "%s: handle is not null", names[kind]);
    expect_status(&status, left, DATA, sizes[i], names[kind]);
    expect_data(sizes[i], round, i, names[kind]);
}

/* Messages taken out by Mprobe are received in reverse, after messages sent later. */
static void hold_and_reverse(void) {
    enum { COUNT = 6 };
    int values[COUNT];
    MPI_Request requests[COUNT];
    MPI_Message held[COUNT / 2];
    MPI_Status status;
    for (int i = 0; i < COUNT; i++) {
        values[i] = 1000 * check_rank + i;
        MPI_Isend(&values[i], 1, MPI_INT, right, HELD, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0; i < COUNT / 2; i++)
        MPI_Mprobe(i % 2 ? MPI_ANY_SOURCE : left, HELD, MPI_COMM_WORLD, &held[i], &status);
    for (int i = COUNT / 2; i < COUNT; i++) {
        int got = -1;
        MPI_Recv(&got, 1, MPI_INT, left, HELD, MPI_COMM_WORLD, &status);
        EXPECT(got == 1000 * left + i, "message after held ones: got %d, expected %d", got,
               1000 * left + i);
    }
    for (int i = COUNT / 2 - 1; i >= 0; i--) {
        int got = -1;
        MPI_Mrecv(&got, 1, MPI_INT, &held[i], &status);
        EXPECT(got == 1000 * left + i, "held message: got %d, expected %d", got, 1000 * left + i);
        expect_status(&status, left, HELD, sizeof got, "held message");
    }
    MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
}

static void nothing_there(void) {
    int flag = 1;
    MPI_Status status;
    MPI_Message message = MPI_MESSAGE_NULL;
    for (int i = 0; i < 100; i++) {
        MPI_Iprobe(MPI_ANY_SOURCE, NEVER, MPI_COMM_WORLD, &flag, &status);
        EXPECT(!flag, "Iprobe found a message that nobody sent");
        MPI_Improbe(left, NEVER, MPI_COMM_WORLD, &flag, &message, &status);
        EXPECT(!flag, "Improbe found a message that nobody sent");
    }
    MPI_Probe(MPI_PROC_NULL, 0, MPI_COMM_WORLD, &status);
    EXPECT(status.MPI_SOURCE == MPI_PROC_NULL, "Probe of MPI_PROC_NULL: source %d",
           status.MPI_SOURCE);
    MPI_Mprobe(MPI_PROC_NULL, 0, MPI_COMM_WORLD, &message, &status);
    EXPECT(message == MPI_MESSAGE_NO_PROC, "Mprobe of MPI_PROC_NULL: a real message");
    MPI_Mrecv(NULL, 0, MPI_BYTE, &message, &status);
}

/* A probe leaves the message where it is, and behind an older one of the same sender. */
static void probe_keeps_order(void) {
    int numbers[2] = {check_rank, check_rank + 7}, got = -1;
    MPI_Request requests[2];
    MPI_Status status;
    MPI_Isend(&numbers[0], 1, MPI_INT, right, SYNC, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(&numbers[1], 1, MPI_INT, right, SYNC, MPI_COMM_WORLD, &requests[1]);
    for (int i = 0; i < 3; i++) MPI_Probe(left, SYNC, MPI_COMM_WORLD, &status);
    MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, SYNC, MPI_COMM_WORLD, &status);
    EXPECT(got == left, "first message after three probes: %d, expected %d", got, left);
    MPI_Recv(&got, 1, MPI_INT, left, SYNC, MPI_COMM_WORLD, &status);
    EXPECT(got == left + 7, "second message: %d, expected %d", got, left + 7);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "probe");
    right = (check_rank + 1) % check_size;
    left = (check_rank + check_size - 1) % check_size;
    in = need_memory(sizes[SIZES - 1] + GUARD_BYTES);
    unsigned char *out[SIZES];
    MPI_Request requests[SIZES];
    for (int i = 0; i < SIZES; i++) out[i] = need_memory(sizes[i]);

    int rounds = scaled(40, 4);
    for (int round = 0; round < rounds; round++) {
        send_sizes(requests, out, round);
        for (int i = 0; i < SIZES; i++) take((round / 2 + i) % 4, round, i);
        MPI_Waitall(SIZES, requests, MPI_STATUSES_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < rounds; round++) {
        nothing_there();
        hold_and_reverse();
        MPI_Barrier(MPI_COMM_WORLD);
        probe_keeps_order();
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int i = 0; i < SIZES; i++) free(out[i]);
    free(in);
    return check_end();
}
