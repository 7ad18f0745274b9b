/* Memory goes back when it is freed. */
#include "check.h"

static long resident(int fd)
{
	struct stat s;
	CHECK(!fstat(fd, &s));
	return s.st_blocks * 512 >> 20;
}

int main(void)
{
	enum { GREAT = 4, SMALL = 1000 };
	char *great[GREAT], *small[SMALL];
	struct rustmx_heap_range r;
	struct stat s;
	for (int i = 0; i < GREAT; i++) {
		CHECK((great[i] = malloc(64 << 20)));
		memset(great[i], 1, 64 << 20);
	}
	CHECK(!heap()->find(great[0], &r));
	CHECK(!fstat(r.fd, &s) && s.st_size == (off_t)r.length);
	long full = resident(r.fd);
	CHECK(full >= 256, "%ld MiB", full);
	for (int i = 0; i < GREAT; i++)
		free(great[i]);
	long after = resident(r.fd);
	CHECK(after <= 64, "of %ld MiB %ld are left after free", full, after);
	/* Many blocks, freed in disorder. */
	for (int i = 0; i < SMALL; i++) {
		CHECK((small[i] = malloc(256 << 10)));
		fill(small[i], 256 << 10, i);
	}
	CHECK((full = resident(r.fd)) >= 250, "%ld MiB", full);
	for (int k = 0; k < 7; k++)
		for (int i = k; i < SMALL; i += 7) {
			CHECK(differs(small[i], 256 << 10, i) < 0, "block %d", i);
			free(small[i]);
		}
	after = resident(r.fd);
	CHECK(after <= 64, "of %ld MiB %ld are left after free", full, after);
	/* The holes read as zero, the rest is cleared. */
	char *p = calloc(200 << 20, 1);
	for (size_t i = 0; i < 200 << 20; i += 512)
		CHECK(p[i] == 0);
	free(p);
	/* What realloc cuts off goes back, too. */
	CHECK((p = malloc(256 << 20)));
	fill(p, 256 << 20, 1);
	CHECK((full = resident(r.fd)) >= 256, "%ld MiB", full);
	CHECK((p = realloc(p, 1 << 20)) && differs(p, 1 << 20, 1) < 0);
	after = resident(r.fd);
	CHECK(after <= 64, "of %ld MiB %ld are left after realloc", full, after);
	free(p);
	puts("ok");
	return 0;
}
