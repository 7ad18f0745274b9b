/* What it costs to make a buffer ready for zero-copy and to take that back, by pages, against copying it (Goglin, Prylli
 * and Glück 2004, fig. 3a: registration with the network card). Nothing here has such a card; what Linux has instead:
 *
 *   register, deregister   x: pages; value: ns
 *     mlock       mlock, munlock
 *     watch       userfaultfd in write-protect mode: what a cache needs to hear of changes
 *     map         a peer's memory (a memfd) is mapped and touched; unmapped
 *     io_uring    a fixed buffer of an io_uring: its pages are pinned, as for a device
 *   copy    plain: memcpy of as many pages, both sides in the cache as far as they fit; cold: from memory last used long ago
 *
 * The buffer was touched before, as that of a message is.
 */
#include <linux/io_uring.h>
#include <sys/uio.h>

#include "watch.h"

enum { MOST = 4096, TURNS = 9, COLD = 64 << 20 };

static unsigned char *buffer, *target, *cold;
static int peer, ring = -1, uffd = -1;

static int nothing(size_t bytes) {
    (void)bytes;
    return 0;
}

static int lock(size_t bytes) { return mlock(buffer, bytes); }
static int unlock(size_t bytes) { return munlock(buffer, bytes); }
static int watch_it(size_t bytes) { return watch(uffd, buffer, bytes); }
static int unwatch_it(size_t bytes) { return unwatch(uffd, buffer, bytes); }

static void *mapped;

static int map(size_t bytes) {
    mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, peer, 0);
    if (mapped == MAP_FAILED) return -1;
    for (size_t i = 0; i < bytes; i += PAGE) (void)*(volatile unsigned char *)((char *)mapped + i);
    return 0;
}

static int unmap(size_t bytes) { return munmap(mapped, bytes); }

static int fix(size_t bytes) {
    struct iovec iov = {buffer, bytes};
    return (int)syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &iov, 1);
}

static int unfix(size_t bytes) {
    (void)bytes;
    return (int)syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0);
}

static int plain(size_t bytes) {
    copy(target, buffer, bytes);
    return 0;
}

static int from_cold(size_t bytes) {
    static size_t at;
    at = at + bytes > COLD ? 0 : at;
    copy(target, cold + at, bytes);
    at += bytes;
    return 0;
}

static struct way {
    const char *series, *figure, *back;
    int (*there)(size_t), (*undo)(size_t);
    int refused;
} ways[] = {
    {"mlock", "register", "deregister", lock, unlock, 0},
    {"watch", "register", "deregister", watch_it, unwatch_it, 0},
    {"map", "register", "deregister", map, unmap, 0},
    {"io_uring", "register", "deregister", fix, unfix, 0},
    {"plain", "copy", NULL, plain, nothing, 0},
    {"cold", "copy", NULL, from_cold, nothing, 0},
};
enum { WATCH = 1, URING = 3, WAYS = sizeof ways / sizeof *ways };

static void refuse(struct way *way, const char *what) {
    char why[160];
    snprintf(why, sizeof why, "%s: %s", what, strerror(errno));
    missing(way->figure, way->series, why);
    way->refused = 1;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    pin(cores[0]);
    buffer = memory((size_t)MOST * PAGE, MAP_PRIVATE | MAP_ANONYMOUS);
    target = memory((size_t)MOST * PAGE, MAP_PRIVATE | MAP_ANONYMOUS);
    cold = memory(COLD, MAP_PRIVATE | MAP_ANONYMOUS);
    peer = memfd_create("papers", MFD_CLOEXEC);
    if (peer < 0 || ftruncate(peer, (off_t)MOST * PAGE) != 0) die("memfd");
    void *filled = mmap(NULL, (size_t)MOST * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, peer, 0);
    if (filled == MAP_FAILED) die("mmap");
    memset(filled, 1, (size_t)MOST * PAGE);
    struct io_uring_params params = {0};
    if ((uffd = open_watch()) < 0) refuse(&ways[WATCH], "no userfaultfd here");
    if ((ring = (int)syscall(SYS_io_uring_setup, 4, &params)) < 0) refuse(&ways[URING], "no io_uring here");
    for (size_t pages = 1; pages <= MOST; pages *= quick ? 16 : 2) {
        double there[WAYS][TURNS], undo[WAYS][TURNS];
        int turns = quick ? 3 : TURNS;
        for (int t = 0; t < turns; t++)
            for (int w = 0; w < WAYS; w++) {
                struct way *way = &ways[w];
                if (way->refused) continue;
                double start = now();
                int failed = way->there(pages * PAGE);
                there[w][t] = now() - start;
                start = now();
                failed = failed || way->undo(pages * PAGE);
                undo[w][t] = now() - start;
                if (failed) refuse(way, "not to be had here");
            }
        for (int w = 0; w < WAYS; w++) {
            if (ways[w].refused) continue;
            point(ways[w].figure, ways[w].series, (double)pages, median(there[w], (size_t)turns));
            if (ways[w].back) point(ways[w].back, ways[w].series, (double)pages, median(undo[w], (size_t)turns));
        }
    }
    return 0;
}
