/* Messages out of and into sealed files that the program itself has mapped, and maps anew between messages: other files, other parts of
 * them, at the same addresses. Every byte is compared; none may be of what was there before.
 *
 * rustmx lends such memory to the peer, which maps it. Where the kernel has no userfaultfd for us it does not: then this says so. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FILES = 3, PAGES = 300, TURNS = 3, TAG = 7 };

static size_t page;

/* Of one direction: each has files of its own, so that what comes in cannot change what goes out. */
struct region {
    int files[FILES];
    unsigned char *at;
};

static int sealed_file(void) {
    int fd = memfd_create("mappings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT(fd >= 0, "memfd_create: %s", strerror(errno));
    EXPECT(ftruncate(fd, (off_t)(PAGES * TURNS * page)) == 0, "ftruncate: %s", strerror(errno));
    EXPECT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "F_ADD_SEALS: %s", strerror(errno));
    return fd;
}

/* Puts a part of a file at pages first .. first + pages of a region. */
static void lay(struct region *region, size_t first, size_t pages, int file, int turn) {
    unsigned char *want = region->at + first * page;
    off_t offset = (off_t)((first + (size_t)turn * PAGES) * page);
    void *got = mmap(want, pages * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                     region->files[file], offset);
    EXPECT(got == want, "mmap: %s", strerror(errno));
}

static void make(struct region *region) {
    for (int i = 0; i < FILES; i++) region->files[i] = sealed_file();
    region->at = mmap(NULL, PAGES * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(region->at != MAP_FAILED, "mmap: %s", strerror(errno));
    lay(region, 0, PAGES, 0, 0);
}

static void change(struct region *region, uint64_t *random) {
    size_t first = next_random(random) % 2 ? 0 : next_random(random) % PAGES;
    size_t pages = 1 + next_random(random) % (PAGES - first);
    int file = (int)(next_random(random) % FILES), turn = (int)(next_random(random) % TURNS);
    switch (next_random(random) % 4) {
    case 0: /* a file of which nothing is left but what is mapped */
        close(region->files[file]);
        region->files[file] = sealed_file();
        break;
    case 1: /* nothing there for a moment */
        EXPECT(mmap(region->at + first * page, pages * page, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED,
               "mmap: %s", strerror(errno));
        break;
    default: break;
    }
    lay(region, first, pages, file, turn);
}

static void say_if_unwatched(void) {
    long fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
    if (fd >= 0)
        close((int)fd);
    else if (check_rank == 0)
        printf("no userfaultfd here: %s\n", strerror(errno));
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "mappings");
    say_if_unwatched();
    page = (size_t)sysconf(_SC_PAGESIZE);
    int peer = check_rank ^ 1, rounds = scaled(1500, 60);
    struct region out, in;
    make(&out);
    make(&in);
    uint64_t plan = 99, mine = (uint64_t)check_rank + 1;
    for (int round = 0; peer < check_size && round < rounds; round++) {
        /* Both sides know how much; where is each one's own business. The same places come again. */
        size_t most = PAGES * page - 8 * page, bytes = 5000 + next_random(&plan) % (most - 5000);
        if (round % 4 != 0) bytes = 5000 + bytes % 60000;
        if (next_random(&mine) % 4 == 0) change(&out, &mine);
        if (next_random(&mine) % 4 == 0) change(&in, &mine);
        unsigned char *from = out.at + page * (next_random(&mine) % 3) + 16;
        unsigned char *into = in.at + page * (next_random(&mine) % 3) + 32;
        pattern_fill(from, bytes, seed_of(check_rank, peer, (uint64_t)round));
        memset(into, 0xee, bytes);
        MPI_Status status;
        MPI_Sendrecv(from, (int)bytes, MPI_BYTE, peer, TAG, into, (int)bytes, MPI_BYTE, peer, TAG,
                     MPI_COMM_WORLD, &status);
        expect_status(&status, peer, TAG, bytes, "a message in mapped files");
        expect_pattern(into, bytes, seed_of(peer, check_rank, (uint64_t)round), "a message in mapped files");
    }
    return check_end();
}
