/* Another program maps the arena by its descriptor, and sees what is written here. */
#include "check.h"
#include <spawn.h>

extern char **environ;

/* query FD LENGTH OFFSET BYTES: is told by lines on its standard input which number must be there. */
static int peer(char **argv)
{
	int fd = atoi(argv[1]);
	size_t length = strtoull(argv[2], NULL, 0), offset = strtoull(argv[3], NULL, 0), bytes = strtoull(argv[4], NULL, 0);
	struct stat s;
	CHECK(!fstat(fd, &s) && (size_t)s.st_size == length);
	CHECK(fcntl(fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ||
	      fcntl(fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | 0x20 /* F_SEAL_EXEC */));
	CHECK(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
	char *p = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		long at = differs(p + offset, bytes, strtoull(line, NULL, 0));
		CHECK(at < 0, "byte %ld", at);
		puts("seen");
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5)
		return peer(argv);
	const struct rustmx_heap_1 *h = heap();
	size_t bytes = 3 << 20;
	char *p = malloc(bytes), local;
	struct rustmx_heap_range r, in;
	CHECK(!h->find(p, &r) && !h->find(p + bytes - 1, &in));
	CHECK(in.base == r.base && in.fd == r.fd && in.generation == r.generation && in.offset == r.offset + bytes - 1);
	CHECK((char *)r.base + r.offset == p && r.offset + bytes <= r.length && r.generation > 0 && r.reserved == 0);
	CHECK(fcntl(r.fd, F_GETFD) == FD_CLOEXEC);
	/* What is not ours. */
	char *small = malloc(100);
	CHECK(h->find(&local, &in) == -ENOENT && h->find(small, &in) == -ENOENT && h->find(NULL, &in) == -ENOENT);
	CHECK(h->find((char *)r.base - 1, &in) == -ENOENT && h->find((char *)r.base + r.length, &in) == -ENOENT);
	CHECK(h->find(main, &in) == -ENOENT && h->open(&local, 0) == -ENOENT);

	int to[2], from[2], fd = h->open(p, 0);
	CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY, "%d", fd);
	CHECK(!pipe2(to, O_CLOEXEC) && !pipe2(from, O_CLOEXEC));
	CHECK(!fcntl(fd, F_SETFD, 0));
	char number[4][32];
	snprintf(number[0], 32, "%d", fd);
	snprintf(number[1], 32, "%llu", (unsigned long long)r.length);
	snprintf(number[2], 32, "%llu", (unsigned long long)r.offset);
	snprintf(number[3], 32, "%zu", bytes);
	char *arguments[] = { argv[0], number[0], number[1], number[2], number[3], NULL };
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, to[0], 0);
	posix_spawn_file_actions_adddup2(&actions, from[1], 1);
	pid_t pid;
	CHECK(!posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ));
	close(to[0]);
	close(from[1]);
	FILE *out = fdopen(to[1], "w"), *back = fdopen(from[0], "r");
	char line[32];
	for (int i = 0; i < 20; i++) {
		fill(p, bytes, i);
		fprintf(out, "%d\n", i);
		fflush(out);
		CHECK(fgets(line, sizeof line, back), "round %d", i);
	}
	fclose(out);
	reap(pid);

	/* Writable, if it is asked for. */
	int rw = h->open(p, 1);
	CHECK(rw >= 0 && (fcntl(rw, F_GETFL) & O_ACCMODE) == O_RDWR && fcntl(rw, F_GETFD) == FD_CLOEXEC);
	CHECK(ftruncate(rw, 4096) < 0 && ftruncate(rw, (off_t)r.length * 2) < 0);

	/* A child's block is not found any more, and what it allocates is, in another arena. */
	pid = fork();
	if (pid == 0) {
		CHECK(differs(p, bytes, 19) < 0 && h->find(p, &in) == -ENOENT && h->open(p, 0) == -ENOENT);
		char *q = malloc(bytes);
		CHECK(!h->find(q, &in) && in.generation != r.generation && in.fd >= 0 && h->open(q, 0) >= 0);
		CHECK((p = realloc(p, 2 * bytes)) && differs(p, bytes, 19) < 0 && ours(p));
		_exit(0);
	}
	reap(pid);
	CHECK(!h->find(p, &in) && in.generation == r.generation);

	/* A program that closes what it does not know, and opens something else there. */
	close(r.fd);
	CHECK(h->open(p, 0) == -EBADF);
	int null = open("/dev/null", O_RDWR);
	CHECK(dup2(null, r.fd) == r.fd && h->open(p, 0) == -EBADF);
	puts("ok");
	return 0;
}
