/* MPI_ANY_SOURCE and MPI_ANY_TAG mixed with exact receives; the order in which receives were posted
 * and messages were sent must decide what matches.
 *
 * The judge needs no timing. A message m and a receive r that could have taken m break the rules if
 * r took a message that the same sender sent after m, while m went to a receive posted after r. If
 * no such pair exists the matching is the one MPI prescribes (for one sender it is unique).
 */
#include "check.h"

enum { TAGS = 4 };

struct message {
    int source, tag, sequence;
    int filler[5];
};

struct posted {
    int source, tag; /* as posted, wildcards included */
    struct message got;
    int cancelled;
};

static int accepts(const struct posted *r, int source, int tag) {
    return (r->source == MPI_ANY_SOURCE || r->source == source) &&
           (r->tag == MPI_ANY_TAG || r->tag == tag);
}

static void judge(const struct posted *r, int count, const char *what) {
    for (int early = 0; early < count; early++) {
        const struct message *taken = &r[early].got;
        if (!r[early].cancelled)
            EXPECT(accepts(&r[early], taken->source, taken->tag),
                   "%s: receive %d (source %d, tag %d) took a message of source %d, tag %d", what,
                   early, r[early].source, r[early].tag, taken->source, taken->tag);
        for (int late = early + 1; late < count; late++) {
            const struct message *m = &r[late].got;
            if (r[late].cancelled || !accepts(&r[early], m->source, m->tag)) continue;
            EXPECT(!r[early].cancelled,
                   "%s: receive %d got nothing, but message %d of source %d went to receive %d",
                   what, early, m->sequence, m->source, late);
            EXPECT(taken->source != m->source || taken->sequence < m->sequence,
                   "%s: receive %d took message %d of source %d, but message %d went to receive %d",
                   what, early, taken->sequence, m->source, m->sequence, late);
        }
    }
}

/* How sends and the posting of receives are put in time to each other. */
enum order { POSTED_FIRST, SENT_FIRST, TOGETHER };

static void send_all(int messages, uint64_t random, enum order order, MPI_Request *requests,
                     struct message *out) {
    if (order == POSTED_FIRST) MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < messages; i++) {
        out[i] = (struct message){check_rank, (int)(next_random(&random) % TAGS), i, {i, i, i, i, i}};
        MPI_Isend(&out[i], sizeof out[i], MPI_BYTE, 0, out[i].tag, MPI_COMM_WORLD, &requests[i]);
    }
    if (order == SENT_FIRST) MPI_Barrier(MPI_COMM_WORLD);
    MPI_Waitall(messages, requests, MPI_STATUSES_IGNORE);
}

static void receive_all(int messages, uint64_t random, enum order order) {
    int total = messages * (check_size - 1);
    int posts = 2 * total; /* the second half takes anything, so every message finds a receive */
    struct posted *r = need_memory(sizeof *r * (size_t)posts);
    MPI_Request *requests = need_memory(sizeof *requests * (size_t)posts);
    MPI_Status *statuses = need_memory(sizeof *statuses * (size_t)posts);
    int *indices = need_memory(sizeof *indices * (size_t)posts);
    char what[64];
    snprintf(what, sizeof what, "order %d, %d messages", (int)order, total);

    if (order == SENT_FIRST) MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < posts; i++) {
        uint64_t dice = next_random(&random);
        int any = i >= total;
        r[i].source = any || dice % 3 == 0 ? MPI_ANY_SOURCE
                                           : 1 + (int)((dice >> 8) % (uint64_t)(check_size - 1));
        r[i].tag = any || (dice >> 16) % 3 == 0 ? MPI_ANY_TAG : (int)((dice >> 24) % TAGS);
        r[i].cancelled = 1;
        MPI_Irecv(&r[i].got, sizeof r[i].got, MPI_BYTE, r[i].source, r[i].tag, MPI_COMM_WORLD,
                  &requests[i]);
    }
    if (order == POSTED_FIRST) MPI_Barrier(MPI_COMM_WORLD);

    for (int done = 0; done < total;) {
        int some;
        MPI_Waitsome(posts, requests, &some, indices, statuses);
        for (int k = 0; k < some; k++) {
            struct posted *one = &r[indices[k]];
            expect_status(&statuses[k], one->got.source, one->got.tag, sizeof one->got, what);
            EXPECT(one->got.filler[4] == one->got.sequence, "%s: torn message %d", what,
                   one->got.sequence);
            one->cancelled = 0;
        }
        done += some;
    }
    for (int i = 0; i < posts; i++) {
        if (requests[i] == MPI_REQUEST_NULL) continue;
        MPI_Status status;
        int cancelled = 0;
        MPI_Cancel(&requests[i]);
        MPI_Wait(&requests[i], &status);
        MPI_Test_cancelled(&status, &cancelled);
        EXPECT(cancelled, "%s: left over receive %d got a message that nobody sent", what, i);
    }
    judge(r, posts, what);
    free(r);
    free(requests);
    free(statuses);
    free(indices);
}

