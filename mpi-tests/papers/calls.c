/* Messages through a ring in shared memory, by user code alone and with system calls in the way, as
 * Goglin did with MX (2006, fig. 2): every call of the library becomes a system call.
 *
 *   latency  x: bytes; value: one way of a ping-pong, ns
 *     user          no system call
 *     every-call    one for each send and for each poll of the receiver, also those that find nothing
 *     per-message   one for each send and one for each receive: the kernel would wait inside
 *     socket        a Unix socket, both sides spinning: the kernel's own path
 *   batch    x: messages that share a system call; value: ns for each message, streamed
 *     per-batch     one for each batch, on both sides
 *     user          none; the same at every x
 *
 * The system call does nothing (getppid): the cost of entering the kernel, not of work in it.
 */
#include "measure.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { SLOT = 4096, SLOTS = 64, MOST = 1 << 20, BATCHES = 5, SMALL = 8 };

struct ring {
    _Alignas(LINE) atomic_ulong head;
    _Alignas(LINE) atomic_ulong tail;
    _Alignas(PAGE) unsigned char slot[SLOTS][SLOT];
};

enum kind { USER, EVERY_CALL, PER_MESSAGE, SOCKET, KINDS };

static const char *const names[KINDS] = {"user", "every-call", "per-message", "socket"};
static struct ring *rings; /* [0] from the first process, [1] back */
static int sockets[2];
static unsigned char mine[MOST];
static int first;

static void enter(void) { syscall(SYS_getppid); }

/* One piece into the ring; 0 if it is full. */
static int put(struct ring *r, size_t bytes) {
    unsigned long at = atomic_load_explicit(&r->head, memory_order_relaxed);
    if (at - atomic_load_explicit(&r->tail, memory_order_acquire) == SLOTS) return 0;
    copy(r->slot[at % SLOTS], mine, bytes);
    set(&r->head, at + 1);
    return 1;
}

static int take(struct ring *r, size_t bytes) {
    unsigned long at = atomic_load_explicit(&r->tail, memory_order_relaxed);
    if (atomic_load_explicit(&r->head, memory_order_acquire) == at) return 0;
    copy(mine, r->slot[at % SLOTS], bytes);
    set(&r->tail, at + 1);
    return 1;
}

static void send_socket(size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(sockets[!first], mine + done, bytes - done, MSG_DONTWAIT);
        if (n > 0) done += (size_t)n;
        else if (errno != EAGAIN) die("send");
    }
}

static void receive_socket(size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = recv(sockets[!first], mine + done, bytes - done, MSG_DONTWAIT);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EAGAIN) die("recv");
    }
}

/* A message in pieces of a slot, each a call of the library. */
static void move(enum kind kind, struct ring *r, size_t bytes, int out) {
    if (kind == SOCKET) {
        if (out) send_socket(bytes);
        else receive_socket(bytes);
        return;
    }
    if (kind == PER_MESSAGE) enter();
    for (size_t left = bytes; left > 0;) {
        size_t piece = left < SLOT ? left : SLOT;
        if (kind == EVERY_CALL) enter();
        if (out ? put(r, piece) : take(r, piece)) left -= piece;
    }
}

static double ping_pong(enum kind kind, size_t bytes, int turns) {
    double start = now();
    for (int i = 0; i < turns; i++) {
        move(kind, &rings[0], bytes, first);
        move(kind, &rings[1], bytes, !first);
    }
    return (now() - start) / turns / 2;
}

/* Small messages one way, a system call for each `batch` of them on both sides (0: none). */
static double stream(int batch, int messages) {
    double start = now();
    for (int i = 0; i < messages; i++) {
        if (batch != 0 && i % batch == 0) enter();
        while (!(first ? put(&rings[0], SMALL) : take(&rings[0], SMALL))) {}
    }
    move(USER, &rings[1], SMALL, !first); /* all are there */
    return (now() - start) / messages;
}

static void latencies(void) {
    for (size_t bytes = SMALL; bytes <= MOST; bytes *= quick ? 64 : 4) {
        double times[KINDS][BATCHES];
        int turns = (int)((quick ? 100000 : 2000000) / (bytes + 2000)) + 5;
        for (int b = 0; b < BATCHES; b++)
            for (int k = 0; k < KINDS; k++) times[k][b] = ping_pong((enum kind)k, bytes, turns);
        for (int k = 0; first && k < KINDS; k++) point("latency", names[k], (double)bytes, median(times[k], BATCHES));
    }
}

static void batches(void) {
    int messages = quick ? 2000 : 20000;
    for (int batch = 1; batch <= 64; batch *= quick ? 8 : 2) {
        double with[BATCHES], without[BATCHES];
        for (int b = 0; b < BATCHES; b++) {
            with[b] = stream(batch, messages);
            without[b] = stream(0, messages);
        }
        if (!first) continue;
        point("batch", "per-batch", batch, median(with, BATCHES));
        point("batch", "user", batch, median(without, BATCHES));
    }
}

int main(int argc, char **argv) {
    begin(argc, argv);
    rings = memory(2 * sizeof *rings, MAP_SHARED | MAP_ANONYMOUS);
    memset(rings, 0, 2 * sizeof *rings);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) die("socketpair");
    first = second() != 0;
    latencies();
    batches();
    if (!first) _exit(0);
    double calls[BATCHES];
    for (int b = 0; b < BATCHES; b++) {
        double start = now();
        for (int i = 0; i < 10000; i++) enter();
        calls[b] = (now() - start) / 10000;
    }
    point("call", "system call", 0, median(calls, BATCHES));
    return 0;
}
