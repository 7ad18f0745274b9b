/* fork takes the lock of the C library's list of open files. Whoever has that one may wait for a file, and whoever has a file for a long block.
 * files many|one */
#include "check.h"

enum { LINE = 40000, LINES = 20, IN_USE = 24 << 20 };

static FILE *file;
static volatile int stop;

/* Each line is longer than the one before; the buffer grows while the file is locked. */
static void *read_lines(void *argument)
{
	while (!stop) {
		char *line = NULL;
		size_t room = 0;
		if (getline(&line, &room, file) < 0)
			rewind(file);
		free(line);
	}
	return argument;
}

/* Locks the list, then each file. */
static void *flush_all(void *argument)
{
	while (!stop)
		CHECK(!fflush(NULL));
	return argument;
}

/* Opens, writes and closes: the list, and files in it, can be locked. */
static void *open_one(void *argument)
{
	FILE *f = fopen("/dev/null", "w");
	CHECK(f && fputs("x", f) >= 0 && !fflush(NULL) && !fclose(f));
	return argument;
}

static void many(void)
{
	static void *(*const work[])(void *) = { read_lines, read_lines, flush_all };
	pthread_t t[3];
	CHECK((file = tmpfile()));
	for (int i = 1; i <= LINES; i++) {
		for (int k = 0; k < LINE / LINES * i; k++)
			fputc('x', file);
		fputc('\n', file);
	}
	rewind(file);
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&t[i], NULL, work[i], NULL));
	for (int round = 0; round < 50; round++) {
		pid_t pid = fork();
		if (pid == 0) {
			/* One that hangs ends by itself. */
			alarm(60);
			open_one(NULL);
			_exit(0);
		}
		reap(pid);
	}
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
}

static pid_t forked = -1;

static ssize_t fork_there(void *cookie, const char *bytes, size_t len)
{
	if (forked < 0)
		forked = fork();
	return cookie || bytes ? (ssize_t)len : 0;
}

/* A program of one thread forks while it has the list itself; the child goes on from there, with threads. */
static void one(void)
{
	cookie_io_functions_t functions = { .write = fork_there };
	CHECK((file = fopencookie(NULL, "w", functions)) && fputs("y", file) >= 0);
	CHECK(!fflush(NULL) && forked >= 0);
	if (forked == 0)
		alarm(60);
	for (int i = 0; i < 3; i++) {
		pthread_t t;
		open_one(NULL);
		CHECK(!pthread_create(&t, NULL, open_one, NULL));
		pthread_join(t, NULL);
	}
	if (forked == 0)
		_exit(0);
	reap(forked);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	alarm(200);
	char *p = malloc(IN_USE);
	CHECK(p && ours(p));
	fill(p, IN_USE, 1);
	if (!strcmp(argv[1], "many"))
		many();
	else
		one();
	CHECK(differs(p, IN_USE, 1) < 0);
	puts("ok");
	return 0;
}
