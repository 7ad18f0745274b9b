/* One-sided communication: put, get and accumulates of all kinds, in windows of all kinds, under all ways to synchronise.
 *
 * What memory and answers must hold is computed here, by plain C. Where several ranks meet in one place, the judge asks only for
 * what every order has in common: each value of a counter is handed out once, nobody's own ones out of order.
 */
#include "check.h"

enum kind { ALLOCATED, CREATED, DYNAMIC, KINDS };
enum sync { FENCE, START_POST, LOCK, FLUSH, SYNCS };

static const char *const kind_names[KINDS] = {"allocated", "created", "dynamic"};
static const char *const sync_names[SYNCS] = {"fence", "start/post", "lock", "lock_all and flush"};

static int right, left;
static MPI_Group neighbours;
static int targets[2], target_count; /* right and left, which are one of two ranks */
static char doing[160];              /* for messages */

/* Whether it is this one's turn: a short run does one of `few`, one on crowded cores one of `fewest`, in a row that all ranks count alike. */
static int in_turn(unsigned few, unsigned fewest) {
    static unsigned turns;
    return check_scale >= 100 || turns++ % (check_scale >= 20 ? few : fewest) == 0;
}

struct window {
    MPI_Win win;
    enum kind kind;
    unsigned char *memory;
    MPI_Aint *base; /* what displacement 0 of each rank is */
};

static struct window window_open(enum kind kind, size_t bytes) {
    struct window w = {.kind = kind, .base = need_memory(sizeof(MPI_Aint) * (size_t)check_size)};
    MPI_Aint here = 0;
    switch (kind) {
    case ALLOCATED:
        MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w.memory, &w.win);
        break;
    case CREATED:
        w.memory = need_memory(bytes);
        MPI_Win_create(w.memory, (MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w.win);
        break;
    default:
        w.memory = need_memory(bytes);
        MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &w.win);
        MPI_Win_attach(w.win, w.memory, (MPI_Aint)bytes);
        MPI_Get_address(w.memory, &here);
    }
    MPI_Allgather(&here, 1, MPI_AINT, w.base, 1, MPI_AINT, MPI_COMM_WORLD);
    return w;
}

static void window_close(struct window *w) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (w->kind == DYNAMIC) MPI_Win_detach(w->win, w->memory);
    MPI_Win_free(&w->win);
    if (w->kind != ALLOCATED) free(w->memory);
    free(w->base);
}

static MPI_Aint at(const struct window *w, int target, size_t offset) {
    return MPI_Aint_add(w->base[target], (MPI_Aint)offset);
}

/* Around what is done to neighbours; what was stored in one's own memory before is theirs to see, and after `leave` one's own
 * memory has what they did. */
static void enter(struct window *w, enum sync sync) {
    switch (sync) {
    case FENCE: MPI_Win_fence(0, w->win); return;
    case START_POST:
        MPI_Win_post(neighbours, 0, w->win);
        MPI_Win_start(neighbours, 0, w->win);
        return;
    case LOCK:
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < target_count; i++) MPI_Win_lock(MPI_LOCK_SHARED, targets[i], 0, w->win);
        return;
    default:
        MPI_Win_lock_all(0, w->win);
        MPI_Win_sync(w->win);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void leave(struct window *w, enum sync sync) {
    switch (sync) {
    case FENCE: MPI_Win_fence(0, w->win); return;
    case START_POST:
        MPI_Win_complete(w->win);
        MPI_Win_wait(w->win);
        return;
    case LOCK:
        for (int i = 0; i < target_count; i++) MPI_Win_unlock(targets[i], w->win);
        MPI_Barrier(MPI_COMM_WORLD);
        /* Whoever has a copy of the window for others brings the two together. */
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, check_rank, 0, w->win);
        MPI_Win_unlock(check_rank, w->win);
        return;
    default:
        for (int i = 0; i < target_count; i++) MPI_Win_flush(targets[i], w->win);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_sync(w->win);
        MPI_Win_unlock_all(w->win);
    }
}

