/* Cancelling receives: those that no message matched, those that a message has matched, and those
 * for which it is a race. A message must go to exactly one receive in every case. */
#include "check.h"

enum { NEVER = 1, MATCHED = 2, AFTER = 3, RACE = 4, MANY = 5 };

/* Cancels, waits, and tells whether it was cancelled. */
static int cancelled(MPI_Request *request, MPI_Status *status) {
    int flag = -1;
    MPI_Cancel(request);
    MPI_Wait(request, status);
    MPI_Test_cancelled(status, &flag);
    return flag;
}

static void unmatched(int source, int tag) {
    int value = 42;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&value, 1, MPI_INT, source, tag, MPI_COMM_WORLD, &request);
    EXPECT(cancelled(&request, &status), "receive of source %d, tag %d was not cancelled", source,
           tag);
    EXPECT(value == 42, "a cancelled receive changed its buffer to %d", value);
}

/* The message AFTER, sent later by the same rank, proves that MATCHED has been matched. */
static void matched(int peer, size_t bytes) {
    unsigned char *buffer = need_memory(bytes + GUARD_BYTES);
    if (check_rank % 2 == 0) {
        MPI_Request requests[2];
        MPI_Status status;
        guard_set(buffer, bytes);
        MPI_Irecv(buffer, (int)bytes, MPI_BYTE, peer, MATCHED, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(NULL, 0, MPI_BYTE, peer, AFTER, MPI_COMM_WORLD, &requests[1]);
        MPI_Send(NULL, 0, MPI_BYTE, peer, AFTER, MPI_COMM_WORLD); /* both are posted */
        MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
        EXPECT(!cancelled(&requests[0], &status),
               "a receive that had a message of %zu bytes was cancelled", bytes);
        expect_status(&status, peer, MATCHED, bytes, "matched before cancel");
        expect_pattern(buffer, bytes, seed_of(peer, check_rank, bytes), "matched before cancel");
        expect_guard(buffer, bytes, "matched before cancel");
    } else {
        MPI_Request request;
        pattern_fill(buffer, bytes, seed_of(check_rank, peer, bytes));
        MPI_Recv(NULL, 0, MPI_BYTE, peer, AFTER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Isend(buffer, (int)bytes, MPI_BYTE, peer, MATCHED, MPI_COMM_WORLD, &request);
        MPI_Send(NULL, 0, MPI_BYTE, peer, AFTER, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    free(buffer);
}

/* Cancelled in a race with the message: it must be in this receive or still there for the next. */
static void race(int peer, int rounds, size_t bytes) {
    unsigned char *buffer = need_memory(bytes);
    int lost = 0;
    for (int round = 0; round < rounds; round++) {
        uint64_t number = ((uint64_t)bytes << 20) + (uint64_t)round;
        if (check_rank % 2 == 0) {
            MPI_Request request;
            MPI_Status status;
            MPI_Irecv(buffer, (int)bytes, MPI_BYTE, peer, RACE, MPI_COMM_WORLD, &request);
            MPI_Send(NULL, 0, MPI_BYTE, peer, RACE, MPI_COMM_WORLD);
            for (int i = 0, flag; i < round % 50; i++)
                MPI_Iprobe(peer, NEVER, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
            if (cancelled(&request, &status)) {
                lost++;
                MPI_Recv(buffer, (int)bytes, MPI_BYTE, peer, RACE, MPI_COMM_WORLD, &status);
            }
            expect_status(&status, peer, RACE, bytes, "race");
            expect_pattern(buffer, bytes, seed_of(peer, check_rank, number), "race");
        } else {
            MPI_Recv(NULL, 0, MPI_BYTE, peer, RACE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            pattern_fill(buffer, bytes, seed_of(check_rank, peer, number));
            MPI_Send(buffer, (int)bytes, MPI_BYTE, peer, RACE, MPI_COMM_WORLD);
        }
    }
    if (check_rank == 0)
        printf("cancel: %d of %d races of %zu bytes won by the cancel\n", lost, rounds, bytes);
    free(buffer);
}

/* Every other one of many equal receives is cancelled; the rest must keep their order. */
static void every_other(int peer) {
    enum { COUNT = 500 };
    int values[COUNT];
    MPI_Request requests[COUNT];
    if (check_rank % 2 == 0) {
        for (int i = 0; i < COUNT; i++) {
            values[i] = -1;
            MPI_Irecv(&values[i], 1, MPI_INT, i % 4 < 2 ? peer : MPI_ANY_SOURCE, MANY,
                      MPI_COMM_WORLD, &requests[i]);
        }
        for (int i = 0; i < COUNT; i += 2) {
            MPI_Status status;
            EXPECT(cancelled(&requests[i], &status), "receive %d was not cancelled", i);
        }
        MPI_Send(NULL, 0, MPI_BYTE, peer, AFTER, MPI_COMM_WORLD);
        for (int i = 1; i < COUNT; i += 2) {
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
            EXPECT(values[i] == i / 2, "receive %d got message %d, expected %d", i, values[i], i / 2);
        }
    } else {
        MPI_Recv(NULL, 0, MPI_BYTE, peer, AFTER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < COUNT / 2; i++)
            MPI_Send(&i, 1, MPI_INT, peer, MANY, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "cancel");
    static const size_t sizes[] = {0, 8, 1024, 65536, 1 << 20};
    int peer = check_rank ^ 1;
    int rounds = scaled(400, 50);
    unmatched(peer < check_size ? peer : 0, NEVER);
    unmatched(MPI_ANY_SOURCE, NEVER);
    if (peer < check_size) {
        for (int i = 0; i < 5; i++) matched(peer, sizes[i]);
        for (int i = 0; i < 5; i++) race(peer, sizes[i] > 4096 ? rounds / 5 : rounds, sizes[i]);
        every_other(peer);
    }
    unmatched(MPI_ANY_SOURCE, MPI_ANY_TAG);
    return check_end();
}
