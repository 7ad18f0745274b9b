/* Says where a block of 5 KiB and one of 20 KiB lie, and how large an arena is (GiB). Runs without the heap, too. */
#include "check.h"

int main(void)
{
	const struct rustmx_heap_1 *h = dlsym(RTLD_DEFAULT, RUSTMX_HEAP_1);
	struct rustmx_heap_range r = { .length = 0 }, none;
	char *small = malloc(5 << 10), *large = malloc(20 << 10);
	int in = h && !h->find(small, &none), all = h && !h->find(large, &r);
	printf("%s %s %llu\n", in ? "heap" : "libc", all ? "heap" : "libc", (unsigned long long)(r.length >> 30));
	free(small);
	free(large);
	return 0;
}