/* ---- put and get ---- */

static void put_and_get(struct window *w, enum sync sync, size_t bytes, uint64_t round) {
    size_t area = (bytes + GUARD_BYTES + 7) / 8 * 8;
    unsigned char *mine = w->memory, *theirs = w->memory + area;
    unsigned char *out = need_memory(bytes), *in = need_memory(bytes + GUARD_BYTES);
    pattern_fill(mine, bytes, seed_of(check_rank, check_rank, round));
    memset(theirs, 0, bytes);
    guard_set(theirs, bytes);
    guard_set(in, bytes);
    pattern_fill(out, bytes, seed_of(check_rank, right, round));
    int n = (int)bytes;
    enter(w, sync);
    MPI_Put(out, n, MPI_BYTE, right, at(w, right, area), n, MPI_BYTE, w->win);
    MPI_Get(in, n, MPI_BYTE, left, at(w, left, 0), n, MPI_BYTE, w->win);
    leave(w, sync);
    snprintf(doing, sizeof doing, "get, %s, %s window", sync_names[sync], kind_names[w->kind]);
    expect_pattern(in, bytes, seed_of(left, left, round), doing);
    expect_guard(in, bytes, doing);
    snprintf(doing, sizeof doing, "put, %s, %s window", sync_names[sync], kind_names[w->kind]);
    expect_pattern(theirs, bytes, seed_of(left, check_rank, round), doing);
    expect_guard(theirs, bytes, doing);
    expect_pattern(mine, bytes, seed_of(check_rank, check_rank, round), "what is only read");
    expect_pattern(out, bytes, seed_of(check_rank, right, round), "what is put");
    free(out);
    free(in);
}

/* ---- accumulates ---- */

enum op { SUM, PROD, MIN, MAX, LAND, LOR, LXOR, REPLACE, NO_OP, BAND, BOR, BXOR, OPS, FLOAT_OPS = LAND };

static MPI_Op op_of(enum op op) {
    const MPI_Op all[OPS] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_REPLACE, MPI_NO_OP,
                             MPI_BAND, MPI_BOR, MPI_BXOR};
    return all[op];
}

static const char *const op_names[OPS] = {"sum", "prod", "min", "max", "land", "lor", "lxor", "replace", "no_op", "band", "bor", "bxor"};

enum type { CHAR, SHORT, INT, UNSIGNED, LONG, FLOAT, DOUBLE, TYPES };

static MPI_Datatype type_of(enum type type) {
    const MPI_Datatype all[TYPES] = {MPI_UNSIGNED_CHAR, MPI_SHORT, MPI_INT, MPI_UNSIGNED, MPI_LONG_LONG, MPI_FLOAT, MPI_DOUBLE};
    return all[type];
}

static const char *const type_names[TYPES] = {"unsigned char", "short", "int", "unsigned", "long long", "float", "double"};
static const size_t type_bytes[TYPES] = {1, 2, 4, 4, 8, 4, 8};

#define ARITHMETIC(T, a, b)                                                                                                     \
    case SUM: *(a) = (T)(*(a) + *(b)); break;                                                                                  \
    case PROD: *(a) = (T)(*(a) * *(b)); break;                                                                                 \
    case MIN: *(a) = *(a) < *(b) ? *(a) : *(b); break;                                                                         \
    case MAX: *(a) = *(a) > *(b) ? *(a) : *(b); break;                                                                         \
    case REPLACE: *(a) = *(b); break;                                                                                          \
    default: break;
#define BITS(T, a, b)                                                                                                           \
    case LAND: *(a) = (T)(*(a) && *(b)); break;                                                                                \
    case LOR: *(a) = (T)(*(a) || *(b)); break;                                                                                 \
    case LXOR: *(a) = (T)(!*(a) != !*(b)); break;                                                                              \
    case BAND: *(a) = (T)(*(a) & *(b)); break;                                                                                 \
    case BOR: *(a) = (T)(*(a) | *(b)); break;                                                                                  \
    case BXOR: *(a) = (T)(*(a) ^ *(b)); break;

