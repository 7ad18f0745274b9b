/* What the programs of this folder share. Each prints "ok" at its end, or ends by itself at the first thing that is wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rustmx/heap.h>

#define CHECK(x, ...)                                                                       \
	do {                                                                                \
		if (!(x)) {                                                                 \
			fprintf(stderr, "%s:%d: [%d] %s: ", __FILE__, __LINE__, getpid(), #x); \
			fprintf(stderr, "" __VA_ARGS__);                                    \
			fprintf(stderr, " (errno %d)\n", errno);                            \
			_exit(1);                                                           \
		}                                                                           \
	} while (0)

__attribute__((unused)) static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* Fills and compares: every word differs from its neighbours and from those of other numbers. */
__attribute__((unused)) static void fill(void *block, size_t len, uint64_t number)
{
	unsigned char *p = block;
	for (size_t i = 0; i < len; i++)
		p[i] = (unsigned char)(number * 131 + i * 7 + (i >> 12));
}

__attribute__((unused)) static long differs(const void *block, size_t len, uint64_t number)
{
	const unsigned char *p = block;
	for (size_t i = 0; i < len; i++)
		if (p[i] != (unsigned char)(number * 131 + i * 7 + (i >> 12)))
			return (long)i;
	return -1;
}

__attribute__((unused)) static const struct rustmx_heap_1 *heap(void)
{
	const struct rustmx_heap_1 *h = dlsym(RTLD_DEFAULT, RUSTMX_HEAP_1);
	CHECK(h, "the heap is not preloaded");
	CHECK(h->size == sizeof *h);
	return h;
}

/* Whether an address lies in an arena that can be exported. */
__attribute__((unused)) static int ours(const void *address)
{
	struct rustmx_heap_range range;
	return heap()->find(address, &range) == 0;
}

/* Waits for a child that must end well. */
__attribute__((unused)) static void reap(pid_t child)
{
	int status;
	CHECK(child > 0);
	while (waitpid(child, &status, 0) < 0)
		CHECK(errno == EINTR);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: status %x", child, status);
}
