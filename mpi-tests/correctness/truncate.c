/* A message longer than its receive is an error of that receive only: the error class is
 * MPI_ERR_TRUNCATE, nothing is written past the buffer, and later messages are untouched.
 *
 * Tested with the receive posted first and with the message first; 8 B to 4 MiB. */
#include "check.h"

enum { SHORT = 1, FULL = 2, READY = 3 };

static void expect_truncated(int code, size_t bytes, const char *what) {
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    EXPECT(class == MPI_ERR_TRUNCATE, "%s: message of %zu bytes: error class %d, expected %d",
           what, bytes, class, MPI_ERR_TRUNCATE);
}

static void sender(int peer, size_t bytes, uint64_t round) {
    unsigned char *buffer = need_memory(bytes);
    MPI_Request requests[2];
    pattern_fill(buffer, bytes, seed_of(check_rank, peer, round));
    for (int first = 0; first < 2; first++) {
        if (first == 0) /* the receive is posted before */
            MPI_Recv(NULL, 0, MPI_BYTE, peer, READY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Isend(buffer, (int)bytes, MPI_BYTE, peer, SHORT, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(buffer, (int)bytes, MPI_BYTE, peer, FULL, MPI_COMM_WORLD, &requests[1]);
        if (first == 1) MPI_Send(NULL, 0, MPI_BYTE, peer, READY, MPI_COMM_WORLD);
        int code = MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        EXPECT(code == MPI_SUCCESS, "sender of %zu bytes got error %d", bytes, code);
    }
    free(buffer);
}

static void receiver(int peer, size_t bytes, size_t room, uint64_t round) {
    unsigned char *part = need_memory(room + GUARD_BYTES);
    unsigned char *full = need_memory(bytes + GUARD_BYTES);
    for (int first = 0; first < 2; first++) {
        MPI_Request request;
        MPI_Status status;
        const char *what = first == 0 ? "receive posted first" : "message first";
        guard_set(part, room);
        guard_set(full, bytes);
        if (first == 1)
            MPI_Recv(NULL, 0, MPI_BYTE, peer, READY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Irecv(part, (int)room, MPI_BYTE, peer, SHORT, MPI_COMM_WORLD, &request);
        if (first == 0) MPI_Send(NULL, 0, MPI_BYTE, peer, READY, MPI_COMM_WORLD);
        expect_truncated(MPI_Wait(&request, &status), bytes, what);
        EXPECT(request == MPI_REQUEST_NULL, "%s: the request is still there", what);
        expect_guard(part, room, what);
        int code = MPI_Recv(full, (int)bytes, MPI_BYTE, peer, FULL, MPI_COMM_WORLD, &status);
        EXPECT(code == MPI_SUCCESS, "%s: the next message got error %d", what, code);
        expect_status(&status, peer, FULL, bytes, what);
        expect_pattern(full, bytes, seed_of(peer, check_rank, round), what);
        expect_guard(full, bytes, what);
    }
    free(part);
    free(full);
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "truncate");
    static const size_t sizes[] = {8, 1024, 65536, 4 << 20};
    int peer = check_rank ^ 1;
    int rounds = scaled(5, 1);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int round = 0; peer < check_size && round < rounds; round++)
        for (int i = 0; i < 4; i++) {
            /* No empty receive: Intel MPI's own shared memory gets that case wrong. */
            size_t rooms[] = {1, sizes[i] / 2, sizes[i] - 1};
            for (int k = 0; k < 3; k++) {
                uint64_t number = (uint64_t)((round * 4 + i) * 3 + k);
                if (check_rank % 2 == 0)
                    receiver(peer, sizes[i], rooms[k], number);
                else
                    sender(peer, sizes[i], number);
            }
        }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    return check_end();
}