#define APPLY(T, MORE)                                                                                                          \
    for (size_t i = 0; i < count; i++) {                                                                                       \
        T *a = (T *)into + i;                                                                                                  \
        const T *b = (const T *)with + i;                                                                                      \
        switch (op) { MORE ARITHMETIC(T, a, b) }                                                                               \
    }                                                                                                                          \
    return

/* What an accumulate does, by plain C. */
static void apply(void *into, const void *with, size_t count, enum type type, enum op op) {
    switch (type) {
    case CHAR: APPLY(unsigned char, BITS(unsigned char, a, b));
    case SHORT: APPLY(short, BITS(short, a, b));
    case INT: APPLY(int, BITS(int, a, b));
    case UNSIGNED: APPLY(unsigned, BITS(unsigned, a, b));
    case LONG: APPLY(long long, BITS(long long, a, b));
    case FLOAT: APPLY(float, );
    default: APPLY(double, );
    }
}

/* Small whole numbers, so that floating point is exact. */
static void numbers(void *into, size_t count, enum type type, uint64_t seed) {
    for (size_t i = 0; i < count; i++) {
        long long n = (long long)(pattern_word(seed, i) >> 7 & 3);
        switch (type) {
        case CHAR: ((unsigned char *)into)[i] = (unsigned char)n; break;
        case SHORT: ((short *)into)[i] = (short)n; break;
        case INT: ((int *)into)[i] = (int)n; break;
        case UNSIGNED: ((unsigned *)into)[i] = (unsigned)n; break;
        case LONG: ((long long *)into)[i] = n; break;
        case FLOAT: ((float *)into)[i] = (float)n; break;
        default: ((double *)into)[i] = (double)n;
        }
    }
}

enum form { ACCUMULATE, GET_ACCUMULATE, FETCH_AND_OP };
static const char *const form_names[] = {"accumulate", "get_accumulate", "fetch_and_op"};

/* What some MPI cannot, whatever it runs over or by a fault of its own: see `learn_faults`. */
static int no_accumulates, no_dynamic;

