/* Why a registration cache must hear of changes (Goglin 2006, both articles; VMA SPY of 2004), and what hearing costs.
 *
 *   wrong    x: kind of change; value: wrong sends of 1000. A sender's buffer is mapped anew between sends; the peer keeps what it
 *            learned of where the buffer lies, under its address.
 *     deaf     nobody tells it
 *     watched  the kernel does (watch.h): the entry is dropped
 *     0: munmap, then mmap at the same place; 1: mmap over it; 2: mremap of other memory over it; 3: none (madvise(MADV_DONTNEED)
 *     leaves shared memory what it is)
 *   munmap, mremap, discard, touch   x: pages; value: ns of the call, or of the first touch of all pages after it
 *     none       no userfaultfd is open; a second thread sleeps, as in the other cases
 *     elsewhere  one watches another mapping
 *     watched    it watches this one; the thread that reads the events sleeps on another core
 *     same-core  that thread sleeps on the caller's core
 */
#include <poll.h>
#include <pthread.h>

#include "watch.h"

enum { TURNS = 31, SENDS = 1000, AREAS = 8, LENGTH = 4 * PAGE };

static atomic_int uffd = -1;
static int notify[2]; /* tells the reader to change its core */
static atomic_ulong epoch;
static atomic_int reader_core, reader_there = -1;

/* Reads events. The epoch moves before the read: whoever unmaps waits for the read, so it finds the new epoch afterwards. */
static void *listen_to(void *arg) {
    (void)arg;
    struct uffd_msg message;
    for (;;) {
        int core = atomic_load(&reader_core);
        pin(core);
        atomic_store(&reader_there, core);
        struct pollfd fds[2] = {{uffd, POLLIN, 0}, {notify[0], POLLIN, 0}};
        if (poll(fds, 2, -1) < 0) continue;
        if (fds[0].revents & POLLIN) {
            atomic_fetch_add(&epoch, 1);
            while (read(uffd, &message, sizeof message) == sizeof message) {}
        }
        char byte;
        if (fds[1].revents & POLLIN && read(notify[0], &byte, 1) == 1) continue;
    }
    return NULL;
}

static void move_reader(int core) {
    if (atomic_load(&reader_there) == core) return;
    atomic_store(&reader_core, core);
    if (write(notify[1], "", 1) != 1) die("write");
    while (atomic_load(&reader_there) != core) usleep(20);
}

/* ---- what watching costs ---- */

enum place { NONE, ELSEWHERE, WATCHED, SAME_CORE, PLACES };

static const char *const places[PLACES] = {"none", "elsewhere", "watched", "same-core"};
enum call { MUNMAP, MREMAP, DISCARD, TOUCH, CALLS };

static const char *const calls[CALLS] = {"munmap", "mremap", "discard", "touch"};

static void touch(unsigned char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += PAGE) ((volatile unsigned char *)at)[i] = 1;
}

static double timed(enum call call, enum place place, size_t bytes) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *to = NULL;
    if (at == MAP_FAILED) die("mmap");
    if (call != TOUCH) touch(at, bytes);
    if (place >= WATCHED && watch(uffd, at, bytes) != 0) die("UFFDIO_REGISTER");
    if (call == MREMAP && (to = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED) die("mmap");
    double start = now();
    if (call == TOUCH) touch(at, bytes);
    else if (call == DISCARD) madvise(at, bytes, MADV_DONTNEED);
    else if (call == MUNMAP) munmap(at, bytes);
    else if (mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) die("mremap");
    double took = now() - start;
    if (place >= WATCHED && call != MUNMAP) unwatch(uffd, call == MREMAP ? to : at, bytes);
    if (call != MUNMAP) munmap(call == MREMAP ? to : at, bytes);
    return took;
}

static void costs(enum place from, enum place to, int tell) {
    for (size_t pages = 1; pages <= 1024; pages *= quick ? 32 : 4)
        for (int call = 0; call < CALLS; call++) {
            double times[PLACES][TURNS];
            int turns = quick ? 5 : TURNS;
            for (int t = 0; t < turns; t++)
                for (int p = from; p <= (int)to; p++) {
                    if (p != NONE) move_reader(cores[p != SAME_CORE]);
                    times[p][t] = timed((enum call)call, (enum place)p, pages * PAGE);
                }
            for (int p = from; tell && p <= (int)to; p++) point(calls[call], places[p], (double)pages, median(times[p], (size_t)turns));
        }
}

