/* More than an arena holds, in parts and in one; run with RUSTMX_HEAP_RESERVE=64m. */
#include "check.h"

enum { BLOCKS = 12 };

int main(void)
{
	char *block[BLOCKS];
	uint64_t generations = 0;
	for (int i = 0; i < BLOCKS; i++) {
		struct rustmx_heap_range r;
		CHECK((block[i] = malloc(10 << 20)));
		CHECK(!heap()->find(block[i], &r), "block %d", i);
		CHECK(r.length >= 64 << 20 && (char *)r.base + r.offset == block[i]);
		if (r.generation > generations)
			generations = r.generation;
		fill(block[i], 10 << 20, i);
	}
	CHECK(generations > 1, "one arena of 64 MiB holds 120 MiB");
	/* One that needs an arena of its own; touched here and there. */
	size_t great = 600 << 20;
	struct rustmx_heap_range r;
	char *p = malloc(great);
	CHECK(p && !heap()->find(p + great - 1, &r) && r.length >= great);
	p[0] = p[great / 2] = p[great - 1] = 7;
	char *q = calloc(great / 8, 8);
	CHECK(q && ours(q) && q[0] == 0 && q[great / 2] == 0 && q[great - 1] == 0);
	CHECK(p[0] == 7 && p[great / 2] == 7 && p[great - 1] == 7);
	CHECK((p = realloc(p, great + great / 2)) && p[great - 1] == 7);
	free(p);
	free(q);
	for (int i = 0; i < BLOCKS; i++) {
		CHECK(differs(block[i], 10 << 20, i) < 0);
		free(block[i]);
	}
	/* What was freed is used again, and is clean for calloc. */
	for (int i = 0; i < 12; i++) {
		CHECK((p = calloc(50 << 20, 1)) && ours(p));
		for (size_t k = 0; k < 50 << 20; k += 4096)
			CHECK(p[k] == 0 && p[k + 4095] == 0);
		memset(p + (i % 5 << 20), 1, 1 << 20);
		free(p);
	}
	CHECK((p = malloc(10 << 20)) && !heap()->find(p, &r));
	CHECK(r.generation <= 64);
	puts("ok");
	return 0;
}
