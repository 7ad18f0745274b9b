/* What happens when something is missing. limits WHAT; what is printed on standard error is looked at by the test. */
#include "check.h"
#include <sched.h>
#include <ucontext.h>

enum { LEN = 4 << 20 };

static void limit(int what, rlim_t value)
{
	struct rlimit r = { value, RLIM_INFINITY };
	getrlimit(what, &r);
	r.rlim_cur = value < r.rlim_max ? value : r.rlim_max;
	CHECK(!setrlimit(what, &r));
}

/* Bytes of address space in use. */
static rlim_t addresses(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%lu", &pages) == 1);
	fclose(f);
	return (rlim_t)pages * 4096;
}

/* The child cannot have its copy: it says so and ends, the parent goes on. */
static void no_copy(void)
{
	char *p = malloc(64 << 20);
	CHECK(p && ours(p));
	fill(p, 64 << 20, 1);
	limit(RLIMIT_AS, addresses() + (16 << 20));
	pid_t pid = fork();
	if (pid == 0) {
		fill(p, 64 << 20, 2);
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 71, "%x", status);
	CHECK(differs(p, 64 << 20, 1) < 0);
	/* And later it may. */
	free(p);
	CHECK((p = malloc(1 << 20)));
	fill(p, 1 << 20, 3);
	pid = fork();
	if (pid == 0) {
		CHECK(differs(p, 1 << 20, 3) < 0);
		fill(p, 1 << 20, 4);
		_exit(0);
	}
	reap(pid);
	CHECK(differs(p, 1 << 20, 3) < 0);
}

/* No arena can be had: the C library serves. */
static void few_addresses(void)
{
	limit(RLIMIT_AS, addresses() + (40 << 20));
	char *p = malloc(LEN);
	CHECK(p && !ours(p));
	fill(p, LEN, 1);
	CHECK((p = realloc(p, 2 * LEN)) && differs(p, LEN, 1) < 0);
	free(p);
}

/* Less than asked for is enough for a smaller arena. */
static void some_addresses(void)
{
	limit(RLIMIT_AS, (rlim_t)8 << 30);
	char *p = malloc(LEN);
	CHECK(p && ours(p));
	struct rustmx_heap_range r;
	CHECK(!heap()->find(p, &r) && r.length < (uint64_t)8 << 30);
}

/* And the program has the greater part of them for itself. */
static void half_of_the_addresses(void)
{
	const size_t all = (size_t)5 << 30;
	limit(RLIMIT_AS, all);
	char *p = malloc(LEN);
	CHECK(p && ours(p));
	fill(p, LEN, 1);
	char *map = mmap(NULL, all / 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(map != MAP_FAILED);
	/* One block may need more than its share. */
	CHECK(!munmap(map, all / 2));
	char *q = malloc(all / 3);
	CHECK(q && ours(q));
	q[all / 3 - 1] = 1;
	CHECK(differs(p, LEN, 1) < 0);
}

/* A limit on the size of files is about files: no signal comes. */
static void file_size(void)
{
	limit(RLIMIT_FSIZE, 1 << 20);
	char *p = malloc(LEN);
	CHECK(p && !ours(p));
	fill(p, LEN, 1);
	CHECK(differs(p, LEN, 1) < 0);
}

/* The limit comes when there is an arena: fork and writing go on. */
static void file_size_later(void)
{
	char *p = malloc(LEN);
	CHECK(p && ours(p));
	fill(p, LEN, 1);
	limit(RLIMIT_FSIZE, 1 << 10);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(differs(p, LEN, 1) < 0);
		fill(p, LEN, 2);
		char *q = malloc(LEN);
		CHECK(q && !ours(q));
		_exit(0);
	}
	reap(pid);
	CHECK(differs(p, LEN, 1) < 0);
	CHECK((p = malloc(40 << 20)) && ours(p));
	fill(p, 40 << 20, 1);
}

/* A daemon closes all it does not know. The numbers become other files. */
static void closed(void)
{
	char *p = malloc(LEN);
	CHECK(p && ours(p));
	fill(p, LEN, 1);
	char name[] = "/tmp/rustmx-heap-test-XXXXXX";
	int file = mkstemp(name), i;
	CHECK(file >= 0 && !unlink(name));
	static char page[4096];
	memset(page, 5, sizeof page);
	for (i = 0; i < 100; i++)
		CHECK(write(file, page, sizeof page) == sizeof page);
	for (i = 3; i < 1024; i++)
		if (i != file)
			CHECK(dup2(file, i) == i);
	struct stat before, after;
	CHECK(!fstat(file, &before));
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(differs(p, LEN, 1) < 0);
		fill(p, LEN, 2);
		CHECK(fcntl(900, F_GETFD) >= 0 && fcntl(768, F_GETFD) >= 0);
		_exit(0);
	}
	reap(pid);
	CHECK(differs(p, LEN, 1) < 0);
	/* More than is mapped, and more than is kept. */
	char *q = malloc(100 << 20);
	CHECK(q);
	fill(q, 100 << 20, 7);
	CHECK(differs(q, 100 << 20, 7) < 0);
	free(q);
	free(p);
	CHECK(!fstat(file, &after) && after.st_blocks == before.st_blocks && after.st_size == before.st_size);
	CHECK(pread(file, page, sizeof page, 0) == sizeof page && page[100] == 5);
}

