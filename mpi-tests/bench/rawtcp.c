/* What TCP allows between two processes of which each has a core: non-blocking sockets, both sides asking again and again, no
 * MPI, no matching, no copies but the kernel's. The bound under latency and above bandwidth of one connection.
 *
 *   rawtcp serve [PORT]        waits for one partner after the other; prints "port N" (default: any free one)
 *   rawtcp HOST PORT TEST [--sizes MIN:MAX] [--seconds F] [--window N]
 *
 *   latency   half the round trip of a ping-pong
 *   bw        a window (64) of messages one way, one send(2) for each that the socket takes at once, answered by one byte
 *   rate      the same with as many messages as there are in one send(2): what coalescing can reach
 *
 * Sizes are powers of two from MIN on (default 8:4194304); seconds for each size (default 0.1). Prints an object for each size as
 * perf --json does: size and latency_us, bandwidth_mbs or rate_mps, the median of five batches.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "batches.h"

enum { BATCHES = 5, TRIALS = 3, MOST = 64 << 20 };
enum kind { LATENCY, BANDWIDTH, RATE, KINDS };

/* What the client wants next: `turns` round trips, or windows of `window` messages. */
struct order {
    unsigned kind, window;
    unsigned long bytes, turns;
};

static const struct {
    const char *name, *field;
} kinds[KINDS] = {{"latency", "latency_us"}, {"bw", "bandwidth_mbs"}, {"rate", "rate_mps"}};

static unsigned char *buffer;

static void die(const char *what) {
    fprintf(stderr, "rawtcp: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* False if the partner has gone. */
static int again(ssize_t done) {
    if (done > 0 || (done < 0 && (errno == EAGAIN || errno == EINTR))) return 1;
    return 0;
}

static int put(int link, const void *from, size_t bytes) {
    for (const char *next = from; bytes > 0;) {
        ssize_t done = send(link, next, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (!again(done)) return 0;
        if (done > 0) next += done, bytes -= (size_t)done;
    }
    return 1;
}

static int get(int link, void *to, size_t bytes) {
    for (char *next = to; bytes > 0;) {
        ssize_t done = recv(link, next, bytes, MSG_DONTWAIT);
        if (!again(done)) return 0;
        if (done > 0) next += done, bytes -= (size_t)done;
    }
    return 1;
}

/* All turns of an order, on either side. */
static int turns(int link, const struct order *o, int first) {
    size_t window = o->bytes * o->window;
    for (unsigned long i = 0; i < o->turns; i++) {
        if (o->kind == LATENCY) {
            if (first ? !put(link, buffer, o->bytes) || !get(link, buffer, o->bytes) : !get(link, buffer, o->bytes) || !put(link, buffer, o->bytes))
                return 0;
        } else if (!first) {
            /* Into the same place, message by message, as an MPI's receives of a window would be. */
            if (o->kind == RATE && !get(link, buffer, window)) return 0;
            for (unsigned m = 0; o->kind == BANDWIDTH && m < o->window; m++)
                if (!get(link, buffer, o->bytes)) return 0;
            if (!put(link, "", 1)) return 0;
        } else {
            if (o->kind == RATE && !put(link, buffer, window)) return 0;
            for (unsigned m = 0; o->kind == BANDWIDTH && m < o->window; m++)
                if (!put(link, buffer, o->bytes)) return 0;
            char answer;
            if (!get(link, &answer, 1)) return 0;
        }
    }
    return 1;
}

static void at_once(int link) {
    int one = 1;
    if (setsockopt(link, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) die("TCP_NODELAY");
}

static void serve(unsigned port) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((unsigned short)port)};
    socklen_t length = sizeof address;
    int one = 1, zero = 0, listener = socket(AF_INET6, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        die("cannot listen");
    printf("port %u\n", ntohs(address.sin6_port));
    fflush(stdout);
    for (;;) {
        int link = accept(listener, NULL, NULL);
        if (link < 0) die("accept");
        at_once(link);
        struct order order;
        while (get(link, &order, sizeof order)) {
            if (order.kind >= KINDS || order.bytes == 0 || order.bytes > MOST / (order.kind == RATE ? order.window : 1)) break;
            if (!turns(link, &order, 0)) break;
        }
        close(link);
    }
}

static int reach(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int code = getaddrinfo(host, port, &hints, &found), link = -1;
    errno = 0;
    if (code != 0) die(gai_strerror(code));
    for (struct addrinfo *a = found; a != NULL && link < 0; a = a->ai_next) {
        link = socket(a->ai_family, a->ai_socktype, 0);
        if (link >= 0 && connect(link, a->ai_addr, a->ai_addrlen) != 0) {
            close(link);
            link = -1;
        }
    }
    if (link < 0) die("cannot connect");
    freeaddrinfo(found);
    at_once(link);
    return link;
}

/* Seconds of a turn. */
static double timed(int link, struct order o, unsigned long count) {
    o.turns = count;
    double start = now();
    if (!put(link, &o, sizeof o) || !turns(link, &o, 1)) die("the partner has gone");
    return (now() - start) / (double)count;
}

static void measure(int link, struct order o, double seconds) {
    double each[BATCHES], trial = 0;
    for (int i = 0; i < TRIALS; i++) trial = timed(link, o, o.kind == LATENCY ? 20 : 2);
    unsigned long count = (unsigned long)(seconds / BATCHES / trial) + 1;
    for (int i = 0; i < BATCHES; i++) each[i] = timed(link, o, count);
    double middle = median(each, BATCHES), all = o.window / middle;
    double figure = o.kind == LATENCY ? middle * 1e6 / 2 : o.kind == RATE ? all : all * (double)o.bytes / 1e6;
    printf("{\"size\":%lu,\"%s\":%.4f}\n", o.bytes, kinds[o.kind].field, figure);
    fflush(stdout);
}

int main(int argc, char **argv) {
    buffer = malloc(MOST);
    if (buffer == NULL) die("no memory");
    memset(buffer, 0x5A, MOST);
    if (argc > 1 && strcmp(argv[1], "serve") == 0) serve(argc > 2 ? (unsigned)atoi(argv[2]) : 0);
    unsigned long least = 8, most = 4 << 20;
    struct order order = {.kind = KINDS, .window = 64};
    double seconds = 0.1;
    for (unsigned kind = 0; argc > 3 && kind < KINDS; kind++)
        if (strcmp(argv[3], kinds[kind].name) == 0) order.kind = kind;
    for (int i = 4; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--window") == 0) order.window = (unsigned)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--sizes") != 0 || sscanf(argv[i + 1], "%lu:%lu", &least, &most) != 2) order.kind = KINDS;
    }
    if (order.kind == KINDS || argc % 2 != 0 || least == 0 || most > MOST / (order.kind == RATE ? order.window : 1) || order.window == 0) {
        errno = 0;
        die("serve [PORT], or HOST PORT latency|bw|rate [--sizes MIN:MAX] [--seconds F] [--window N] (see the head of rawtcp.c)");
    }
    int link = reach(argv[1], argv[2]);
    for (order.bytes = least; order.bytes <= most; order.bytes *= 2) measure(link, order, seconds);
    return 0;
}
