/* Every MPI-3 collective, blocking and non-blocking, with counts from 0 to 1 MiB; every element of
 * every result is compared with a value computed locally. */
#include "check.h"
#include <time.h>

typedef uint32_t u32;
enum { U = sizeof(u32) };

static int n, me;
static int count;           /* elements of the current round */
static int nonblocking;     /* 1: the MPI_I... form of the call */
static const char *op_name; /* for messages */
static u32 *out, *in;       /* each with room for n * (count + n) elements and a guard */
static MPI_Op compose;      /* associative, not commutative */
static MPI_Datatype affine; /* what it works on */

/* Runs one collective in the form wanted now. */
#define RUN(name, ...)                                                                             \
    do {                                                                                           \
        op_name = nonblocking ? "I" #name : #name;                                                 \
        if (nonblocking) {                                                                         \
            MPI_Request request;                                                                   \
            MPI_I##name(__VA_ARGS__, MPI_COMM_WORLD, &request);                                    \
            MPI_Wait(&request, MPI_STATUS_IGNORE);                                                 \
        } else {                                                                                   \
            call_##name(__VA_ARGS__, MPI_COMM_WORLD);                                              \
        }                                                                                          \
    } while (0)
/* "MPI_I" and "bcast" make MPI_Ibcast, but the blocking form has a capital letter. */
#define call_bcast MPI_Bcast
#define call_reduce MPI_Reduce
#define call_allreduce MPI_Allreduce
#define call_gather MPI_Gather
#define call_gatherv MPI_Gatherv
#define call_scatter MPI_Scatter
#define call_scatterv MPI_Scatterv
#define call_allgather MPI_Allgather
#define call_allgatherv MPI_Allgatherv
#define call_alltoall MPI_Alltoall
#define call_alltoallv MPI_Alltoallv
#define call_alltoallw MPI_Alltoallw
#define call_scan MPI_Scan
#define call_exscan MPI_Exscan
#define call_reduce_scatter MPI_Reduce_scatter
#define call_reduce_scatter_block MPI_Reduce_scatter_block

/* Element `i` of what `rank` contributes (to `peer`, where that matters). */
static u32 value(int rank, int peer, int i) {
    return (u32)pattern_word((uint64_t)rank * 1000003 + (uint64_t)peer * 7919 + (uint64_t)count,
                             (uint64_t)i);
}

static void clear(int elements) {
    memset(in, 0xEE, (size_t)elements * U);
    guard_set(in, (size_t)elements * U);
}

static void same(int index, u32 want) {
    EXPECT(in[index] == want, "%s of %d elements: element %d is 0x%08x, expected 0x%08x", op_name,
           count, index, in[index], want);
}

static void guard(int elements) { expect_guard(in, (size_t)elements * U, op_name); }

static void fill(int peer) {
    for (int i = 0; i < count; i++) out[i] = value(me, peer, i);
}

static void fill_for_each(void) {
    for (int p = 0; p < n; p++)
        for (int i = 0; i < count; i++) out[p * count + i] = value(me, p, i);
}

/* ---- reductions ---- */

static u32 sum_upto(int ranks, int i) {
    u32 sum = 0;
    for (int r = 0; r < ranks; r++) sum += value(r, 0, i);
    return sum;
}

/* x -> a x + b modulo 2^32; pairs (a, b) compose associatively, but not commutatively. */
static void compose_pairs(void *left, void *right, int *length, MPI_Datatype *type) {
    u32 *l = left, *r = right;
    (void)type;
    for (int i = 0; i < *length; i++) {
        u32 a = l[2 * i], b = l[2 * i + 1];
        r[2 * i + 1] += r[2 * i] * b;
        r[2 * i] *= a;
    }
}

static void expect_composed(int ranks, int first, int pairs) {
    for (int i = 0; i < pairs; i++) {
        u32 acc[2] = {value(0, 0, first + 2 * i), value(0, 0, first + 2 * i + 1)};
        for (int r = 1; r < ranks; r++) {
            u32 next[2] = {value(r, 0, first + 2 * i), value(r, 0, first + 2 * i + 1)};
            int one = 1;
            compose_pairs(acc, next, &one, &affine);
            memcpy(acc, next, sizeof acc);
        }
        same(2 * i, acc[0]);
        same(2 * i + 1, acc[1]);
    }
}

