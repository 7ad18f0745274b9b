/* A flood of unexpected messages: the receiver waits for a message with another tag that was sent
 * after all of them, and only then receives them, in order. Then fewer messages, each with a tag of
 * its own, received in the reverse order of sending. The receiver's growth in memory is printed.
 *
 * The sender never waits for a message of the flood before it has sent the last one: MPI does not
 * promise that a send completes without its receive.
 */
#include "check.h"

enum { FLOOD = 1, LAST = 2, BASE = 1000, LONGEST = 4096, POOL = 1 << 20, WINDOW = 256 };

/* Both sides have the same pool of bytes; message i is a slice of it. */
static unsigned char *pool;

static size_t length_of(int i) {
    uint64_t state = (uint64_t)i;
    uint64_t dice = next_random(&state);
    /* mostly short, as floods are, but every length up to the longest occurs */
    return dice % 4 == 0 ? (dice >> 8) % (LONGEST + 1) : (dice >> 8) % 129;
}

static size_t offset_of(int i) { return (size_t)i * 1031 % (POOL - LONGEST); }

static size_t resident_bytes(void) {
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        if (fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
        fclose(file);
    }
    return resident * 4096;
}

static void send_flood(int peer, int messages, int tag_step) {
    MPI_Request *requests = need_memory(sizeof *requests * (size_t)(messages + 1));
    for (int i = 0; i < messages; i++) {
        int flag, tag = tag_step ? BASE + i : FLOOD;
        MPI_Isend(pool + offset_of(i), (int)length_of(i), MPI_BYTE, peer, tag, MPI_COMM_WORLD,
                  &requests[i]);
        if (i % WINDOW == WINDOW - 1)
            MPI_Testall(WINDOW, &requests[i + 1 - WINDOW], &flag, MPI_STATUSES_IGNORE);
    }
    MPI_Isend(NULL, 0, MPI_BYTE, peer, LAST, MPI_COMM_WORLD, &requests[messages]);
    MPI_Waitall(messages + 1, requests, MPI_STATUSES_IGNORE);
    free(requests);
}

static void receive_flood(int peer, int messages, int tag_step) {
    unsigned char in[LONGEST + GUARD_BYTES];
    size_t before = resident_bytes(), payload = 0;
    MPI_Recv(NULL, 0, MPI_BYTE, peer, LAST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    size_t after = resident_bytes();
    for (int k = 0; k < messages; k++) {
        int i = tag_step ? messages - 1 - k : k;
        int tag = tag_step ? BASE + i : FLOOD;
        size_t bytes = length_of(i);
        MPI_Status status;
        payload += bytes;
        guard_set(in, bytes);
        MPI_Recv(in, LONGEST, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &status);
        char what[48];
        snprintf(what, sizeof what, "message %d of %d", i, messages);
        expect_status(&status, peer, tag, bytes, what);
        if (memcmp(in, pool + offset_of(i), bytes) != 0) {
            size_t at = 0;
            while (in[at] == pool[offset_of(i) + at]) at++;
            fail("%s: wrong byte at offset %zu of %zu", what, at, bytes);
        }
        expect_guard(in, bytes, what);
    }
    if (check_rank == 0)
        printf("flood: %d unexpected messages, %zu KiB of payload: receiver grew by %zd KiB\n",
               messages, payload >> 10, (ssize_t)(after - before) / 1024);
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "flood");
    int peer = check_rank ^ 1;
    pool = need_memory(POOL);
    pattern_fill(pool, POOL, 12345);
    int counts[2] = {scaled(100000, 1000), scaled(3000, 300)};
    for (int tag_step = 0; peer < check_size && tag_step < 2; tag_step++) {
        if (check_rank % 2 == 0)
            receive_flood(peer, counts[tag_step], tag_step);
        else
            send_flood(peer, counts[tag_step], tag_step);
    }
    free(pool);
    return check_end();
}
