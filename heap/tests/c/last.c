/* A library that forks when it is finalised, after the heap has been: parent and child must have their own blocks to the end. Preloaded behind the heap
 * into a program that only ends (last.c with MAIN). */
#include "check.h"

#ifdef MAIN
int main(void)
{
	/* Not stdio's: it has been flushed when the library forks. */
	CHECK(write(1, "main\n", 5) == 5);
	return 0;
}
#else
enum { LEN = 1 << 20 };

__attribute__((destructor)) static void end(void)
{
	char *p = malloc(LEN);
	CHECK(p && ours(p));
	fill(p, LEN, 1);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(differs(p, LEN, 1) < 0);
		fill(p, LEN, 2);
		_exit(0);
	}
	reap(pid);
	long at = differs(p, LEN, 1);
	CHECK(at < 0, "byte %ld is the child's", at);
	CHECK(write(1, "ok\n", 3) == 3);
}
#endif