static void reductions(int root) {
    int pairs = count / 2;
    fill(0);

    clear(count);
    RUN(reduce, out, in, count, MPI_UINT32_T, MPI_SUM, root);
    for (int i = 0; me == root && i < count; i++) same(i, sum_upto(n, i));
    guard(count);

    clear(count);
    RUN(allreduce, out, in, count, MPI_UINT32_T, MPI_SUM);
    for (int i = 0; i < count; i++) same(i, sum_upto(n, i));
    guard(count);

    memcpy(in, out, (size_t)count * U);
    RUN(allreduce, MPI_IN_PLACE, in, count, MPI_UINT32_T, MPI_MAX);
    for (int i = 0; i < count; i++) {
        u32 max = 0;
        for (int r = 0; r < n; r++) max = value(r, 0, i) > max ? value(r, 0, i) : max;
        same(i, max);
    }
    guard(count);

    clear(2 * pairs);
    RUN(reduce, out, in, pairs, affine, compose, root);
    if (me == root) expect_composed(n, 0, pairs);
    clear(2 * pairs);
    RUN(allreduce, out, in, pairs, affine, compose);
    expect_composed(n, 0, pairs);
    guard(2 * pairs);

    clear(count);
    RUN(scan, out, in, count, MPI_UINT32_T, MPI_SUM);
    for (int i = 0; i < count; i++) same(i, sum_upto(me + 1, i));
    guard(count);

    clear(count);
    RUN(exscan, out, in, count, MPI_UINT32_T, MPI_SUM);
    for (int i = 0; me > 0 && i < count; i++) same(i, sum_upto(me, i));
    guard(count);

    clear(2 * pairs);
    RUN(scan, out, in, pairs, affine, compose);
    expect_composed(me + 1, 0, pairs);
    guard(2 * pairs);
}

static u32 sum_of_block(int block, int i) {
    u32 sum = 0;
    for (int r = 0; r < n; r++) sum += value(r, block, i);
    return sum;
}

static void reduce_scatters(int *counts) {
    fill_for_each();
    clear(count);
    RUN(reduce_scatter_block, out, in, count, MPI_UINT32_T, MPI_SUM);
    for (int i = 0; i < count; i++) same(i, sum_of_block(me, i));
    guard(count);

    u32 *p = out;
    for (int r = 0; r < n; r++)
        for (int i = 0; i < counts[r]; i++) *p++ = value(me, r, i);
    clear(counts[me]);
    RUN(reduce_scatter, out, in, counts, MPI_UINT32_T, MPI_SUM);
    for (int i = 0; i < counts[me]; i++) same(i, sum_of_block(me, i));
    guard(counts[me]);
}

/* ---- moving data ---- */

static void rooted(int root, int *counts, int *displacements, int room) {
    clear(count);
    for (int i = 0; me == root && i < count; i++) in[i] = value(root, 0, i);
    RUN(bcast, in, count, MPI_UINT32_T, root);
    for (int i = 0; i < count; i++) same(i, value(root, 0, i));
    guard(count);

    fill(0);
    clear(n * count);
    RUN(gather, out, count, MPI_UINT32_T, in, count, MPI_UINT32_T, root);
    for (int r = 0; me == root && r < n; r++)
        for (int i = 0; i < count; i++) same(r * count + i, value(r, 0, i));
    guard(n * count);

    clear(room);
    RUN(gatherv, out, counts[me], MPI_UINT32_T, in, counts, displacements, MPI_UINT32_T, root);
    for (int r = 0; me == root && r < n; r++) {
        for (int i = 0; i < counts[r]; i++) same(displacements[r] + i, value(r, 0, i));
        same(displacements[r] + counts[r], 0xEEEEEEEE); /* the gap is left alone */
    }
    guard(room);

    fill_for_each();
    clear(count);
    RUN(scatter, out, count, MPI_UINT32_T, in, count, MPI_UINT32_T, root);
    for (int i = 0; i < count; i++) same(i, value(root, me, i));
    guard(count);

    for (int r = 0; r < n; r++)
        for (int i = 0; i < counts[r]; i++) out[displacements[r] + i] = value(me, r, i);
    clear(counts[me]);
    RUN(scatterv, out, counts, displacements, MPI_UINT32_T, in, counts[me], MPI_UINT32_T, root);
    for (int i = 0; i < counts[me]; i++) same(i, value(root, me, i));
    guard(counts[me]);
}

static void gathers_to_all(int *counts, int *displacements, int room) {
    fill(0);
    clear(n * count);
    RUN(allgather, out, count, MPI_UINT32_T, in, count, MPI_UINT32_T);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < count; i++) same(r * count + i, value(r, 0, i));
    guard(n * count);

    clear(room);
    RUN(allgatherv, out, counts[me], MPI_UINT32_T, in, counts, displacements, MPI_UINT32_T);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < counts[r]; i++) same(displacements[r] + i, value(r, 0, i));
        same(displacements[r] + counts[r], 0xEEEEEEEE);
    }
    guard(room);
}