/* Opens the userfaultfd, for what follows too, or tells why there is none. */
static void watched_costs(void) {
    int opened = open_watch();
    if (opened < 0 || fcntl(opened, F_SETFL, O_NONBLOCK) != 0) {
        char why[120];
        snprintf(why, sizeof why, "no userfaultfd here: %s", strerror(errno));
        missing("wrong", "watched", why);
        for (int p = ELSEWHERE; p < PLACES; p++) missing("munmap", places[p], why);
        return;
    }
    uffd = opened;
    move_reader(cores[0]); /* it listens to the new descriptor afterwards */
    move_reader(cores[1]);
    /* A mapping that is not its neighbour's: nothing is to be merged with it. */
    unsigned char *elsewhere = memory(16 * PAGE, MAP_SHARED | MAP_ANONYMOUS);
    if (watch(uffd, elsewhere, 16 * PAGE) != 0) die("UFFDIO_REGISTER");
    /* Apart, as the case before: a thread that ran on another core just now has to be told of unmapping there. */
    costs(ELSEWHERE, ELSEWHERE, 1);
    costs(WATCHED, SAME_CORE, 1);
    move_reader(cores[1]);
}

/* ---- wrong bytes ---- */

static int arena;
static unsigned char *seen; /* the whole arena, as a peer has it mapped */

static struct {
    off_t at;
    unsigned long epoch;
    int known;
} entry; /* what the peer knows of the one buffer */

static unsigned char *place_at(unsigned char *at, int area) {
    return mmap(at, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), arena, (off_t)area * LENGTH);
}

static void change(int kind, unsigned char *buffer, int area) {
    unsigned char *other = kind == 2 ? place_at(NULL, area) : NULL;
    void *done = buffer;
    if (kind == 0) done = munmap(buffer, LENGTH) == 0 ? place_at(buffer, area) : MAP_FAILED;
    else if (kind == 1) done = place_at(buffer, area);
    else if (kind == 2) done = mremap(other, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, buffer);
    else if (madvise(buffer, LENGTH, MADV_DONTNEED) != 0) done = MAP_FAILED;
    if (done == MAP_FAILED) die("a change of the mapping");
}

static void wrong(int kind, int heard) {
    unsigned char *buffer = place_at(NULL, 0), got[LENGTH];
    int area = 0, bad = 0, sends = quick ? 100 : SENDS;
    entry.known = 0;
    for (int i = 0; i < sends; i++) {
        if (i % 2 == 1) {
            area = kind == 3 ? area : (area + 1) % AREAS;
            change(kind, buffer, area);
        }
        memset(buffer, i, LENGTH);
        unsigned long at = atomic_load(&epoch);
        if (!entry.known || (heard && entry.epoch != at)) {
            if (heard && watch(uffd, buffer, LENGTH) != 0) die("UFFDIO_REGISTER");
            entry.at = (off_t)area * LENGTH;
            entry.epoch = at;
            entry.known = 1;
        }
        memcpy(got, seen + entry.at, LENGTH);
        bad += memcmp(got, buffer, LENGTH) != 0;
    }
    munmap(buffer, LENGTH);
    point("wrong", heard ? "watched" : "deaf", kind, bad * 1000.0 / sends);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    pin(cores[0]);
    pthread_t reader;
    atomic_store(&reader_core, cores[1]);
    if (pipe(notify) != 0 || pthread_create(&reader, NULL, listen_to, NULL) != 0) die("the reader of events");
    costs(NONE, NONE, 0); /* warms up */
    costs(NONE, NONE, 1);
    watched_costs();
    arena = memfd_create("papers", MFD_CLOEXEC);
    if (arena < 0 || ftruncate(arena, AREAS * LENGTH) != 0) die("memfd");
    seen = mmap(NULL, AREAS * LENGTH, PROT_READ, MAP_SHARED, arena, 0);
    if (seen == MAP_FAILED) die("mmap");
    for (int kind = 0; kind < 4; kind++) {
        wrong(kind, 0);
        if (uffd >= 0) wrong(kind, 1);
    }
    return 0;
}
