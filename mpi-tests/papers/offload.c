/* A copy given to a helper thread while its owner computes, in place of a DMA engine (I/OAT, Goglin 2006):
 * with a core that is free, with one where somebody else computes, and on the owner's own core.
 *
 *   time   x: bytes; value: time until the copy and a computation as long as the copy are both done, divided by
 *          the time of one after the other on one core (1: offload gains nothing, 0.5: it hides all)
 *     free-spinning  the helper has a core and watches a word
 *     free-sleeping  it has a core and is woken (futex)
 *     busy           it is woken on a core where another thread computes all the time
 *     same           it is woken on the owner's core
 *   alone  value: ns of the copy itself, by its owner
 */
#include "measure.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

enum { MOST = 16 << 20, TURNS = 9 };
enum kind { IN_TURN, FREE_SPINNING, FREE_SLEEPING, BUSY, SAME, KINDS };

static const char *const names[KINDS] = {"", "free-spinning", "free-sleeping", "busy", "same"};
static unsigned char *from, *to;
static volatile double sink;

/* A helper waits until `asked` moves on, copies, and says so in `done`. */
static struct helper {
    _Alignas(LINE) atomic_uint asked;
    _Alignas(LINE) atomic_uint done;
    size_t bytes;
    int spins, core;
} spinning, sleeping, beside;

static atomic_int computing; /* the thread that makes the other core busy runs */

static void *help(void *arg) {
    struct helper *h = arg;
    pin(h->core);
    for (unsigned turn = 0;; turn++) {
        while (atomic_load_explicit(&h->asked, memory_order_acquire) == turn)
            if (!h->spins) syscall(SYS_futex, &h->asked, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
        copy(to, from, h->bytes);
        atomic_store_explicit(&h->done, turn + 1, memory_order_release);
    }
    return NULL;
}

static double per_ns; /* steps of a computation */

/* Computes in registers: as much work as takes so long undisturbed. Work, not time: who shares a core is slowed down. */
static void compute(double ns) {
    double x = 1;
    for (long steps = (long)(ns * per_ns); steps > 0; steps--) x = x * 1.0000001 + 1e-9;
    sink = x;
}

static void calibrate(void) {
    double best = 1e300;
    per_ns = 1;
    for (int i = 0; i < 20; i++) {
        double start = now();
        compute(100000);
        double took = now() - start;
        best = took < best ? took : best;
    }
    per_ns = 100000 / best;
}

static void *compute_always(void *arg) {
    (void)arg;
    pin(cores[1]);
    for (;;) {
        while (!atomic_load_explicit(&computing, memory_order_acquire)) usleep(200);
        compute(50000);
    }
    return NULL;
}

static double offloaded(struct helper *h, size_t bytes, double work) {
    unsigned turn = atomic_load_explicit(&h->done, memory_order_relaxed) + 1;
    h->bytes = bytes;
    double start = now();
    atomic_store_explicit(&h->asked, turn, memory_order_release);
    if (!h->spins) syscall(SYS_futex, &h->asked, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    compute(work);
    while (atomic_load_explicit(&h->done, memory_order_acquire) != turn)
        if (h->core == cores[0]) sched_yield();
    return now() - start;
}

static double in_turn(size_t bytes, double work) {
    double start = now();
    copy(to, from, bytes);
    compute(work);
    return now() - start;
}

static double once(enum kind kind, size_t bytes, double work) {
    switch (kind) {
        case FREE_SPINNING: return offloaded(&spinning, bytes, work);
        case FREE_SLEEPING: return offloaded(&sleeping, bytes, work);
        case SAME: return offloaded(&beside, bytes, work);
        case BUSY: {
            atomic_store(&computing, 1);
            usleep(1000);
            double took = offloaded(&sleeping, bytes, work);
            atomic_store(&computing, 0);
            usleep(400);
            return took;
        }
        default: return in_turn(bytes, work);
    }
}

static void start(struct helper *h, int spins, int core) {
    pthread_t thread;
    h->spins = spins;
    h->core = core;
    if (pthread_create(&thread, NULL, help, h) != 0) die("pthread_create");
}

int main(int argc, char **argv) {
    begin(argc, argv);
    pthread_t thread;
    from = memory(MOST, MAP_PRIVATE | MAP_ANONYMOUS);
    to = memory(MOST, MAP_PRIVATE | MAP_ANONYMOUS);
    start(&sleeping, 0, cores[1]);
    start(&beside, 0, cores[0]);
    pin(cores[0]);
    calibrate();
    if (pthread_create(&thread, NULL, compute_always, NULL) != 0) die("pthread_create");
    for (int spin = 0; spin < 2; spin++) { /* the spinning helper takes its core for good, so it comes last */
        if (spin) start(&spinning, 1, cores[1]);
        for (size_t bytes = 16384; bytes <= MOST; bytes *= quick ? 32 : 4) {
            double alone[TURNS], times[KINDS][TURNS];
            int turns = quick ? 3 : TURNS;
            for (int i = 0; i < turns; i++) {
                double begun = now();
                copy(to, from, bytes);
                alone[i] = now() - begun;
            }
            double work = median(alone, (size_t)turns);
            for (int i = 0; i < turns; i++)
                for (int k = 0; k < KINDS; k++)
                    if (k == IN_TURN || (k == FREE_SPINNING) == spin) times[k][i] = once((enum kind)k, bytes, work);
            double base = median(times[IN_TURN], (size_t)turns);
            for (int k = 1; k < KINDS; k++)
                if ((k == FREE_SPINNING) == spin) point("time", names[k], (double)bytes, median(times[k], (size_t)turns) / base);
            if (!spin) point("alone", "copy", (double)bytes, work);
        }
    }
    return 0;
}