static void all_to_all(void) {
    int send_counts[n], receive_counts[n], send_at[n], receive_at[n];
    int send_bytes[n], receive_bytes[n];
    MPI_Datatype types[n];

    fill_for_each();
    clear(n * count);
    RUN(alltoall, out, count, MPI_UINT32_T, in, count, MPI_UINT32_T);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < count; i++) same(r * count + i, value(r, me, i));
    guard(n * count);

    /* Rank s sends to r count - ((s + r) mod n) elements; some pairs exchange none. */
    for (int r = 0, sent = 0, received = 0; r < n; r++) {
        int c = count - (me + r) % n;
        send_counts[r] = receive_counts[r] = c < 0 ? 0 : c;
        send_at[r] = sent;
        receive_at[r] = received;
        send_bytes[r] = sent * U;
        receive_bytes[r] = received * U;
        types[r] = MPI_UINT32_T;
        for (int i = 0; i < send_counts[r]; i++) out[sent + i] = value(me, r, i);
        sent += send_counts[r];
        received += receive_counts[r];
    }
    int total = receive_at[n - 1] + receive_counts[n - 1];
    for (int form = 0; form < 2; form++) {
        clear(total);
        if (form == 0)
            RUN(alltoallv, out, send_counts, send_at, MPI_UINT32_T, in, receive_counts, receive_at,
                MPI_UINT32_T);
        else
            RUN(alltoallw, out, send_counts, send_bytes, types, in, receive_counts, receive_bytes,
                types);
        for (int r = 0; r < n; r++)
            for (int i = 0; i < receive_counts[r]; i++) same(receive_at[r] + i, value(r, me, i));
        guard(total);
    }
}

static double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* No rank may leave a barrier before all have entered it. All ranks read the same clock, as they
 * are on one machine (network namespaces included). */
static void barriers(void) {
    for (int late = 0; late < n; late++) {
        double enter = clock_now(), leave, last;
        if (me == late)
            for (; clock_now() < enter + 0.003;) continue;
        enter = clock_now();
        if (nonblocking) {
            MPI_Request request;
            MPI_Ibarrier(MPI_COMM_WORLD, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else {
            MPI_Barrier(MPI_COMM_WORLD);
        }
        leave = clock_now();
        MPI_Allreduce(&enter, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        EXPECT(leave >= last, "%s: left %.6f s before the last rank entered",
               nonblocking ? "Ibarrier" : "Barrier", last - leave);
    }
}

/* Several collectives under way at once, finished in reverse order. */
static void overlapped(void) {
    enum { DEPTH = 8 };
    u32 sums[DEPTH], numbers[DEPTH], firsts[DEPTH];
    MPI_Request requests[2 * DEPTH + 1];
    for (int i = 0; i < DEPTH; i++) {
        numbers[i] = value(me, i, 0);
        firsts[i] = value(me, i, 1);
        MPI_Iallreduce(&numbers[i], &sums[i], 1, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD,
                       &requests[2 * i]);
        MPI_Ibcast(&firsts[i], 1, MPI_UINT32_T, i % n, MPI_COMM_WORLD, &requests[2 * i + 1]);
    }
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[2 * DEPTH]);
    for (int i = 2 * DEPTH; i >= 0; i--) MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
    for (int i = 0; i < DEPTH; i++) {
        u32 sum = 0;
        for (int r = 0; r < n; r++) sum += value(r, i, 0);
        EXPECT(sums[i] == sum, "overlapped Iallreduce %d: 0x%08x, expected 0x%08x", i, sums[i], sum);
        EXPECT(firsts[i] == value(i % n, i, 1), "overlapped Ibcast %d: 0x%08x", i, firsts[i]);
    }
}

static void round_of(int root) {
    int counts[n], displacements[n], room = 0;
    for (int r = 0; r < n; r++) {
        counts[r] = r >= count ? 0 : count - r;
        displacements[r] = room;
        room += counts[r] + 1; /* a gap of one element between two blocks */
    }
    rooted(root, counts, displacements, room);
    gathers_to_all(counts, displacements, room);
    all_to_all();
    reductions(root);
    reduce_scatters(counts);
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "collectives");
    /* The last two are 256 KiB and 1 MiB for one rank's part. */
    static const int sizes[] = {0, 1, 2, 7, 64, 1000, 4096, 16385, 65536, 262144};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    n = check_size;
    me = check_rank;
    int used = check_scale >= 100 ? SIZES : check_scale >= 25 ? SIZES - 1 : SIZES - 2;
    size_t room = (size_t)n * (size_t)(sizes[used - 1] + n) * U + GUARD_BYTES;
    out = need_memory(room);
    in = need_memory(room);
    MPI_Type_contiguous(2, MPI_UINT32_T, &affine);
    MPI_Type_commit(&affine);
    MPI_Op_create(compose_pairs, 0, &compose);

    for (nonblocking = 0; nonblocking < 2; nonblocking++) {
        barriers();
        for (int s = 0; s < used; s++) {
            count = sizes[s];
            round_of(s % n);
            if (s < 4) round_of(n - 1);
        }
    }
    for (int i = 0; i < scaled(20, 2); i++) overlapped();
    MPI_Op_free(&compose);
    MPI_Type_free(&affine);
    free(out);
    free(in);
    return check_end();
}
