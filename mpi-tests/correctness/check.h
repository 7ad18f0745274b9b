/* Shared by the programs of this folder: arguments, failing with a clear message, and payload
 * patterns whose every byte depends on its position and on a seed.
 *
 * Arguments of every program: --scale PERCENT makes it do that share of its rounds (and leave out
 * its largest messages when below 100). They come as arguments, not as environment variables,
 * because launchers differ in what environment reaches the ranks.
 */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *check_name = "?";
static int check_rank = -1;
static int check_size = 0;
static int check_scale = 100;

__attribute__((format(printf, 1, 2), noreturn)) static inline void fail(const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "FAILED %s: rank %d of %d: %s\n", check_name, check_rank, check_size, text);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) fail(__VA_ARGS__);                                                       \
    } while (0)

static inline const char *check_option(int argc, char **argv, const char *name) {
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return argv[i + 1];
    return NULL;
}

static inline void check_begin_threads(int argc, char **argv, const char *name, int level) {
    int provided = -1;
    check_name = name;
    if (MPI_Init_thread(&argc, &argv, level, &provided) != MPI_SUCCESS) fail("MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &check_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &check_size);
    const char *scale = check_option(argc, argv, "--scale");
    if (scale != NULL) check_scale = atoi(scale);
    EXPECT(provided >= level, "thread level %d wanted, %d provided", level, provided);
    EXPECT(check_size >= 2, "needs at least two ranks");
}

static inline void check_begin(int argc, char **argv, const char *name) {
    check_begin_threads(argc, argv, name, MPI_THREAD_SINGLE);
}

/* A failing rank aborts the job, so rank 0 may speak for all once it has passed a barrier. */
static inline void check_ok(void) {
    if (check_rank == 0) {
        printf("OK %s\n", check_name);
        fflush(stdout);
    }
}

static inline int check_end(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    check_ok();
    MPI_Finalize();
    return 0;
}

/* `full` repetitions at 100 %, never less than `least`. */
static inline int scaled(int full, int least) {
    int n = (int)((long long)full * check_scale / 100);
    return n < least ? least : n;
}

static inline void *need_memory(size_t bytes) {
    void *p = malloc(bytes == 0 ? 1 : bytes);
    EXPECT(p != NULL, "no memory for %zu bytes", bytes);
    return p;
}

/* Small generator with the same stream on all ranks, so that both sides know the plan. */
static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* The seed of the message number `round` from one rank to another. */
static inline uint64_t seed_of(int from, int to, uint64_t round) {
    uint64_t state = ((uint64_t)from << 48) ^ ((uint64_t)to << 32) ^ round;
    return next_random(&state);
}

static inline uint64_t pattern_word(uint64_t seed, uint64_t index) {
    uint64_t x = (seed + index * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93);
    return x ^ (x >> 32);
}

static inline void pattern_fill(void *buffer, size_t bytes, uint64_t seed) {
    unsigned char *p = buffer;
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t w = pattern_word(seed, i);
        memcpy(p + 8 * i, &w, 8);
    }
    uint64_t last = pattern_word(seed, words);
    memcpy(p + 8 * words, &last, bytes % 8);
}

/* Returns the offset of the first wrong byte, or `bytes`. */
static inline size_t pattern_check(const void *buffer, size_t bytes, uint64_t seed) {
    const unsigned char *p = buffer;
    size_t words = bytes / 8;
    for (size_t i = 0; i <= words; i++) {
        uint64_t want = pattern_word(seed, i);
        size_t part = i < words ? 8 : bytes % 8;
        if (memcmp(p + 8 * i, &want, part) == 0) continue;
        for (size_t b = 0; b < part; b++)
            if (p[8 * i + b] != ((unsigned char *)&want)[b]) return 8 * i + b;
    }
    return bytes;
}

static inline void expect_pattern(const void *buffer, size_t bytes, uint64_t seed,
                                  const char *what) {
    size_t bad = pattern_check(buffer, bytes, seed);
    if (bad == bytes) return;
    unsigned got = ((const unsigned char *)buffer)[bad];
    uint64_t want = pattern_word(seed, bad / 8);
    fail("%s: wrong byte at offset %zu of %zu: got 0x%02x, expected 0x%02x", what, bad, bytes, got,
         ((unsigned char *)&want)[bad % 8]);
}

/* Bytes behind a receive buffer that no message may touch. */
enum { GUARD_BYTES = 64, GUARD_VALUE = 0xA5 };

static inline void guard_set(void *buffer, size_t bytes) {
    memset((unsigned char *)buffer + bytes, GUARD_VALUE, GUARD_BYTES);
}

static inline void expect_guard(const void *buffer, size_t bytes, const char *what) {
    const unsigned char *p = (const unsigned char *)buffer + bytes;
    for (int i = 0; i < GUARD_BYTES; i++)
        EXPECT(p[i] == GUARD_VALUE, "%s: written %d bytes past the end of a buffer of %zu", what, i,
               bytes);
}

static inline void expect_status(const MPI_Status *status, int source, int tag, size_t bytes,
                                 const char *what) {
    int count = -1;
    MPI_Get_count(status, MPI_BYTE, &count);
    EXPECT(status->MPI_SOURCE == source, "%s: source %d, expected %d", what, status->MPI_SOURCE,
           source);
    EXPECT(status->MPI_TAG == tag, "%s: tag %d, expected %d", what, status->MPI_TAG, tag);
    EXPECT(count >= 0 && (size_t)count == bytes, "%s: length %d, expected %zu", what, count, bytes);
}

#endif