/* No descriptor is left for an arena. */
static void no_descriptors(void)
{
	while (dup(0) >= 0)
		;
	char *p = malloc(LEN);
	CHECK(p);
	fill(p, LEN, 1);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(differs(p, LEN, 1) < 0);
		fill(p, LEN, 2);
		_exit(0);
	}
	reap(pid);
	CHECK(differs(p, LEN, 1) < 0);
}

/* As before, but the arena is there already. */
static void no_descriptors_later(void)
{
	free(malloc(LEN));
	no_descriptors();
}

/* Descriptors of arenas. */
static int arenas(void)
{
	int count = 0;
	for (int fd = 3; fd < 1024; fd++) {
		char link[32], to[64] = "";
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		count += readlink(link, to, sizeof to - 1) > 0 && strstr(to, "rustmx");
	}
	return count;
}

/* There is an arena, but no memory for its book: others would have none either, and are not made. */
static void no_book(void)
{
	char line[128];
	unsigned long data = 0;
	FILE *f = fopen("/proc/self/status", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		sscanf(line, "VmData: %lu kB", &data);
	fclose(f);
	CHECK(data > 0);
	limit(RLIMIT_DATA, (data << 10) + (64 << 10));
	for (int i = 0; i < 100; i++) {
		char *p = malloc(9000);
		CHECK(p && !ours(p));
		fill(p, 9000, 1);
		free(p);
	}
	CHECK(arenas() == 1, "%d arenas", arenas());
	limit(RLIMIT_DATA, RLIM_INFINITY);
	char *p = malloc(9000);
	CHECK(p && ours(p) && arenas() == 1);
}

/* A guard page within a block: the copy must not end us. */
static void guard(void)
{
	char *p = aligned_alloc(4096, LEN);
	CHECK(p && ours(p));
	fill(p, LEN, 1);
	CHECK(!mprotect(p + 8192, 4096, PROT_NONE));
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(differs(p, LEN, 1) < 0);
		_exit(0);
	}
	reap(pid);
	CHECK(!mprotect(p + 8192, 4096, PROT_READ | PROT_WRITE) && differs(p, LEN, 1) < 0);
}

/* Pages locked in memory cannot be given back, and mlockall does not lock the addresses of an arena that is hardly used. */
static void locked(void)
{
	char *p = malloc(LEN);
	CHECK(p && ours(p));
	limit(RLIMIT_MEMLOCK, RLIM_INFINITY);
	if (mlockall(MCL_CURRENT))
		return; /* not allowed here */
	for (int i = 0; i < 3; i++) {
		char *q = malloc(80 << 20);
		CHECK(q);
		fill(q, 80 << 20, i);
		CHECK(!mlock(q, 80 << 20));
		free(q);
		CHECK((q = calloc(80 << 20, 1)) && q[1000] == 0 && q[(80 << 20) - 1] == 0);
		free(q);
	}
	free(p);
}

/* Bytes of memory behind an arena. */
static long resident(const void *block)
{
	struct rustmx_heap_range r;
	struct stat s;
	CHECK(!heap()->find(block, &r) && !fstat(r.fd, &s));
	return s.st_blocks * 512 >> 20;
}

/* One block that is freed while it is locked does not keep all others in memory. */
static void locked_once(void)
{
	enum { LOCKED = 128, BLOCK = 32, AT_ONCE = 8 };
	limit(RLIMIT_MEMLOCK, RLIM_INFINITY);
	char *first = malloc(LOCKED << 20), *p[AT_ONCE];
	CHECK(first && ours(first));
	if (mlock(first, LOCKED << 20))
		return; /* not allowed here */
	free(first);
	for (int done = 0; done < 4096; done += AT_ONCE * BLOCK) {
		for (int i = 0; i < AT_ONCE; i++) {
			CHECK((p[i] = malloc(BLOCK << 20)) && ours(p[i]));
			memset(p[i], i + 1, BLOCK << 20);
		}
		/* Forwards, backwards and from the middle: the locked pages are in stretches with others, before and behind them. */
		static const int order[4][AT_ONCE] = { { 0, 1, 2, 3, 4, 5, 6, 7 }, { 7, 6, 5, 4, 3, 2, 1, 0 },
						       { 3, 4, 2, 5, 1, 6, 0, 7 }, { 0, 7, 2, 5, 4, 3, 6, 1 } };
		for (int i = 0; i < AT_ONCE; i++)
			free(p[order[done / (AT_ONCE * BLOCK) % 4][i]]);
		long left = resident(first);
		CHECK(left <= LOCKED + 64 + 4, "%ld MiB are left after %d", left, done);
	}
	/* It can be given back once it is no longer locked and was used again. */
	CHECK(!munlock(first, LOCKED << 20));
	CHECK((first = malloc(300 << 20)));
	memset(first, 1, 300 << 20);
	for (int i = 0; i < AT_ONCE; i++)
		CHECK((p[i] = malloc(BLOCK << 20)));
	for (int i = 0; i < AT_ONCE; i++)
		memset(p[i], i + 1, BLOCK << 20);
	for (int i = 0; i < AT_ONCE; i++)
		free(p[i]);
	free(first);
	long left = resident(first);
	CHECK(left <= 64, "%ld MiB are left", left);
}

