/* Two ranks that send each other messages, timed: what sweep.c, perf.c and turns.c share.
 *
 * A turn is a round trip, or a window of messages and an empty answer to all of them. Each function
 * returns the seconds of one turn on the rank whose clock counts; its partner does as many turns.
 *
 * If messages are fresh, the sender rewrites each just before it is sent, so that no message is in a
 * cache of the receiver or mapped from before; if they are checked, the receiver compares every byte.
 * Both are left out of the time. In windows every message has a slot of its own then, all are written
 * before the clock starts and compared after it has stopped. Otherwise all messages of a window leave
 * from the same buffer and come into the same one, as in other MPI benchmarks.
 */
#ifndef RUSTMX_EXCHANGE_H
#define RUSTMX_EXCHANGE_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batches.h"

enum { BATCHES = 5, TRIALS = 3, PING = 1, STREAM = 2, ACK = 3, READY = 4, PAGE = 4096, UNTOUCHED = 0x5A };

struct exchange {
    const char *program;
    int peer;     /* the other rank, in MPI_COMM_WORLD */
    int first;    /* this rank sends first, and its clock counts */
    int window;   /* messages of a turn of stream and both_ways */
    int fresh;    /* each message is rewritten before it is sent */
    int check;    /* and compared after it came (check implies fresh) */
    size_t offset; /* bytes from the beginning of a page to that of a buffer */
    unsigned char *out, *in;
    MPI_Request *requests; /* twice the window */
};

/* Seconds of one turn. */
struct timing {
    double mean, median, best;
    long turns;
};

typedef double exchange_kind(struct exchange *, size_t bytes, long turns);

