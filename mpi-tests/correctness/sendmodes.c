/* Send modes and completion calls: synchronous, buffered, ready, persistent; Test and Wait in all
 * forms; Sendrecv and Sendrecv_replace; derived datatypes. */
#include "check.h"

enum { SYNC = 1, NOTE = 2, DATA = 3 };

static int right, left;

/* ---- synchronous sends ---- */

/* A synchronous send must not complete before its receive is posted. The notes that go back and
 * forth make both sides work on their queues meanwhile; no clock is involved. */
static void synchronous(int peer, size_t bytes) {
    unsigned char *buffer = need_memory(bytes);
    uint64_t seed = seed_of(check_rank | 1, check_rank & ~1, bytes);
    int note = 0, flag;
    MPI_Request request;
    if (check_rank % 2 == 1) {
        pattern_fill(buffer, bytes, seed);
        MPI_Issend(buffer, (int)bytes, MPI_BYTE, peer, SYNC, MPI_COMM_WORLD, &request);
        for (int turn = 0; turn < 5; turn++) {
            for (int i = 0; i < 20; i++) {
                MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
                EXPECT(!flag, "Issend of %zu bytes was complete before the receive was posted",
                       bytes);
            }
            MPI_Send(&note, 1, MPI_INT, peer, NOTE, MPI_COMM_WORLD);
            MPI_Recv(&note, 1, MPI_INT, peer, NOTE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
        EXPECT(!flag, "Issend of %zu bytes was complete before the receive was posted", bytes);
        MPI_Send(&note, 1, MPI_INT, peer, NOTE, MPI_COMM_WORLD); /* now the peer posts it */
        MPI_Wait(&request, MPI_STATUS_IGNORE);

        MPI_Ssend(buffer, (int)bytes, MPI_BYTE, peer, SYNC, MPI_COMM_WORLD);
        MPI_Send(&note, 1, MPI_INT, peer, NOTE, MPI_COMM_WORLD);
    } else {
        for (int turn = 0; turn < 5; turn++) {
            MPI_Recv(&note, 1, MPI_INT, peer, NOTE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Iprobe(peer, SYNC, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
            MPI_Send(&note, 1, MPI_INT, peer, NOTE, MPI_COMM_WORLD);
        }
        MPI_Recv(&note, 1, MPI_INT, peer, NOTE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(buffer, (int)bytes, MPI_BYTE, peer, SYNC, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect_pattern(buffer, bytes, seed, "Issend");

        /* The note behind a blocking Ssend cannot come before that is received. */
        MPI_Irecv(&note, 1, MPI_INT, peer, NOTE, MPI_COMM_WORLD, &request);
        MPI_Probe(peer, SYNC, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < 100; i++) {
            MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
            EXPECT(!flag, "Ssend of %zu bytes returned before the receive was posted", bytes);
        }
        MPI_Recv(buffer, (int)bytes, MPI_BYTE, peer, SYNC, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect_pattern(buffer, bytes, seed, "Ssend");
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    free(buffer);
}

/* ---- buffered and ready sends ---- */

static void buffered(void) {
    enum { COUNT = 50, BYTES = 3000 };
    int size = COUNT * (BYTES + MPI_BSEND_OVERHEAD);
    void *space = need_memory((size_t)size), *detached;
    unsigned char *buffer = need_memory(BYTES);
    MPI_Buffer_attach(space, size);
    for (int i = 0; i < COUNT; i++) { /* everyone sends before anyone receives */
        pattern_fill(buffer, BYTES, seed_of(check_rank, right, (uint64_t)i));
        MPI_Bsend(buffer, BYTES, MPI_BYTE, right, DATA, MPI_COMM_WORLD);
        memset(buffer, 0, BYTES); /* the buffer is ours again at once */
    }
    for (int i = 0; i < COUNT; i++) {
        MPI_Recv(buffer, BYTES, MPI_BYTE, left, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect_pattern(buffer, BYTES, seed_of(left, check_rank, (uint64_t)i), "Bsend");
    }
    MPI_Buffer_detach(&detached, &size);
    EXPECT(detached == space, "Buffer_detach gave another buffer");
    free(space);
    free(buffer);
}

static void ready(size_t bytes) {
    unsigned char *in = need_memory(bytes), *out = need_memory(bytes);
    MPI_Request request;
    MPI_Irecv(in, (int)bytes, MPI_BYTE, left, DATA, MPI_COMM_WORLD, &request);
    MPI_Barrier(MPI_COMM_WORLD); /* all receives are posted */
    pattern_fill(out, bytes, seed_of(check_rank, right, bytes));
    MPI_Rsend(out, (int)bytes, MPI_BYTE, right, DATA, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect_pattern(in, bytes, seed_of(left, check_rank, bytes), "Rsend");
    free(in);
    free(out);
}

/* ---- persistent requests ---- */

static void persistent(size_t bytes, int rounds) {
    enum { SENDS = 3 };
    unsigned char *in[SENDS], *out[SENDS];
    MPI_Request requests[2 * SENDS];
    for (int i = 0; i < SENDS; i++) {
        in[i] = need_memory(bytes);
        out[i] = need_memory(bytes);
        MPI_Recv_init(in[i], (int)bytes, MPI_BYTE, i == 1 ? MPI_ANY_SOURCE : left, DATA + i,
                      MPI_COMM_WORLD, &requests[i]);
    }
    int size = (int)bytes;
    MPI_Send_init(out[0], size, MPI_BYTE, right, DATA, MPI_COMM_WORLD, &requests[SENDS]);
    MPI_Ssend_init(out[1], size, MPI_BYTE, right, DATA + 1, MPI_COMM_WORLD, &requests[SENDS + 1]);
    MPI_Rsend_init(out[2], size, MPI_BYTE, right, DATA + 2, MPI_COMM_WORLD, &requests[SENDS + 2]);
    for (int round = 0; round < rounds; round++) {
        MPI_Startall(SENDS, requests);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < SENDS; i++) {
            uint64_t number = (uint64_t)(round * SENDS + i);
            pattern_fill(out[i], bytes, seed_of(check_rank, right, number));
            MPI_Start(&requests[SENDS + i]);
        }
        MPI_Waitall(2 * SENDS, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < SENDS; i++)
            expect_pattern(in[i], bytes,
                           seed_of(left, check_rank, (uint64_t)(round * SENDS + i)), "persistent");
    }
    for (int i = 0; i < 2 * SENDS; i++) MPI_Request_free(&requests[i]);
    for (int i = 0; i < SENDS; i++) {
        free(in[i]);
        free(out[i]);
    }
}

/* ---- completion calls ---- */

/* way: 0 Waitall, 1 Waitany, 2 Waitsome, 3 Testall, 4 Testany, 5 Testsome, 6 Test, 7 Wait */
static void complete(int way, int count, MPI_Request *requests) {
    int indices[count], index, flag = 0, some;
    MPI_Status statuses[count];
    switch (way) {
    case 0: MPI_Waitall(count, requests, statuses); break;
    case 1:
        for (int i = 0; i < count; i++) {
            MPI_Waitany(count, requests, &index, statuses);
            EXPECT(index != MPI_UNDEFINED, "Waitany: undefined at %d of %d", i, count);
        }
        break;
    case 2:
        for (int done = 0; done < count; done += some)
            MPI_Waitsome(count, requests, &some, indices, statuses);
        break;
    case 3:
        while (!flag) MPI_Testall(count, requests, &flag, statuses);
        break;
    case 4:
        for (int done = 0; done < count; done += flag) {
            MPI_Testany(count, requests, &index, &flag, statuses);
            EXPECT(!flag || index != MPI_UNDEFINED, "Testany: undefined at %d", done);
        }
        break;
    case 5:
        for (int done = 0; done < count; done += some)
            MPI_Testsome(count, requests, &some, indices, statuses);
        break;
    case 6:
        for (int i = 0; i < count; i++)
            for (flag = 0; !flag;) MPI_Test(&requests[i], &flag, statuses);
        break;
    default:
        for (int i = count - 1; i >= 0; i--) MPI_Wait(&requests[i], statuses);
    }
    for (int i = 0; i < count; i++)
        EXPECT(requests[i] == MPI_REQUEST_NULL, "completion %d: request %d is left", way, i);
}

static void completions(int way, int posted_first) {
    enum { COUNT = 24 };
    static const size_t sizes[] = {0, 3, 700, 9000, 70000, 400000};
    unsigned char *in[COUNT], *out[COUNT];
    MPI_Request requests[2 * COUNT];
    int receives = posted_first ? 0 : COUNT, sends = posted_first ? COUNT : 0;
    for (int i = 0; i < COUNT; i++) {
        size_t bytes = sizes[i % 6];
        in[i] = need_memory(bytes + GUARD_BYTES);
        guard_set(in[i], bytes);
        out[i] = need_memory(bytes);
        pattern_fill(out[i], bytes, seed_of(check_rank, right, (uint64_t)(way * COUNT + i)));
    }
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < COUNT; i++) {
            int bytes = (int)sizes[i % 6];
            if ((step == 0) == (posted_first == 1))
                MPI_Irecv(in[i], bytes, MPI_BYTE, left, DATA + i % 2, MPI_COMM_WORLD,
                          &requests[receives + i]);
            else
                MPI_Isend(out[i], bytes, MPI_BYTE, right, DATA + i % 2, MPI_COMM_WORLD,
                          &requests[sends + i]);
        }
    }
    complete(way, 2 * COUNT, requests);
    for (int i = 0; i < COUNT; i++) {
        expect_pattern(in[i], sizes[i % 6], seed_of(left, check_rank, (uint64_t)(way * COUNT + i)),
                       "completion calls");
        expect_guard(in[i], sizes[i % 6], "completion calls");
        free(in[i]);
        free(out[i]);
    }
}

/* ---- combined send and receive ---- */

static void send_and_receive(size_t bytes) {
    unsigned char *in = need_memory(bytes), *out = need_memory(bytes);
    MPI_Status status;
    pattern_fill(out, bytes, seed_of(check_rank, right, bytes));
    MPI_Sendrecv(out, (int)bytes, MPI_BYTE, right, DATA, in, (int)bytes, MPI_BYTE, left, DATA,
                 MPI_COMM_WORLD, &status);
    expect_status(&status, left, DATA, bytes, "Sendrecv");
    expect_pattern(in, bytes, seed_of(left, check_rank, bytes), "Sendrecv");
    MPI_Sendrecv_replace(out, (int)bytes, MPI_BYTE, right, DATA, left, DATA, MPI_COMM_WORLD,
                         &status);
    expect_status(&status, left, DATA, bytes, "Sendrecv_replace");
    expect_pattern(out, bytes, seed_of(left, check_rank, bytes), "Sendrecv_replace");
    free(in);
    free(out);
}

/* ---- derived datatypes ---- */

/* Column of a square matrix to column, to contiguous memory, and from contiguous memory. */
static void vectors(int side) {
    size_t cells = (size_t)side * (size_t)side;
    int *out = need_memory(cells * sizeof *out), *in = need_memory(cells * sizeof *in);
    int *flat = need_memory((size_t)side * sizeof *flat);
    MPI_Datatype column;
    MPI_Status status;
    int elements = 0;
    MPI_Type_vector(side, 1, side, MPI_INT, &column);
    MPI_Type_commit(&column);
    for (size_t i = 0; i < cells; i++) {
        out[i] = check_rank * 1000000 + (int)i;
        in[i] = -1;
    }
    MPI_Sendrecv(out, 1, column, right, DATA, in + 1, 1, column, left, DATA, MPI_COMM_WORLD,
                 &status);
    MPI_Get_elements(&status, column, &elements);
    EXPECT(elements == side, "vector: %d elements, expected %d", elements, side);
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            int want = j == 1 ? left * 1000000 + i * side : -1;
            EXPECT(in[i * side + j] == want, "vector: cell %d,%d is %d, expected %d", i, j,
                   in[i * side + j], want);
        }
    MPI_Sendrecv(out + 1, 1, column, right, DATA, flat, side, MPI_INT, left, DATA, MPI_COMM_WORLD,
                 &status);
    for (int i = 0; i < side; i++)
        EXPECT(flat[i] == left * 1000000 + i * side + 1, "vector to flat: element %d is %d", i,
               flat[i]);
    MPI_Sendrecv(flat, side, MPI_INT, right, DATA, in, 1, column, left, DATA, MPI_COMM_WORLD,
                 &status);
    int left_of_left = (left + check_size - 1) % check_size;
    for (int i = 0; i < side; i++)
        EXPECT(in[i * side] == left_of_left * 1000000 + i * side + 1,
               "flat to vector: element %d is %d", i, in[i * side]);
    MPI_Type_free(&column);
    free(out);
    free(in);
    free(flat);
}

struct record {
    char letter;
    double number;
    int pair[2];
};

static void structs(int count) {
    struct record *out = need_memory((size_t)count * sizeof *out);
    struct record *in = need_memory((size_t)count * sizeof *in);
    int lengths[3] = {1, 1, 2};
    MPI_Aint at[3] = {offsetof(struct record, letter), offsetof(struct record, number),
                      offsetof(struct record, pair)};
    MPI_Datatype types[3] = {MPI_CHAR, MPI_DOUBLE, MPI_INT}, raw, type;
    MPI_Type_create_struct(3, lengths, at, types, &raw);
    MPI_Type_create_resized(raw, 0, sizeof(struct record), &type);
    MPI_Type_commit(&type);
    for (int i = 0; i < count; i++)
        out[i] = (struct record){(char)(i % 128), check_rank + i / 3.0, {i, -i}};
    MPI_Sendrecv(out, count, type, right, DATA, in, count, type, left, DATA, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int i = 0; i < count; i++)
        EXPECT(in[i].letter == (char)(i % 128) && in[i].number == left + i / 3.0 &&
                   in[i].pair[0] == i && in[i].pair[1] == -i,
               "struct %d of %d is wrong", i, count);
    MPI_Type_free(&raw);
    MPI_Type_free(&type);
    free(out);
    free(in);
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "sendmodes");
    static const size_t sizes[] = {0, 1, 200, 4096, 20000, 300000, 2 << 20};
    int peer = check_rank ^ 1;
    right = (check_rank + 1) % check_size;
    left = (check_rank + check_size - 1) % check_size;
    for (int round = 0; round < scaled(4, 1); round++) {
        for (int i = 0; i < 7; i++) {
            if (peer < check_size) synchronous(peer, sizes[i]);
            ready(sizes[i]);
            persistent(sizes[i], 4);
            send_and_receive(sizes[i]);
        }
        buffered();
        for (int way = 0; way < 8; way++) {
            completions(way, 1);
            completions(way, 0);
        }
        for (int side = 2; side <= 512; side *= 4) vectors(side);
        for (int count = 1; count <= 20000; count *= 11) structs(count);
    }
    return check_end();
}
