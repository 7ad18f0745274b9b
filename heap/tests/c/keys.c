/* What the C library does to its own heap blocks in a child, before any handler, must not happen to the parent. */
#include "check.h"

enum { KEYS = 200, FORKS = 20 };

static pthread_key_t key[KEYS];
static FILE *file;
static pthread_barrier_t barrier;

static void *other(void *argument)
{
	for (intptr_t i = 0; i < KEYS; i++)
		CHECK(!pthread_setspecific(key[i], (void *)(i + 1)));
	flockfile(file);
	pthread_barrier_wait(&barrier);
	/* Here the children run. */
	pthread_barrier_wait(&barrier);
	for (intptr_t i = 0; i < KEYS; i++)
		CHECK(pthread_getspecific(key[i]) == (void *)(i + 1), "key %ld is lost", (long)i);
	pthread_barrier_wait(&barrier);
	funlockfile(file);
	return argument;
}

int main(void)
{
	pthread_t t;
	for (int i = 0; i < KEYS; i++)
		CHECK(!pthread_key_create(&key[i], NULL));
	CHECK((file = fopen("/dev/null", "w")));
	/* There is an arena. */
	char *p = malloc(1 << 20);
	CHECK(p && ours(p));
	fill(p, 1 << 20, 1);
	pthread_barrier_init(&barrier, NULL, 2);
	CHECK(!pthread_create(&t, NULL, other, NULL));
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < FORKS; i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		reap(pid);
	}
	CHECK(ftrylockfile(file) != 0, "a child has released the parent's file");
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	pthread_join(t, NULL);
	CHECK(ftrylockfile(file) == 0, "the file cannot be locked any more");
	funlockfile(file);
	CHECK(differs(p, 1 << 20, 1) < 0);
	puts("ok");
	return 0;
}