static inline void die(const char *program, const char *text) {
    fprintf(stderr, "%s: %s\n", program, text);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static inline size_t slots(const struct exchange *x) { return (size_t)(x->fresh ? x->window : 1); }

static inline void open_exchange(struct exchange *x, size_t longest) {
    size_t room = x->offset + slots(x) * longest + 1;
    /* Huge alignment would flatter one transport; what programs usually get is a page, or 16 bytes behind one (long blocks of malloc). */
    if (posix_memalign((void **)&x->out, PAGE, room) != 0 || posix_memalign((void **)&x->in, PAGE, room) != 0)
        die(x->program, "no memory");
    x->requests = malloc(sizeof *x->requests * 2 * (size_t)x->window);
    if (x->requests == NULL) die(x->program, "no memory");
    memset(x->out, UNTOUCHED, room);
    memset(x->in, 0, room);
    x->out += x->offset;
    x->in += x->offset;
}

static inline void close_exchange(struct exchange *x) {
    free(x->out - x->offset);
    free(x->in - x->offset);
    free(x->requests);
}

static inline unsigned char *slot(const struct exchange *x, unsigned char *base, size_t bytes, int i) {
    return x->fresh ? base + (size_t)i * bytes : base;
}

/* What byte i of a checked message is: neither moved nor old bytes look right. */
static inline unsigned char byte_of(size_t i, long stamp) {
    return (unsigned char)((i ^ (i >> 8) ^ (i >> 16)) * 31 + (size_t)stamp * 7);
}

/* Writes a message; returns the seconds that took. */
static inline double rewrite(const struct exchange *x, unsigned char *buffer, size_t bytes, long stamp) {
    if (!x->fresh) return 0;
    double start = MPI_Wtime();
    if (!x->check) memset(buffer, (int)(stamp & 0xFF), bytes);
    for (size_t i = 0; x->check && i < bytes; i++) buffer[i] = byte_of(i, stamp);
    return MPI_Wtime() - start;
}

/* One look at both ends of a message: cheap, but a wrong or stale one does not pass for fast. Every
 * byte, if messages are checked; returns the seconds that took. */
static inline double look(const struct exchange *x, const unsigned char *buffer, size_t bytes, long stamp) {
    if (bytes == 0) return 0;
    if (!x->check) {
        unsigned char want = x->fresh ? (unsigned char)(stamp & 0xFF) : UNTOUCHED;
        if (buffer[0] != want || buffer[bytes - 1] != want) die(x->program, "a message has wrong content");
        return 0;
    }
    double start = MPI_Wtime();
    for (size_t i = 0; i < bytes; i++)
        if (buffer[i] != byte_of(i, stamp)) {
            fprintf(stderr, "%s: byte %zu of a message of %zu is %u, not %u\n", x->program, i, bytes, buffer[i], byte_of(i, stamp));
            die(x->program, "a message has wrong content");
        }
    return MPI_Wtime() - start;
}

static inline double ping_pong(struct exchange *x, size_t bytes, long turns) {
    double aside = 0, other = 0;
    int n = (int)bytes;
    double start = MPI_Wtime();
    for (long i = 0; i < turns; i++) {
        if (x->first) {
            aside += rewrite(x, x->out, bytes, 2 * i);
            MPI_Send(x->out, n, MPI_BYTE, x->peer, PING, MPI_COMM_WORLD);
        }
        MPI_Recv(x->in, n, MPI_BYTE, x->peer, PING, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        aside += look(x, x->in, bytes, 2 * i + x->first);
        if (!x->first) {
            aside += rewrite(x, x->out, bytes, 2 * i + 1);
            MPI_Send(x->out, n, MPI_BYTE, x->peer, PING, MPI_COMM_WORLD);
        }
    }
    double seconds = MPI_Wtime() - start;
    /* The other side's writing lies in our time too. */
    MPI_Sendrecv(&aside, 1, MPI_DOUBLE, x->peer, ACK, &other, 1, MPI_DOUBLE, x->peer, ACK, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    return (seconds - aside - other) / (double)turns;
}

/* A window of messages to the other rank (`to`), from it (`from`), or both. */
static inline void window(struct exchange *x, size_t bytes, int from, int to) {
    int n = 0;
    for (int i = 0; from && i < x->window; i++)
        MPI_Irecv(slot(x, x->in, bytes, i), (int)bytes, MPI_BYTE, x->peer, STREAM, MPI_COMM_WORLD, &x->requests[n++]);
    for (int i = 0; to && i < x->window; i++)
        MPI_Isend(slot(x, x->out, bytes, i), (int)bytes, MPI_BYTE, x->peer, STREAM, MPI_COMM_WORLD, &x->requests[n++]);
    MPI_Waitall(n, x->requests, MPI_STATUSES_IGNORE);
}

static inline double windows(struct exchange *x, size_t bytes, long turns, int both) {
    int to = both || x->first, from = both || !x->first;
    double seconds = 0;
    for (long w = 0; w < turns; w++) {
        for (int i = 0; to && i < x->window; i++) rewrite(x, slot(x, x->out, bytes, i), bytes, w + i);
        if (x->check || (both && x->fresh)) { /* who still writes or compares would be timed by the other one */
            MPI_Sendrecv(NULL, 0, MPI_BYTE, x->peer, READY, NULL, 0, MPI_BYTE, x->peer, READY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        double start = MPI_Wtime();
        window(x, bytes, from, to);
        if (x->first) MPI_Recv(NULL, 0, MPI_BYTE, x->peer, ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else MPI_Send(NULL, 0, MPI_BYTE, x->peer, ACK, MPI_COMM_WORLD);
        seconds += MPI_Wtime() - start;
        for (int i = x->check ? 0 : x->window - 1; from && i < x->window; i++) look(x, slot(x, x->in, bytes, i), bytes, w + i);
    }
    return seconds / (double)turns;
}

static inline double stream(struct exchange *x, size_t bytes, long turns) { return windows(x, bytes, turns, 0); }

static inline double both_ways(struct exchange *x, size_t bytes, long turns) { return windows(x, bytes, turns, 1); }

/* Times BATCHES batches: of as many turns as fit into `seconds` each, which a short trial tells, but at
 * least `least`; or of `turns` in all if that is not 0. */
static inline struct timing measure(exchange_kind *run, struct exchange *x, size_t bytes, double seconds, long least, long turns) {
    double batches[BATCHES], sum = 0;
    int count = turns != 0 && turns < BATCHES ? (int)turns : BATCHES;
    long each = turns / count;
    /* The first trial also connects the two and maps what has to be mapped. The fastest counts: a
     * disturbed one would give too few turns. */
    double trial = run(x, bytes, least);
    for (int i = 0; i < TRIALS; i++) {
        double again = run(x, bytes, least);
        if (again < trial) trial = again;
    }
    if (turns == 0) {
        each = (long)(seconds / (trial > 1e-9 ? trial : 1e-9));
        if (each < least) each = least;
        MPI_Bcast(&each, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    }
    for (int i = 0; i < count; i++) sum += batches[i] = run(x, bytes, each);
    struct timing t = {sum / count, median(batches, (size_t)count), 0, each * count};
    t.best = batches[0];
    return t;
}

#endif
