/* Parent and children write all over their heaps, while other threads allocate: nobody sees the other's bytes.
 * fork SEED WORKERS ROUNDS */
#include "check.h"

enum { BLOCKS = 24, SLOTS = 12, DEPTH = 3 };

struct shelf {
	void *_Atomic at[SLOTS];
	size_t len[SLOTS];
};

static struct shelf shelves[16];
static volatile int stop;
static char *block[BLOCKS];
static size_t len[BLOCKS];
static uint64_t seed;

static size_t a_size(uint64_t *s)
{
	return next(s) % 4 ? next(s) % (200 << 10) + 1 : next(s) % 6000 + 1;
}

/* Fills blocks, looks whether they stay as they are, frees them. What is on the shelf is allocated. */
static void *work(void *argument)
{
	struct shelf *shelf = &shelves[(uintptr_t)argument];
	uint64_t s = seed + 77 * ((uintptr_t)argument + 1), number[SLOTS];
	while (!stop) {
		int i = next(&s) % SLOTS;
		char *p = shelf->at[i];
		if (p) {
			long at = differs(p, shelf->len[i], number[i]);
			CHECK(at < 0, "a thread's block %p of %zu: byte %ld", (void *)p, shelf->len[i], at);
			if (next(&s) % 4 == 0) {
				fill(p, shelf->len[i], number[i] = next(&s));
				continue;
			}
			shelf->at[i] = NULL;
			if (next(&s) % 4 == 0) {
				size_t new = a_size(&s);
				size_t both = new < shelf->len[i] ? new : shelf->len[i];
				CHECK((p = realloc(p, new)));
				CHECK(differs(p, both, number[i]) < 0, "realloc");
			} else {
				free(p);
				continue;
			}
			shelf->len[i] = malloc_usable_size(p);
		} else {
			size_t new = a_size(&s);
			CHECK((p = next(&s) % 2 ? malloc(new) : calloc(new, 1)));
			shelf->len[i] = new;
		}
		fill(p, shelf->len[i], number[i] = next(&s));
		shelf->at[i] = p;
	}
	return NULL;
}

static void verify_all(uint64_t number, const char *who)
{
	for (int i = 0; i < BLOCKS; i++) {
		long at = differs(block[i], len[i], number + i);
		CHECK(at < 0, "%s: block %d (%p of %zu): byte %ld", who, i, (void *)block[i], len[i], at);
	}
}

static void fill_all(uint64_t number)
{
	for (int i = 0; i < BLOCKS; i++)
		fill(block[i], len[i], number + i);
}

static void replace_some(uint64_t *s)
{
	for (int i = 0; i < BLOCKS; i++)
		if (next(s) % 3 == 0) {
			free(block[i]);
			CHECK((block[i] = malloc(len[i] = a_size(s))));
		}
}

static void child(uint64_t number, int depth, uint64_t s)
{
	pid_t pid;
	for (;; depth++, number += 2000) {
		/* The parent writes to the same addresses meanwhile. */
		if (next(&s) % 2)
			usleep(next(&s) % 3000);
		verify_all(number, "a child, as it was at fork");
		fill_all(number + 1000);
		/* Over all that threads had, which the child has of its own. */
		for (int t = 0; t < 16; t++)
			for (int i = 0; i < SLOTS; i++)
				if (shelves[t].at[i])
					memset(shelves[t].at[i], 0xee, shelves[t].len[i]);
		verify_all(number + 1000, "a child, what it wrote");
		replace_some(&s);
		fill_all(number + 2000);
		for (int t = 0; t < 16; t++)
			for (int i = 0; i < SLOTS; i++)
				if (next(&s) % 2) {
					free(shelves[t].at[i]);
					shelves[t].at[i] = NULL;
				}
		if (depth == DEPTH)
			break;
		/* The child goes round, the parent of it goes on below. */
		if ((pid = fork()) != 0) {
			fill_all(number + 3000);
			reap(pid);
			verify_all(number + 3000, "a child, after its own");
			_exit(0);
		}
	}
	usleep(next(&s) % 2000);
	verify_all(number + 2000, "the last child");
	_exit(0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	seed = strtoull(argv[1], NULL, 0);
	int workers = atoi(argv[2]), rounds = atoi(argv[3]);
	uint64_t s = seed;
	for (int i = 0; i < BLOCKS; i++)
		CHECK((block[i] = malloc(len[i] = a_size(&s))));
	pthread_t t[16];
	for (int i = 0; i < workers; i++)
		CHECK(!pthread_create(&t[i], NULL, work, (void *)(uintptr_t)i));
	for (int round = 0; round < rounds; round++) {
		uint64_t number = (uint64_t)round * 10000;
		fill_all(number);
		pid_t other = 0, pid;
		if (round % 3 == 0 && (other = fork()) == 0)
			_exit(0);
		if ((pid = fork()) == 0)
			child(number, round % 4 ? DEPTH : 0, next(&s));
		fill_all(number + 500);
		replace_some(&s);
		fill_all(number + 500);
		/* While the child still writes. */
		verify_all(number + 500, "the parent");
		if (other)
			reap(other);
		reap(pid);
		verify_all(number + 500, "the parent, after the child");
	}
	stop = 1;
	for (int i = 0; i < workers; i++)
		pthread_join(t[i], NULL);
	CHECK(ours(realloc(block[0], 100000)));
	puts("ok");
	return 0;
}