/* A case small enough to say by hand which receive takes which message. */
static void by_hand(void) {
    static const int tags[4] = {9, 5, 7, 5};
    if (check_rank == 0) {
        int values[4] = {-1, -1, -1, -1};
        MPI_Request requests[4];
        MPI_Irecv(&values[0], 1, MPI_INT, 1, 5, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(&values[1], 1, MPI_INT, 1, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[1]);
        MPI_Irecv(&values[2], 1, MPI_INT, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &requests[2]);
        MPI_Irecv(&values[3], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                  &requests[3]);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        static const int expected[4] = {1, 0, 2, 3};
        for (int i = 0; i < 4; i++)
            EXPECT(values[i] == expected[i], "by hand: receive %d took message %d, expected %d", i,
                   values[i], expected[i]);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; check_rank == 1 && i < 4; i++)
            MPI_Send(&i, 1, MPI_INT, 0, tags[i], MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Everybody sends big and small messages to rank 0, which takes them as they come. */
static void any_source_sizes(void) {
    static const size_t sizes[] = {0, 1, 64, 4096, 20000, 300000};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    unsigned char *buffer = need_memory(sizes[COUNT - 1] + GUARD_BYTES);
    if (check_rank != 0) {
        for (int i = 0; i < COUNT; i++) {
            pattern_fill(buffer, sizes[i], seed_of(check_rank, 0, (uint64_t)i));
            MPI_Send(buffer, (int)sizes[i], MPI_BYTE, 0, i, MPI_COMM_WORLD);
        }
    } else {
        int *next = calloc((size_t)check_size, sizeof *next);
        for (int k = 0; k < COUNT * (check_size - 1); k++) {
            MPI_Status status;
            MPI_Recv(buffer, (int)sizes[COUNT - 1], MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG,
                     MPI_COMM_WORLD, &status);
            int source = status.MPI_SOURCE, i = status.MPI_TAG;
            EXPECT(source > 0 && source < check_size && i == next[source],
                   "message %d of source %d came, expected %d", i, source, next[source]);
            next[source]++;
            expect_status(&status, source, i, sizes[i], "any source");
            expect_pattern(buffer, sizes[i], seed_of(source, 0, (uint64_t)i), "any source");
        }
        free(next);
    }
    free(buffer);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    check_begin(argc, argv, "wildcard");
    int messages = 200 / (check_size - 1) + 1;
    int rounds = scaled(20, 2);
    MPI_Request *requests = need_memory(sizeof *requests * (size_t)messages);
    struct message *out = need_memory(sizeof *out * (size_t)messages);
    by_hand();
    for (int round = 0; round < rounds; round++)
        for (int order = POSTED_FIRST; order <= TOGETHER; order++) {
            uint64_t random = seed_of(check_rank, order, (uint64_t)round);
            if (check_rank == 0)
                receive_all(messages, random, (enum order)order);
            else
                send_all(messages, random, (enum order)order, requests, out);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    any_source_sizes();
    free(requests);
    free(out);
    return check_end();
}
