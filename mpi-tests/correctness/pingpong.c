/* Ping-pong between neighbours (0 with 1, 2 with 3, ...): 0 bytes to 64 MiB, every power of two and
 * its two neighbours, each message with a pattern of its own. */
#include "check.h"

static int rounds_of(size_t bytes) {
    if (bytes <= 64 << 10) return scaled(20, 3);
    if (bytes <= 1 << 20) return scaled(6, 2);
    return scaled(2, 1);
}

static void ping_pong(unsigned char *out, unsigned char *in, size_t bytes, int peer) {
    char what[64];
    MPI_Status status;
    snprintf(what, sizeof what, "message of %zu bytes from %d", bytes, peer);
    int rounds = rounds_of(bytes);
    for (int round = 0; round < rounds; round++) {
        uint64_t number = ((uint64_t)bytes << 8) + (uint64_t)round;
        int tag = round;
        pattern_fill(out, bytes, seed_of(check_rank, peer, number));
        memset(in, 0, bytes < 4096 ? bytes : 4096);
        guard_set(in, bytes);
        if (check_rank < peer) MPI_Send(out, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
        MPI_Recv(in, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &status);
        if (check_rank > peer) MPI_Send(out, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
        expect_status(&status, peer, tag, bytes, what);
        expect_pattern(in, bytes, seed_of(peer, check_rank, number), what);
        expect_guard(in, bytes, what);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "pingpong");
    size_t largest = (size_t)(check_scale >= 100 ? 64 : 4) << 20;
    int peer = check_rank ^ 1;
    if (peer < check_size) { /* with an odd number of ranks the last one only watches */
        unsigned char *out = need_memory(largest + 1);
        unsigned char *in = need_memory(largest + 1 + GUARD_BYTES);
        ping_pong(out, in, 0, peer);
        for (size_t power = 1; power <= largest; power *= 2) {
            if (power > 2) ping_pong(out, in, power - 1, peer);
            ping_pong(out, in, power, peer);
            if (power > 1) ping_pong(out, in, power + 1, peer);
        }
        free(out);
        free(in);
    }
    return check_end();
}
