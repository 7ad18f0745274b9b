/* Communicators: dup, split, create, intercommunicators and their merge, and sends to oneself. */
#include "check.h"

enum { TAG = 5 };

/* A ring and a sum over the whole communicator; `salt` makes a message of another one visible. */
static void exercise(MPI_Comm comm, int salt, const char *what) {
    int rank, size, got = -1, sum = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int mine = salt * 1000 + rank, right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Request request;
    MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &request);
    MPI_Send(&mine, 1, MPI_INT, right, TAG, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    EXPECT(got == salt * 1000 + left, "%s: ring gave %d, expected %d", what, got,
           salt * 1000 + left);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    EXPECT(sum == size * (size - 1) / 2, "%s: sum of ranks is %d", what, sum);
}

/* The same source and tag on two communicators: a message must stay on its own. */
static void kept_apart(MPI_Comm first, MPI_Comm second) {
    int right = (check_rank + 1) % check_size, left = (check_rank + check_size - 1) % check_size;
    int out[2] = {100, 200}, in[2] = {-1, -1};
    MPI_Request requests[4];
    MPI_Isend(&out[0], 1, MPI_INT, right, TAG, first, &requests[0]);
    MPI_Isend(&out[1], 1, MPI_INT, right, TAG, second, &requests[1]);
    MPI_Irecv(&in[1], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, second, &requests[2]);
    MPI_Irecv(&in[0], 1, MPI_INT, left, TAG, first, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    EXPECT(in[0] == 100 && in[1] == 200, "communicators mixed up: got %d and %d", in[0], in[1]);
}

static void many_dups(int count) {
    MPI_Comm comms[count];
    for (int i = 0; i < count; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (int i = count - 1; i >= 0; i--) exercise(comms[i], i, "dup");
    kept_apart(comms[0], comms[count - 1]);
    for (int i = 0; i < count; i++) MPI_Comm_free(&comms[i]);
    MPI_Comm dup;
    MPI_Request request;
    MPI_Comm_idup(MPI_COMM_WORLD, &dup, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    exercise(dup, 77, "idup");
    MPI_Comm_free(&dup);
}

static void splits(void) {
    MPI_Comm part;
    for (int parts = 1; parts <= check_size; parts++) {
        MPI_Comm_split(MPI_COMM_WORLD, check_rank % parts, -check_rank, &part);
        int rank, size;
        MPI_Comm_rank(part, &rank);
        MPI_Comm_size(part, &size);
        int want = (check_size - 1 - check_rank) / parts; /* keys run downwards */
        EXPECT(rank == want, "split in %d: rank %d, expected %d", parts, rank, want);
        exercise(part, check_rank % parts, "split");
        MPI_Comm_free(&part);
    }
    MPI_Comm_split(MPI_COMM_WORLD, check_rank == 0 ? MPI_UNDEFINED : 1, 0, &part);
    EXPECT((part == MPI_COMM_NULL) == (check_rank == 0), "split with an undefined colour");
    if (part != MPI_COMM_NULL) {
        exercise(part, 3, "split without rank 0");
        MPI_Comm_free(&part);
    }
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &part);
    exercise(part, 4, "split by node");
    MPI_Comm_free(&part);
}

static void groups(void) {
    MPI_Group all, some;
    MPI_Comm comm;
    int list[check_size], count = 0;
    for (int r = check_size - 1; r >= 0; r -= 2) list[count++] = r;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, count, list, &some);
    MPI_Comm_create(MPI_COMM_WORLD, some, &comm);
    if (comm != MPI_COMM_NULL) {
        exercise(comm, 6, "create");
        MPI_Comm_free(&comm);
    }
    if ((check_size - 1 - check_rank) % 2 == 0) {
        MPI_Comm_create_group(MPI_COMM_WORLD, some, 9, &comm);
        exercise(comm, 7, "create_group");
        MPI_Comm_free(&comm);
    }
    MPI_Group_free(&some);
    MPI_Group_free(&all);
}

static void between_groups(void) {
    MPI_Comm local, inter, merged;
    int side = check_rank % 2, local_rank, remote_size, got = -1, sum = -1;
    MPI_Comm_split(MPI_COMM_WORLD, side, check_rank, &local);
    MPI_Intercomm_create(local, 0, MPI_COMM_WORLD, 1 - side, 12, &inter);
    MPI_Comm_rank(inter, &local_rank);
    MPI_Comm_remote_size(inter, &remote_size);
    int want = side == 0 ? check_size / 2 : (check_size + 1) / 2;
    EXPECT(remote_size == want, "remote size %d, expected %d", remote_size, want);

    MPI_Request request = MPI_REQUEST_NULL;
    if (local_rank < remote_size) {
        MPI_Isend(&check_rank, 1, MPI_INT, local_rank, TAG, inter, &request);
        MPI_Recv(&got, 1, MPI_INT, local_rank, TAG, inter, MPI_STATUS_IGNORE);
        EXPECT(got == (check_rank ^ 1), "over the intercommunicator: %d, expected %d", got,
               check_rank ^ 1);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);

    MPI_Allreduce(&check_rank, &sum, 1, MPI_INT, MPI_SUM, inter); /* of the other side's ranks */
    int expected = 0;
    for (int r = 1 - side; r < check_size; r += 2) expected += r;
    EXPECT(sum == expected, "Allreduce over the intercommunicator: %d, expected %d", sum, expected);

    MPI_Intercomm_merge(inter, side, &merged);
    exercise(merged, 8, "merged");
    MPI_Comm_free(&merged);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&local);
}

static void to_oneself(MPI_Comm comm, int rank, size_t bytes, const char *what) {
    unsigned char *out = need_memory(bytes), *in = need_memory(bytes + GUARD_BYTES);
    uint64_t seed = seed_of(check_rank, check_rank, bytes);
    MPI_Request requests[2];
    MPI_Status status;
    pattern_fill(out, bytes, seed);
    for (int posted_first = 0; posted_first < 2; posted_first++) {
        guard_set(in, bytes);
        if (posted_first) MPI_Irecv(in, (int)bytes, MPI_BYTE, rank, TAG, comm, &requests[0]);
        MPI_Isend(out, (int)bytes, MPI_BYTE, rank, TAG, comm, &requests[1]);
        if (!posted_first)
            MPI_Irecv(in, (int)bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &requests[0]);
        MPI_Wait(&requests[0], &status);
        MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
        expect_status(&status, rank, TAG, bytes, what);
        expect_pattern(in, bytes, seed, what);
        expect_guard(in, bytes, what);
        memset(in, 0, bytes);
    }
    free(out);
    free(in);
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "comms");
    static const size_t sizes[] = {0, 1, 64, 4096, 8193, 65536, 1 << 20, 5000000};
    for (int round = 0; round < scaled(5, 1); round++) {
        many_dups(10);
        splits();
        groups();
        between_groups();
        for (int i = 0; i < 8; i++) {
            to_oneself(MPI_COMM_SELF, 0, sizes[i], "MPI_COMM_SELF");
            to_oneself(MPI_COMM_WORLD, check_rank, sizes[i], "own rank");
        }
    }
    return check_end();
}
