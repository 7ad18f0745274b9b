/* What one small message costs in instructions, on each side, without any waiting: rank 0 sends a
 * window of messages that all fit into the transport's buffers; rank 1 posts its receives before and
 * waits for them after all have arrived. Run under callgrind with --toggle-collect of the two
 * functions below (ci/mpi-cost.sh); the counts do not depend on the machine's load.
 *
 * Usage: window [BYTES [ROUNDS]]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WINDOW = 32, MOST = 4096 };

static char buffers[WINDOW][MOST];
static MPI_Request requests[WINDOW];

__attribute__((noinline)) void window_send(int bytes) {
    for (int i = 0; i < WINDOW; i++)
        MPI_Isend(buffers[i], bytes, MPI_BYTE, 1, 7, MPI_COMM_WORLD, &requests[i]);
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
}

__attribute__((noinline)) void window_post(int bytes) {
    for (int i = 0; i < WINDOW; i++)
        MPI_Irecv(buffers[i], bytes, MPI_BYTE, 0, 7, MPI_COMM_WORLD, &requests[i]);
}

__attribute__((noinline)) void window_wait(void) {
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
}

int main(int argc, char **argv) {
    int rank, bytes = argc > 1 ? atoi(argv[1]) : 8, rounds = argc > 2 ? atoi(argv[2]) : 50;
    if (bytes < 0 || bytes > MOST || rounds < 1) {
        fprintf(stderr, "window: usage: window [BYTES 0..%d [ROUNDS]]\n", MOST);
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int round = 0; round < rounds; round++) {
        if (rank == 1) window_post(bytes);
        MPI_Barrier(MPI_COMM_WORLD); /* all receives are posted */
        if (rank == 0) {
            usleep(10000); /* the receiver has left the barrier and makes no progress */
            window_send(bytes);
        } else if (rank == 1) {
            usleep(40000); /* all messages are there */
            window_wait();
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0) printf("messages %d\n", WINDOW * rounds);
    MPI_Finalize();
    return 0;
}