/* Three in a row to the same place by one rank: MPI keeps their order. */
static void accumulates(struct window *w, enum sync sync, enum form form, enum type type, enum op op, size_t count) {
    enum { TURNS = 3 };
    if (no_accumulates) return;
    size_t bytes = count * type_bytes[type];
    unsigned char *out = need_memory(bytes * TURNS), *in = need_memory(bytes * TURNS + GUARD_BYTES), *want = need_memory(bytes);
    MPI_Datatype of = type_of(type);
    int n = (int)count;
    snprintf(doing, sizeof doing, "%s of %zu times %s, %s, %s, %s window", form_names[form], count, type_names[type], op_names[op],
             sync_names[sync], kind_names[w->kind]);
    numbers(w->memory, count, type, seed_of(check_rank, check_rank, count));
    guard_set(w->memory, bytes);
    guard_set(in, bytes * TURNS);
    for (int turn = 0; turn < TURNS; turn++)
        numbers(out + (size_t)turn * bytes, count, type, seed_of(check_rank, right, count + (unsigned)turn));
    enter(w, sync);
    for (int turn = 0; turn < TURNS; turn++) {
        unsigned char *send = out + (size_t)turn * bytes, *old = in + (size_t)turn * bytes;
        MPI_Aint place = at(w, right, 0);
        switch (form) {
        case ACCUMULATE: MPI_Accumulate(send, n, of, right, place, n, of, op_of(op), w->win); break;
        case GET_ACCUMULATE: MPI_Get_accumulate(send, n, of, old, n, of, right, place, n, of, op_of(op), w->win); break;
        default: MPI_Fetch_and_op(send, old, of, right, place, op_of(op), w->win);
        }
    }
    leave(w, sync);
    /* At the target, by what its left neighbour has added here. */
    numbers(want, count, type, seed_of(check_rank, check_rank, count));
    for (int turn = 0; turn < TURNS; turn++) {
        numbers(out, count, type, seed_of(left, check_rank, count + (unsigned)turn));
        apply(want, out, count, type, op);
    }
    EXPECT(memcmp(w->memory, want, bytes) == 0, "%s: the target has wrong values", doing);
    expect_guard(w->memory, bytes, doing);
    expect_guard(in, bytes * TURNS, doing);
    /* At the origin, by what was there before each. */
    numbers(want, count, type, seed_of(right, right, count));
    for (int turn = 0; turn < TURNS && form != ACCUMULATE; turn++) {
        EXPECT(memcmp(in + (size_t)turn * bytes, want, bytes) == 0, "%s: turn %d fetched wrong values", doing, turn);
        numbers(out, count, type, seed_of(check_rank, right, count + (unsigned)turn));
        apply(want, out, count, type, op);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* before the next one fills its memory */
    free(out);
    free(in);
    free(want);
}

static void all_accumulates(struct window *w, enum sync sync) {
    /* Every type and operation, in forms and lengths that take turns: with all ways to synchronise each meets some of them. */
    static const size_t counts[] = {1, 3, 100, 4097};
    unsigned turn = KINDS * (unsigned)sync;
    for (int type = 0; type < TYPES; type++)
        for (int op = 0; op < OPS; op++) {
            if (type >= FLOAT && (op > NO_OP || (op >= FLOAT_OPS && op < REPLACE))) continue;
            turn++;
            size_t count = counts[turn / 3 % 4];
            for (int form = op == NO_OP ? GET_ACCUMULATE : ACCUMULATE; form <= FETCH_AND_OP; form++) {
                if (!in_turn(25, 61)) continue;
                accumulates(w, sync, (enum form)form, (enum type)type, (enum op)op, form == FETCH_AND_OP ? 1 : count);
            }
        }
}

/* ---- where several meet ---- */

/* Adds 1 to a counter, by one of three calls, and tells what it was. */
static long long draw(MPI_Win win, int host, MPI_Aint place, int way) {
    long long one = 1, old = 0, guess = 0, next;
    switch (way) {
    case 0: MPI_Fetch_and_op(&one, &old, MPI_LONG_LONG, host, place, MPI_SUM, win); break;
    case 1: MPI_Get_accumulate(&one, 1, MPI_LONG_LONG, &old, 1, MPI_LONG_LONG, host, place, 1, MPI_LONG_LONG, MPI_SUM, win); break;
    default:
        for (;; guess = old) {
            next = guess + 1;
            MPI_Compare_and_swap(&next, &guess, &old, MPI_LONG_LONG, host, place, win);
            MPI_Win_flush(host, win);
            if (old == guess) return old;
        }
    }
    MPI_Win_flush(host, win);
    return old;
}

/* All ranks draw numbers from one counter: each number once, and nobody's own ones out of order. Nothing else moves there: with
 * `mixed` calls of all kinds meet. */
static void counter(struct window *w, int host, int draws, int way) {
    size_t n = (size_t)draws, all = n * (size_t)check_size;
    long long *mine = need_memory(n * sizeof *mine), *everyone = need_memory(all * sizeof *mine);
    unsigned char *seen = calloc(all, 1);
    MPI_Aint place = at(w, host, 0);
    memset(w->memory, 0, sizeof(long long));
    MPI_Win_lock_all(0, w->win);
    MPI_Win_sync(w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < draws; i++) {
        mine[i] = draw(w->win, host, place, way == 3 ? (i + check_rank) % 3 : way);
        EXPECT(i == 0 || mine[i] > mine[i - 1], "counter, way %d: drew %lld after %lld", way, mine[i], mine[i - 1]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(w->win);
    MPI_Win_unlock_all(w->win);
    MPI_Gather(mine, draws, MPI_LONG_LONG, everyone, draws, MPI_LONG_LONG, host, MPI_COMM_WORLD);
    if (check_rank == host) {
        long long last;
        memcpy(&last, w->memory, sizeof last);
        EXPECT((size_t)last == all, "counter, way %d: ends at %lld instead of %zu", way, last, all);
        for (size_t i = 0; i < all; i++) {
            EXPECT(everyone[i] >= 0 && (size_t)everyone[i] < all && !seen[everyone[i]], "counter, way %d: %lld was drawn twice, or never existed",
                   way, everyone[i]);
            seen[everyone[i]] = 1;
        }
    }
    free(seen);
    free(mine);
    free(everyone);
}

/* An exclusive lock makes a read and a write one step, of 40 elements at once. */
static void exclusive(struct window *w, int host, int turns) {
    enum { COUNT = 40 };
    long long values[COUNT];
    memset(w->memory, 0, sizeof values);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int turn = 0; turn < turns; turn++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, host, 0, w->win);
        MPI_Get(values, COUNT, MPI_LONG_LONG, host, at(w, host, 0), COUNT, MPI_LONG_LONG, w->win);
        MPI_Win_flush(host, w->win);
        for (int i = 0; i < COUNT; i++)
            EXPECT(values[i] == values[0], "exclusive: element %d is %lld, the first one %lld", i, values[i], values[0]);
        for (int i = 0; i < COUNT; i++) values[i]++;
        MPI_Put(values, COUNT, MPI_LONG_LONG, host, at(w, host, 0), COUNT, MPI_LONG_LONG, w->win);
        MPI_Win_unlock(host, w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, host, 0, w->win);
    MPI_Get(values, COUNT, MPI_LONG_LONG, host, at(w, host, 0), COUNT, MPI_LONG_LONG, w->win);
    MPI_Win_unlock(host, w->win);
    for (int i = 0; i < COUNT; i++)
        EXPECT(values[i] == (long long)turns * check_size, "exclusive: %lld steps of %d", values[i], turns * check_size);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A message behind a flush tells of what was put before it, whichever ways the two go. */
static void told_by_message(struct window *w, size_t bytes, int rounds) {
    unsigned char *out = need_memory(bytes);
    int note;
    MPI_Win_lock_all(0, w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < rounds; round++) {
        pattern_fill(out, bytes, seed_of(check_rank, right, (uint64_t)round));
        MPI_Put(out, (int)bytes, MPI_BYTE, right, at(w, right, 0), (int)bytes, MPI_BYTE, w->win);
        if (round % 2 == 0) { /* the buffer is ours again before the bytes need be there */
            MPI_Win_flush_local(right, w->win);
            memset(out, 0x55, bytes);
        }
        MPI_Win_flush(right, w->win);
        MPI_Sendrecv(&round, 1, MPI_INT, right, 1, &note, 1, MPI_INT, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Win_sync(w->win);
        expect_pattern(w->memory, bytes, seed_of(left, check_rank, (uint64_t)round), "put before a message");
        MPI_Win_sync(w->win);
        MPI_Sendrecv(&round, 1, MPI_INT, left, 2, &note, 1, MPI_INT, right, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Win_unlock_all(w->win);
    free(out);
}

/* ---- windows that differ, and everybody at everybody ---- */

/* Odd ranks have no memory in it, others units of 1 or 4 bytes; every rank puts a part into each that has, itself included. */
static void everybody(void) {
    int part = 37, unit = check_rank % 4 == 0 ? 4 : 1, parts = check_size;
    int bytes = check_rank % 2 == 0 ? part * parts * 4 : 0;
    int *memory = need_memory((size_t)bytes + GUARD_BYTES), *out = need_memory(sizeof(int) * (size_t)(part * parts));
    MPI_Win win;
    guard_set(memory, (size_t)bytes);
    MPI_Win_create(bytes > 0 ? memory : NULL, bytes, unit, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, win);
    for (int to = 0; to < check_size; to += 2) {
        for (int i = 0; i < part; i++) out[to * part + i] = check_rank * 10000 + to * 100 + i;
        MPI_Aint place = (MPI_Aint)check_rank * part * (to % 4 == 0 ? 1 : 4);
        MPI_Put(&out[to * part], part, MPI_INT, to, place, part, MPI_INT, win);
    }
    MPI_Put(out, part, MPI_INT, MPI_PROC_NULL, 0, part, MPI_INT, win);
    MPI_Get(out, part, MPI_INT, MPI_PROC_NULL, 0, part, MPI_INT, win);
    MPI_Put(out, 0, MPI_INT, right, 0, 0, MPI_INT, win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    for (int from = 0; bytes > 0 && from < check_size; from++)
        for (int i = 0; i < part; i++)
            EXPECT(memory[from * part + i] == from * 10000 + check_rank * 100 + i, "everybody: element %d of rank %d is %d", i, from,
                   memory[from * part + i]);
    expect_guard(memory, (size_t)bytes, "everybody");
    MPI_Win_free(&win);
    free(memory);
    free(out);
}

/* Several regions, added and taken away while the window is open; a window of some ranks only, in reverse order. */
static void attached(void) {
    enum { REGIONS = 3, BYTES = 5000 };
    unsigned char *region[REGIONS], in[BYTES];
    MPI_Aint mine[REGIONS], theirs[REGIONS];
    MPI_Comm comm;
    MPI_Win win;
    int rank, size;
    MPI_Comm_split(MPI_COMM_WORLD, check_rank % 2, -check_rank, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Win_create_dynamic(MPI_INFO_NULL, comm, &win);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < REGIONS; i++) {
            region[i] = need_memory(BYTES);
            pattern_fill(region[i], BYTES, seed_of(rank, i, (uint64_t)round));
            MPI_Win_attach(win, region[i], BYTES);
            MPI_Get_address(region[i], &mine[i]);
        }
        MPI_Sendrecv(mine, REGIONS, MPI_AINT, from, 1, theirs, REGIONS, MPI_AINT, to, 1, comm, MPI_STATUS_IGNORE);
        MPI_Win_lock(MPI_LOCK_SHARED, to, 0, win);
        for (int i = 0; i < REGIONS; i++) {
            MPI_Get(in, BYTES - 11, MPI_BYTE, to, MPI_Aint_add(theirs[i], 8), BYTES - 11, MPI_BYTE, win);
            MPI_Win_flush(to, win);
            unsigned char *whole = need_memory(BYTES);
            pattern_fill(whole, BYTES, seed_of(to, i, (uint64_t)round));
            EXPECT(memcmp(in, whole + 8, BYTES - 11) == 0, "attached: region %d of round %d has wrong bytes", i, round);
            free(whole);
        }
        MPI_Win_unlock(to, win);
        MPI_Barrier(comm);
        for (int i = 0; i < REGIONS; i++) {
            MPI_Win_detach(win, region[i]);
            free(region[i]);
        }
    }
    MPI_Win_free(&win);
    MPI_Comm_free(&comm);
}

/* ---- derived datatypes, and requests ---- */

/* Every second pair of ints at the origin, every third int from the end of an array at the target. */
static void datatypes(struct window *w, enum sync sync, int pairs) {
    int count = 2 * pairs, *memory = (int *)w->memory, *out = need_memory(sizeof(int) * (size_t)(4 * pairs)),
        *in = need_memory(sizeof(int) * (size_t)(4 * pairs));
    MPI_Datatype spread, thirds;
    snprintf(doing, sizeof doing, "datatypes of %d ints, %s, %s window", count, sync_names[sync], kind_names[w->kind]);
    MPI_Type_vector(pairs, 2, 4, MPI_INT, &spread);
    MPI_Type_create_hvector(count, 1, -3 * (MPI_Aint)sizeof(int), MPI_INT, &thirds);
    MPI_Type_commit(&spread);
    MPI_Type_commit(&thirds);
    /* First for put, then for accumulate, last for get. */
    size_t area = 3 * (size_t)count;
    for (size_t i = 0; i < 3 * area; i++) memory[i] = check_rank * 1000 + (int)(i % 997);
    for (int i = 0; i < 4 * pairs; i++) out[i] = check_rank * 7 + i, in[i] = -1;
    enter(w, sync);
    MPI_Aint last = (MPI_Aint)(3 * (size_t)(count - 1) * sizeof(int));
    MPI_Put(out, 1, spread, right, at(w, right, 0) + last, 1, thirds, w->win);
    MPI_Accumulate(out, 1, spread, right, at(w, right, area * sizeof(int)) + last, 1, thirds, MPI_SUM, w->win);
    MPI_Get(in, 1, spread, right, at(w, right, 2 * area * sizeof(int)) + last, 1, thirds, w->win);
    leave(w, sync);
    for (int i = 0; i < (int)area; i++) {
        int element = count - 1 - i / 3, there = left * 7 + element / 2 * 4 + element % 2, hit = i % 3 == 0;
        int before = check_rank * 1000 + i % 997, before_sum = check_rank * 1000 + (i + (int)area) % 997;
        EXPECT(memory[i] == (hit ? there : before), "%s: put left %d at %d", doing, memory[i], i);
        EXPECT(memory[i + (int)area] == before_sum + (hit ? there : 0), "%s: accumulate left %d at %d", doing, memory[i + (int)area], i);
    }
    for (int i = 0; i < 4 * pairs; i++) {
        int element = i / 4 * 2 + i % 4, where = 2 * (int)area + 3 * (count - 1 - element);
        EXPECT(in[i] == (i % 4 < 2 ? right * 1000 + where % 997 : -1), "%s: get brought %d at %d", doing, in[i], i);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Type_free(&spread);
    MPI_Type_free(&thirds);
    free(out);
    free(in);
}

static void requests(struct window *w, size_t bytes, uint64_t round) {
    enum { PIECES = 8 };
    unsigned char *out = need_memory(bytes), *in = need_memory(bytes);
    size_t piece = bytes / PIECES, area = (bytes + 7) / 8 * 8;
    long long added = check_rank + 1, old = -1;
    MPI_Request request[2 * PIECES + 2];
    int count = 2 * PIECES;
    pattern_fill(w->memory, bytes, seed_of(check_rank, check_rank, round));
    memset(w->memory + 2 * area, 0, 2 * sizeof(long long));
    pattern_fill(out, bytes, seed_of(check_rank, right, round));
    MPI_Win_lock_all(0, w->win);
    MPI_Win_sync(w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < PIECES; i++) {
        size_t start = (size_t)i * piece;
        int n = (int)(i + 1 < PIECES ? piece : bytes - start);
        MPI_Rput(out + start, n, MPI_BYTE, right, at(w, right, area + start), n, MPI_BYTE, w->win, &request[2 * i]);
        MPI_Rget(in + start, n, MPI_BYTE, left, at(w, left, start), n, MPI_BYTE, w->win, &request[2 * i + 1]);
    }
    if (!no_accumulates) {
        MPI_Raccumulate(&added, 1, MPI_LONG_LONG, right, at(w, right, 2 * area), 1, MPI_LONG_LONG, MPI_SUM, w->win, &request[count++]);
        MPI_Rget_accumulate(&added, 1, MPI_LONG_LONG, &old, 1, MPI_LONG_LONG, right, at(w, right, 2 * area + 8), 1, MPI_LONG_LONG, MPI_REPLACE,
                            w->win, &request[count++]);
    }
    MPI_Waitall(count, request, MPI_STATUSES_IGNORE);
    expect_pattern(in, bytes, seed_of(left, left, round), "Rget");
    EXPECT(no_accumulates || old == 0, "Rget_accumulate fetched %lld", old);
    MPI_Win_flush_all(w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(w->win);
    expect_pattern(w->memory + area, bytes, seed_of(left, check_rank, round), "Rput");
    long long sums[2];
    memcpy(sums, w->memory + 2 * area, sizeof sums);
    EXPECT(no_accumulates || (sums[0] == left + 1 && sums[1] == left + 1), "Raccumulate left %lld, Rget_accumulate %lld", sums[0], sums[1]);
    MPI_Win_unlock_all(w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    free(out);
    free(in);
}

/* ---- all of it ---- */

static void neighbourhood(void) {
    MPI_Group world;
    right = (check_rank + 1) % check_size;
    left = (check_rank + check_size - 1) % check_size;
    target_count = 0;
    targets[target_count++] = right;
    if (left != right) targets[target_count++] = left;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, target_count, targets, &neighbours);
    MPI_Group_free(&world);
}

static void learn_faults(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;
    MPI_Get_library_version(version, &n);
    /* Over its own shared memory, too, 4.1.4 has wrong values after three accumulates in a row (osc/rdma with MPI_LAND of ints, osc/pt2pt with
     * MPI_REPLACE of 4097 chars), and MPI_Compare_and_swap of osc/rdma ends with a segmentation fault. Between hosts it looks for the regions
     * of dynamic windows for ever (osc/rdma; 5.0.11 finds them, by the same calls), and so it does for MPI_Rget_accumulate. */
    if (strstr(version, "Open MPI v4") != NULL) no_accumulates = no_dynamic = 1;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {1, 7, 8, 200, 4096, 12345, 65536, 300001, 1 << 20, 4 << 20};
    enum { SIZES = sizeof sizes / sizeof *sizes, LONGEST = 4 << 20 };
    check_begin(argc, argv, "rma");
    learn_faults();
    neighbourhood();
    uint64_t round = 0;
    for (int kind = 0; kind < (no_dynamic ? DYNAMIC : KINDS); kind++) {
        struct window w = window_open((enum kind)kind, 2 * (LONGEST + GUARD_BYTES) + 4096);
        for (int sync = 0; sync < SYNCS; sync++) {
            for (int i = 0; i < SIZES; i++) {
                if (!in_turn(3, 7)) continue;
                for (int turn = scaled(10, 1); turn > 0; turn--) {
                    if (sizes[i] > 65536 && turn > 2) continue;
                    put_and_get(&w, (enum sync)sync, sizes[i], round++);
                }
            }
            all_accumulates(&w, (enum sync)sync);
            if (in_turn(3, 7)) accumulates(&w, (enum sync)sync, ACCUMULATE, DOUBLE, SUM, LONGEST / (check_scale < 100 ? 32 : 8));
            if (in_turn(3, 7)) accumulates(&w, (enum sync)sync, GET_ACCUMULATE, LONG, BXOR, 20011);
            if (in_turn(2, 5)) datatypes(&w, (enum sync)sync, 11);
            if (in_turn(2, 5)) datatypes(&w, (enum sync)sync, check_scale < 100 ? 200 : 2000);
        }
        for (int host = 0; host < check_size; host += check_size - 1) {
            for (int way = 0; way < 4 && !no_accumulates; way++)
                if (in_turn(3, 5)) counter(&w, host, scaled(100, 5), way);
            if (in_turn(2, 5)) exclusive(&w, host, scaled(50, 3));
        }
        for (int i = 0; i < SIZES; i++) {
            if (!in_turn(3, 7)) continue;
            told_by_message(&w, sizes[i], sizes[i] > 65536 ? 2 : scaled(20, 2));
            requests(&w, sizes[i] > LONGEST - 64 ? LONGEST - 64 : sizes[i] < 16 ? 16 : sizes[i], round++);
        }
        window_close(&w);
    }
    for (int turn = scaled(20, 2); turn > 0; turn--) everybody();
    if (!no_dynamic) attached();
    MPI_Group_free(&neighbours);
    return check_end();
}
