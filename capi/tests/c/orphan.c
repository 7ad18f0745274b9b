/* A process is killed while a child that it forked lives on: its peer hears of it all the same, and at once. */
#include "client.h"

#include <signal.h>
#include <sys/wait.h>

/* More than the end of a connection takes to be heard of, less than a silent peer is given. */
#define SOON 5.0

static const struct options how = { .caps = FI_TAGGED | FI_DIRECTED_RECV };

/* Both call each other. */
static void talk(struct net *n, int sock)
{
	static uint8_t in[8], out[8];
	struct fi_context2 c[2];
	int got = 0;
	meet(n, sock);
	POST(n, fi_trecv(n->ep, in, sizeof in, NULL, n->peer, 1, 0, &c[0]));
	POST(n, fi_tsend(n->ep, out, sizeof out, NULL, n->peer, 1, &c[1]));
	while (got < 2) {
		next(n);
		got++;
	}
	barrier_progressing(sock, n);
}

static void killed(int sock)
{
	struct net n;
	open_net(&n, &how);
	talk(&n, sock);
	pid_t orphan = fork();
	CHECK(orphan >= 0);
	if (!orphan) {
		/* Not for ever, whatever becomes of the test, which would wait for the end of what is written there. */
		alarm(4 * LIMIT_SECONDS);
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		orphan = getpid();
		tell(sock, &orphan, sizeof orphan);
		for (char c;;) {
			hear(sock, &c, 1);
			tell(sock, &c, 1);
		}
	}
	pause();
}

int main(void)
{
	int s[2], status;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	pid_t child = fork(), orphan;
	CHECK(child >= 0);
	my_rank = child ? 0 : 1;
	if (!child) {
		close(s[0]);
		killed(s[1]);
	}
	close(s[1]);
	struct net n;
	open_net(&n, &how);
	talk(&n, s[0]);
	hear(s[0], &orphan, sizeof orphan);
	/* Posted before: of who is known to be gone none can be posted. */
	static uint8_t in[8];
	struct fi_context2 c;
	POST(&n, fi_trecv(n.ep, in, sizeof in, NULL, n.peer, 2, 0, &c));
	CHECK(!kill(child, SIGKILL));
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	double since = now();
	struct fi_cq_err_entry e = next_error(&n);
	CHECK(e.op_context == &c && e.err == FI_ECONNRESET);
	double took = now() - since;
	if (took > SOON)
		FAIL("heard of the end after %.1f s", took);
	/* And the child lives. */
	barrier(s[0]);
	kill(orphan, SIGKILL);
	close_net(&n);
	printf("OK\n");
	return 0;
}
