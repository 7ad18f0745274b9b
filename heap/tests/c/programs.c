/* Starting other programs: vfork, posix_spawn, system, popen, exec. programs [again] */
#include "check.h"
#include <spawn.h>

extern char **environ;
static int forks;

static void count(void)
{
	forks++;
}

int main(int argc, char **argv)
{
	if (argc == 2) {
		/* A new image: a heap of its own, no descriptor of the old one. */
		for (int fd = 3; fd < 1024; fd++) {
			char link[32], to[64] = "";
			snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
			CHECK(readlink(link, to, sizeof to - 1) < 0 || !strstr(to, "rustmx"), "%d came through exec", fd);
		}
		char *p = malloc(1 << 20);
		struct rustmx_heap_range r;
		CHECK(!heap()->find(p, &r) && r.generation == 1 && p[0] == 0);
		puts("ok");
		return 0;
	}
	char *p = malloc(200 << 20);
	CHECK(p && ours(p));
	memset(p, 1, 200 << 20);
	CHECK(!pthread_atfork(count, NULL, NULL));
	char *arguments[] = { argv[0], "again", NULL };
	pid_t pid;
	CHECK(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ));
	reap(pid);
	if ((pid = vfork()) == 0) {
		execv("/proc/self/exe", arguments);
		_exit(1);
	}
	reap(pid);
	CHECK(system("exit 3") == 3 << 8);
	FILE *f = popen("echo said", "r");
	char line[10];
	CHECK(f && fgets(line, sizeof line, f) && !strcmp(line, "said\n") && !pclose(f));
	CHECK(forks == 0, "these do not pay for a copy");
	pid = fork();
	if (pid == 0) {
		execv("/proc/self/exe", arguments);
		_exit(1);
	}
	reap(pid);
	CHECK(forks == 1 && p[100 << 20] == 1);
	puts("ok");
	return 0;
}