/* More locked blocks than a purge looks at, with others between them: in the end only they are left. */
static void locked_often(void)
{
	enum { PAIRS = 40, LEN = 1 << 20, REST = 8 << 20 };
	limit(RLIMIT_MEMLOCK, RLIM_INFINITY);
	char *locked[PAIRS], *rest[PAIRS];
	for (int i = 0; i < PAIRS; i++) {
		CHECK((locked[i] = malloc(LEN)) && (rest[i] = malloc(REST)));
		memset(rest[i], 1, REST);
		if (mlock(locked[i], LEN))
			return; /* not allowed here */
	}
	for (int i = 0; i < PAIRS; i++) {
		free(locked[i]);
		free(rest[i]);
	}
	/* Somebody has to free something for a purge to begin. */
	for (int i = 0; i < 20; i++) {
		char *p[4];
		for (int k = 0; k < 4; k++) {
			CHECK((p[k] = malloc(100 << 20)));
			memset(p[k], 1, 100 << 20);
		}
		for (int k = 0; k < 4; k++)
			free(p[k]);
	}
	char *p = malloc(LEN);
	long left = resident(p);
	CHECK(left <= PAIRS + 64 + 64, "%ld MiB are left", left);
}

/* A coroutine on a stack from malloc forks. */
static ucontext_t outside, inside;

static void prepare(void (*coroutine)(void))
{
	CHECK(!getcontext(&inside));
	inside.uc_stack.ss_size = 256 << 10;
	inside.uc_stack.ss_sp = malloc(256 << 10);
	inside.uc_link = &outside;
	CHECK(ours(inside.uc_stack.ss_sp));
	makecontext(&inside, coroutine, 0);
}

static void coroutine(void)
{
	fork();
	fprintf(stderr, "fork came back\n");
	_exit(0);
}

static void stack(void)
{
	prepare(coroutine);
	swapcontext(&outside, &inside);
}

/* The same in a forked child, on a stack that it has from its parent and for itself. */
static void copied(void)
{
	volatile long local[512] = { 0 };
	pid_t pid = fork();
	CHECK(pid >= 0);
	for (int i = 0; i < 512; i++)
		local[i] += pid ? 1 : 2;
	if (pid)
		reap(pid);
	for (int i = 0; i < 512; i++)
		CHECK(local[i] == (pid ? 1 : 2), "%ld", local[i]);
	if (!pid)
		_exit(0);
}

static void stack_of_a_child(void)
{
	prepare(copied);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(!ours(inside.uc_stack.ss_sp));
		CHECK(!swapcontext(&outside, &inside));
		_exit(0);
	}
	reap(pid);
}

static void bad_free(void)
{
	char *p = malloc(LEN);
	free(p + 8192);
	fprintf(stderr, "free came back\n");
}

static void twice(void)
{
	char *p = malloc(LEN);
	free(p);
	free(p);
	fprintf(stderr, "free came back\n");
}

/* The child dies before it has run a handler of the program; nobody waits for it. */
static void dead_child(void)
{
	char *p = malloc(LEN);
	fill(p, LEN, 1);
	for (int i = 0; i < 50; i++) {
		pid_t pid = fork();
		if (pid == 0)
			for (;;)
				fill(p, LEN, 2);
		int status;
		kill(pid, i % 2 ? SIGKILL : SIGSTOP);
		char *q = malloc(LEN);
		fill(q, LEN, 3);
		free(q);
		kill(pid, SIGKILL);
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
		CHECK(differs(p, LEN, 1) < 0);
	}
}

/* A signal comes to a child that has hardly begun: its handler runs on the child's heap, not on the parent's. */
static volatile sig_atomic_t came;
static volatile long *counter;

static void count(int signal)
{
	(void)signal;
	counter[100]++;
	came = 1;
}

