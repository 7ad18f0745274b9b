/* All functions, by several threads that also free each other's blocks: what is written stays until it is freed.
 * functions SEED THREADS STEPS */
#include "check.h"

struct block {
	void *at;
	size_t len;
	uint64_t number;
};

enum { OWN = 40, COMMON = 32 };

static struct block common[COMMON];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long steps;
static uint64_t seed;

static size_t a_size(uint64_t *s)
{
	switch (next(s) % 8) {
	case 0: return next(s) % 64;
	case 1: return next(s) % 4096;
	case 2: return 8192 - 3 + next(s) % 6;
	case 3: return 4096 * (next(s) % 40) + next(s) % 3;
	case 4: return next(s) % (400 << 10);
	default: return next(s) % (30 << 10);
	}
}

static void verify(const struct block *b)
{
	long at = b->at ? differs(b->at, b->len, b->number) : -1;
	CHECK(at < 0, "block %p of %zu: byte %ld", b->at, b->len, at);
}

static void allocate(struct block *b, uint64_t *s)
{
	size_t len = a_size(s), align = (size_t)8 << next(s) % 15;
	void *p = NULL;
	switch (next(s) % 7) {
	case 0:
		p = calloc(len / 8 + 1, 8);
		len = (len / 8 + 1) * 8;
		align = 16;
		for (size_t i = 0; i < len; i++)
			CHECK(((char *)p)[i] == 0, "calloc of %zu: byte %zu", len, i);
		break;
	case 1: CHECK(!posix_memalign(&p, align, len)); break;
	case 2: p = aligned_alloc(align, len); break;
	case 3: p = memalign(align, len); break;
	case 4: p = valloc(len); align = 4096; break;
	case 5:
		p = pvalloc(len);
		align = 4096;
		len = (len + 4095) / 4096 * 4096;
		break;
	default: p = malloc(len); align = 16;
	}
	CHECK(p && (uintptr_t)p % align == 0, "%p for %zu, aligned %zu", p, len, align);
	CHECK(malloc_usable_size(p) >= len);
	CHECK(ours(p) == (len >= 8192), "%p of %zu", p, len);
	/* What is usable is nobody else's. */
	if (next(s) % 2)
		len = malloc_usable_size(p);
	*b = (struct block){ p, len, next(s) };
	fill(p, len, b->number);
}

static void change(struct block *b, uint64_t *s)
{
	size_t len = next(s) % 3 ? a_size(s) : b->len + next(s) % 20000;
	if (len == 0)
		len = 1;
	void *p = next(s) % 2 ? realloc(b->at, len) : reallocarray(b->at, len, 1);
	CHECK(p && malloc_usable_size(p) >= len);
	long at = differs(p, len < b->len ? len : b->len, b->number);
	CHECK(at < 0, "realloc from %zu to %zu: byte %ld", b->len, len, at);
	b->at = p;
	b->len = len;
	fill(p, len, b->number);
}

static void *work(void *argument)
{
	uint64_t s = seed * 1000003 + (uintptr_t)argument + 1;
	struct block own[OWN] = { 0 };
	for (long i = 0; i < steps; i++) {
		struct block *b = &own[next(&s) % OWN];
		verify(b);
		if (!b->at) {
			allocate(b, &s);
		} else if (next(&s) % 3 == 0) {
			change(b, &s);
		} else if (next(&s) % 3 == 0) {
			/* Somebody else may free it. */
			pthread_mutex_lock(&lock);
			struct block *c = &common[next(&s) % COMMON], was = *c;
			*c = *b;
			*b = was;
			pthread_mutex_unlock(&lock);
		} else {
			errno = 77;
			free(b->at);
			CHECK(errno == 77);
			b->at = NULL;
		}
	}
	for (int i = 0; i < OWN; i++) {
		verify(&own[i]);
		free(own[i].at);
	}
	return NULL;
}

/* The compiler must not see through these. */
static volatile size_t most = SIZE_MAX;

static int overcommits_with_care(void)
{
	char mode = 0;
	FILE *f = fopen("/proc/sys/vm/overcommit_memory", "r");
	if (f) {
		mode = (char)fgetc(f);
		fclose(f);
	}
	return mode == '0';
}

static void corners(void)
{
	void *p;
	free(NULL);
	CHECK((p = malloc(0)));
	free(p);
	CHECK((p = calloc(0, 100)));
	free(p);
	errno = 0;
	CHECK(!malloc(most) && errno == ENOMEM);
	errno = 0;
	CHECK(!malloc(most / 2 - 100) && errno == ENOMEM);
	errno = 0;
	CHECK(!calloc(most / 2, 3) && errno == ENOMEM);
	errno = 0;
	CHECK(!calloc(most / 4, 3) && errno == ENOMEM);
	errno = 0;
	CHECK(!pvalloc(most) && errno == ENOMEM);
	/* What the machine does not have is refused as without us, though a sparse file could be as large. */
	if (overcommits_with_care()) {
		errno = 0;
		CHECK(!malloc(most >> 20) && errno == ENOMEM);
	}
	CHECK(posix_memalign(&p, 3, 10000) == EINVAL);
	CHECK(posix_memalign(&p, 4, 10000) == EINVAL);
	CHECK(posix_memalign(&p, 0, 10000) == EINVAL);
	errno = 5;
	CHECK(posix_memalign(&p, 64, most / 2) == ENOMEM && errno == 5);
	CHECK(malloc_usable_size(NULL) == 0);

	/* A failed realloc leaves the block alone. */
	CHECK((p = malloc(100000)));
	fill(p, 100000, 1);
	errno = 0;
	CHECK(!realloc(p, most / 2 - 100) && errno == ENOMEM);
	errno = 0;
	CHECK(!realloc(p, most) && errno == ENOMEM);
	errno = 0;
	CHECK(!reallocarray(p, most / 2, 3) && errno == ENOMEM);
	CHECK(differs(p, 100000, 1) < 0);
	CHECK(!realloc(p, 0));
	CHECK((p = realloc(NULL, 100000)) && ours(p));
	/* Long to short and back. */
	fill(p, 100000, 2);
	CHECK((p = realloc(p, 10)) && !ours(p) && differs(p, 10, 2) < 0);
	CHECK((p = realloc(p, 100000)) && ours(p) && differs(p, 10, 2) < 0);
	free(p);
	/* Great alignments. */
	for (size_t align = 4096; align <= (64 << 20); align *= 2) {
		CHECK(!posix_memalign(&p, align, 9000) && (uintptr_t)p % align == 0 && ours(p), "%zu", align);
		fill(p, 9000, align);
		CHECK(differs(p, 9000, align) < 0);
		free(p);
	}
	/* Two that grow in turn by small steps: copied a few times each and not at every step. */
	char *a = malloc(8192), *b = malloc(8192);
	int moves = 0;
	for (size_t len = 8192; len < (64 << 20); len += 8192) {
		char *was = a;
		CHECK((a = realloc(a, len)) && (b = realloc(b, len)));
		a[len - 1] = b[len - 1] = 1;
		moves += a != was;
	}
	CHECK(moves < 100, "%d moves", moves);
	free(a);
	free(b);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	seed = strtoull(argv[1], NULL, 0);
	int threads = atoi(argv[2]);
	steps = atol(argv[3]);
	corners();
	pthread_t t[64];
	for (int i = 0; i < threads; i++)
		CHECK(!pthread_create(&t[i], NULL, work, (void *)(uintptr_t)i));
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < COMMON; i++) {
		verify(&common[i]);
		free(common[i].at);
	}
	corners();
	puts("ok");
	return 0;
}
