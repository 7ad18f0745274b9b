/* Reads of remote data with a registration cache, with registration each time, and through a copy (Goglin, Prylli and Glück 2004,
 * fig. 3b: reads from the remote file system ORFA), by hit ratio of the cache. The remote side is memory of another descriptor;
 * moving the data is one memcpy by the reader, where ORFA had a card and a wire.
 *
 *   map-N    x: hits of 100; value: MB/s (10^6 bytes) of requests of N bytes
 *     cache  a hit reads from a mapping that is there; a miss unmaps another one, and maps and faults in the wanted one
 *     copy   the data come through a buffer that is always ready, and are copied out of it: the same at every x
 *   lock-N   the same where registration is mlock of the reader's buffer (munlock of another one's at a miss)
 *
 * At 0 the cache is registration and deregistration each time.
 */
#include "measure.h"

enum { FILES = 64, REQUESTS = 256, BATCHES = 3 };

static int remote;
static unsigned char *bounce, *buffers, *source;
static unsigned char *mapped[FILES];
static size_t bytes;

static unsigned random_of(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static unsigned char *map(int file) {
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, remote, (off_t)((size_t)file * bytes));
    if (at == MAP_FAILED) die("mmap");
    return at;
}

/* Requests for files in turn, so that no data stay in a cache for longer in one scheme than in another. Returns ns for all. */
static double by_map(int hits) {
    unsigned state = 1;
    double start = now();
    for (int i = 0; i < REQUESTS; i++) {
        int file = i % FILES;
        if ((int)(random_of(&state) % 100) >= hits) {
            munmap(mapped[file], bytes);
            mapped[file] = map(file);
        }
        copy(buffers + (size_t)file * bytes, mapped[file], bytes);
    }
    return now() - start;
}

static double by_lock(int hits) {
    unsigned state = 1;
    double start = now();
    for (int i = 0; i < REQUESTS; i++) {
        size_t at = (size_t)(i % FILES) * bytes;
        if ((int)(random_of(&state) % 100) >= hits && (munlock(buffers + at, bytes) != 0 || mlock(buffers + at, bytes) != 0)) return -1;
        copy(buffers + at, source + at, bytes);
    }
    return now() - start;
}

static double by_copy(int hits) {
    (void)hits;
    double start = now();
    for (int i = 0; i < REQUESTS; i++) {
        size_t at = (size_t)(i % FILES) * bytes;
        copy(bounce, source + at, bytes);
        copy(buffers + at, bounce, bytes);
    }
    return now() - start;
}

static void sweep(void) {
    char maps[32], locks[32];
    int locked = mlock(buffers, FILES * bytes) == 0; /* a hit finds its buffer locked */
    snprintf(maps, sizeof maps, "map-%zu", bytes);
    snprintf(locks, sizeof locks, "lock-%zu", bytes);
    if (!locked) missing(locks, "cache", "mlock is refused: see ulimit -l");
    for (int hits = 0; hits <= 100; hits += quick ? 50 : 10) {
        double times[3][BATCHES];
        for (int b = 0; b < BATCHES; b++) {
            times[0][b] = by_map(hits);
            times[1][b] = by_copy(hits);
            times[2][b] = locked ? by_lock(hits) : -1;
        }
        double all = (double)bytes * REQUESTS * 1e3;
        double copied = all / median(times[1], BATCHES);
        point(maps, "cache", hits, all / median(times[0], BATCHES));
        point(maps, "copy", hits, copied);
        if (times[2][0] < 0) continue;
        point(locks, "cache", hits, all / median(times[2], BATCHES));
        point(locks, "copy", hits, copied);
    }
}

int main(int argc, char **argv) {
    begin(argc, argv);
    pin(cores[0]);
    for (bytes = 4096; bytes <= 1 << 20; bytes *= 16) {
        if (quick && bytes > 65536) break;
        size_t all = (size_t)FILES * bytes;
        remote = memfd_create("papers", MFD_CLOEXEC);
        if (remote < 0 || ftruncate(remote, (off_t)all) != 0) die("memfd");
        source = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, remote, 0);
        if (source == MAP_FAILED) die("mmap");
        memset(source, 1, all);
        bounce = memory(bytes, MAP_PRIVATE | MAP_ANONYMOUS);
        buffers = memory(all, MAP_PRIVATE | MAP_ANONYMOUS);
        for (int i = 0; i < FILES; i++) {
            mapped[i] = map(i);
            copy(buffers, mapped[i], bytes);
        }
        sweep();
        for (int i = 0; i < FILES; i++) munmap(mapped[i], bytes);
        munmap(source, all);
        munmap(bounce, bytes);
        munmap(buffers, all);
        close(remote);
    }
    return 0;
}