static void signalled(void)
{
	/* On one core the parent goes on after fork, and the signal is there before the child has run at all. */
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	struct sigaction action = { .sa_handler = count };
	sigset_t usr1, usr2, mask;
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	CHECK((counter = calloc(1, 64 << 10)) && ours((void *)counter));
	sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1);
	sigemptyset(&usr2), sigaddset(&usr2, SIGUSR2);
	CHECK(!sigprocmask(SIG_SETMASK, &usr2, NULL));
	for (int i = 0; i < 200; i++) {
		pid_t pid = fork();
		if (pid > 0)
			CHECK(!kill(pid, SIGUSR1));
		/* Both have the mask that was there before. */
		CHECK(!sigprocmask(SIG_BLOCK, &usr1, &mask));
		CHECK(sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGTERM));
		if (pid == 0) {
			while (!came)
				sigsuspend(&usr2);
			CHECK(counter[100] == 1, "round %d: %ld in the child", i, counter[100]);
			_exit(0);
		}
		CHECK(!sigprocmask(SIG_SETMASK, &usr2, NULL));
		int status;
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(counter[100] == 0, "round %d: %ld in the parent", i, counter[100]);
		CHECK(status == 0, "%x", status);
	}
}

/* Long chains of generations: each child is the parent of the next. */
static void chain(void)
{
	for (int i = 0; i < 150; i++) {
		char *p = malloc(100000 + i);
		CHECK(p);
		fill(p, 100000 + i, i);
		pid_t pid = fork();
		if (pid > 0) {
			fill(p, 100000 + i, i + 1);
			reap(pid);
			CHECK(differs(p, 100000 + i, i + 1) < 0);
			if (i > 0)
				_exit(0);
			return;
		}
		CHECK(differs(p, 100000 + i, i) < 0);
		if (i % 2)
			free(p);
	}
	_exit(0);
}

/* What was free at the fork is no part of the child's heap: something else may be mapped there, and must stay. */
static void elsewhere(void)
{
	const size_t freed = 50 << 20, len = 48 << 20;
	char *small = malloc(8192), *big = malloc(freed);
	CHECK(ours(small) && ours(big) && big > small);
	fill(small, 8192, 1);
	fill(big, freed, 2);
	free(big);
	pid_t pid = fork();
	if (pid == 0) {
		int file = memfd_create("elsewhere", 0);
		CHECK(file >= 0 && !ftruncate(file, len));
		char *map = mmap(big, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
		CHECK(map == big, "%p", (void *)map);
		fill(map, len, 3);
		/* More than is kept: something goes back to the system. */
		char *p[3];
		for (int i = 0; i < 3; i++) {
			CHECK((p[i] = malloc(40 << 20)) && ours(p[i]));
			fill(p[i], 40 << 20, 4);
		}
		for (int i = 0; i < 3; i++)
			free(p[i]);
		long at = differs(map, len, 3);
		CHECK(at < 0, "byte %ld", at);
		CHECK(differs(small, 8192, 1) < 0);
		_exit(0);
	}
	reap(pid);
}

/* Another allocator is preloaded behind the heap. Whose a short block is, that one is asked how long it is. */
static void behind(void)
{
	for (size_t len = 1; len < 8192; len += len / 3 + 1) {
		char *p = malloc(len);
		CHECK(p && !ours(p));
		size_t usable = malloc_usable_size(p);
		CHECK(usable >= len && usable < 2 * len + 64, "%zu of %zu", usable, len);
		fill(p, len, len);
		CHECK((p = realloc(p, 10000)) && differs(p, len, len) < 0, "%zu", len);
		fill(p, 10000, 1);
		CHECK((p = realloc(p, len)) && differs(p, len, 1) < 0, "%zu", len);
		free(p);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "no_copy", no_copy },
		{ "few_addresses", few_addresses },
		{ "some_addresses", some_addresses },
		{ "half_of_the_addresses", half_of_the_addresses },
		{ "file_size", file_size },
		{ "file_size_later", file_size_later },
		{ "closed", closed },
		{ "no_descriptors", no_descriptors },
		{ "no_descriptors_later", no_descriptors_later },
		{ "no_book", no_book },
		{ "guard", guard },
		{ "locked", locked },
		{ "locked_once", locked_once },
		{ "locked_often", locked_often },
		{ "stack", stack },
		{ "stack_of_a_child", stack_of_a_child },
		{ "bad_free", bad_free },
		{ "twice", twice },
		{ "dead_child", dead_child },
		{ "signalled", signalled },
		{ "chain", chain },
		{ "elsewhere", elsewhere },
		{ "behind", behind },
	};
	CHECK(argc == 2);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(argv[1], all[i].name)) {
			all[i].run();
			puts("ok");
			return 0;
		}
	CHECK(0, "%s?", argv[1]);
}
