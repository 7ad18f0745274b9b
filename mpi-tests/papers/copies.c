/* A message copied into shared memory by ordinary and by non-temporal stores, and what that does to
 * those who come after: a computation on the same core that lives in the cache, and the reader of
 * the message on another core (Goglin 2006, section on copies).
 *
 *   copy    x: bytes; value: ns for the copy
 *   victim  value: how much longer one pass over the computation's data (WORKING_SET) takes afterwards than undisturbed
 *   reader  value: ns for the other core to read the message
 *   sum     value: ns of all three
 *
 * Series: plain, non-temporal.
 */
#include "measure.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { WORKING_SET = 1 << 20, MOST = 32 << 20, TURNS = 9 };

static const char *const names[] = {"plain", "non-temporal"};

struct shared {
    _Alignas(LINE) atomic_ulong written;
    _Alignas(LINE) atomic_ulong read;
    _Alignas(LINE) double reading; /* ns, by the reader */
    _Alignas(PAGE) unsigned char data[MOST];
};

static struct shared *shared;
static unsigned char *source;
static volatile unsigned char *working;
static volatile unsigned long sink;

static void non_temporal(void *to, const void *from, size_t bytes) {
#if defined(__x86_64__)
    __m128i *t = to;
    const __m128i *f = from;
    for (size_t i = 0; i < bytes / sizeof *t; i += 4) {
        __m128i a = _mm_load_si128(f + i), b = _mm_load_si128(f + i + 1), c = _mm_load_si128(f + i + 2), d = _mm_load_si128(f + i + 3);
        _mm_stream_si128(t + i, a);
        _mm_stream_si128(t + i + 1, b);
        _mm_stream_si128(t + i + 2, c);
        _mm_stream_si128(t + i + 3, d);
    }
    _mm_sfence();
#else
    copy(to, from, bytes);
#endif
}

static unsigned long sum(const unsigned char *at, size_t bytes) {
    unsigned long total = 0, word;
    for (size_t i = 0; i < bytes; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        total += word;
    }
    return total;
}

/* The computation: one read of every line of its data, each depending on the one before. */
static double victim(void) {
    double start = now();
    size_t at = 0;
    for (size_t i = 0; i < WORKING_SET; i += LINE) at = (at + (LINE * 127) + working[at] - 1) % WORKING_SET;
    sink = at;
    return now() - start;
}

static void reader(size_t bytes, int turns, unsigned long *turn) {
    for (int i = 0; i < turns; i++) {
        await(&shared->written, ++*turn);
        double start = now();
        sink = sum(shared->data, bytes);
        shared->reading = now() - start;
        set(&shared->read, *turn);
    }
}

static void writer(size_t bytes, int turns, unsigned long *turn) {
    double copied[2][TURNS], hurt[2][TURNS], read[2][TURNS], all[2][TURNS];
    for (int i = 0; i < turns; i++)
        for (int kind = 0; kind < 2; kind++) {
            victim();
            double calm = victim(), start = now();
            if (kind == 0) copy(shared->data, source, bytes);
            else non_temporal(shared->data, source, bytes);
            double took = now() - start, after = victim();
            set(&shared->written, ++*turn);
            await(&shared->read, *turn);
            copied[kind][i] = took;
            hurt[kind][i] = after / calm;
            read[kind][i] = shared->reading;
            all[kind][i] = took + after + shared->reading;
        }
    for (int kind = 0; kind < 2; kind++) {
        point("copy", names[kind], (double)bytes, median(copied[kind], (size_t)turns));
        point("victim", names[kind], (double)bytes, median(hurt[kind], (size_t)turns));
        point("reader", names[kind], (double)bytes, median(read[kind], (size_t)turns));
        point("sum", names[kind], (double)bytes, median(all[kind], (size_t)turns));
    }
}

int main(int argc, char **argv) {
    begin(argc, argv);
#if !defined(__x86_64__)
    missing("copy", "non-temporal", "written for x86-64 only");
    return 0;
#endif
    shared = memory(sizeof *shared, MAP_SHARED | MAP_ANONYMOUS);
    memset(shared, 0, PAGE);
    source = memory(MOST, MAP_PRIVATE | MAP_ANONYMOUS);
    working = memory(WORKING_SET, MAP_PRIVATE | MAP_ANONYMOUS);
    int first = second() != 0, turns = quick ? 3 : TURNS;
    unsigned long turn = 0;
    for (size_t bytes = 4096; bytes <= MOST; bytes *= quick ? 64 : 2) {
        if (first) writer(bytes, turns, &turn);
        else reader(bytes, 2 * turns, &turn);
    }
    return 0;
}
