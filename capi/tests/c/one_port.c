/* Endpoints of one process, in several domains, by the network at one port: each gets its calls, also while a child has copies of everything,
 * after it has closed its own, and when the port is taken again after all were closed. */
#define _GNU_SOURCE /* _Fork(3) */
#include "client.h"

#include <signal.h>

#define COUNT 4

static int port_of(const struct net *n)
{
	return n->name[6] << 8 | n->name[7];
}

/* Two domains, and in each of them two endpoints. */
static void open_all(struct net *n, int port)
{
	struct options o = { .caps = FI_TAGGED };
	for (int i = 0; i < COUNT; i++) {
		if (i % 2) {
			n[i] = n[i - 1];
			open_ep(&n[i], &o);
		} else {
			open_net(&n[i], &o);
		}
		CHECK(port_of(&n[i]) == port);
	}
}

static void close_all(struct net *n)
{
	for (int i = COUNT - 1; i >= 0; i--) {
		if (i % 2) {
			EXPECT(0, fi_close(&n[i].ep->fid));
			EXPECT(0, fi_close(&n[i].cq->fid));
			EXPECT(0, fi_close(&n[i].av->fid));
		} else {
			close_net(&n[i]);
		}
	}
}

/* A message to each of them, by a caller that none of them knows. */
static void calls(int rank, int sock, struct net *n)
{
	if (rank == 0) {
		struct fi_context2 c[COUNT];
		uint8_t got[COUNT][NAME_LEN];
		for (int i = 0; i < COUNT; i++) {
			tell(sock, n[i].name, NAME_LEN);
			POST(&n[i], fi_trecv(n[i].ep, got[i], NAME_LEN, NULL, FI_ADDR_UNSPEC, 1, 0, &c[i]));
		}
		for (int i = 0; i < COUNT; i++) {
			next_is(&n[i], &c[i]);
			CHECK(!memcmp(got[i], n[i].name, NAME_LEN));
		}
	} else {
		struct net caller;
		open_net(&caller, &(struct options){ .caps = FI_TAGGED });
		for (int i = 0; i < COUNT; i++) {
			struct fi_context2 c;
			fi_addr_t to;
			uint8_t name[NAME_LEN];
			hear(sock, name, NAME_LEN);
			EXPECT(1, fi_av_insert(caller.av, name, 1, &to, 0, NULL));
			POST(&caller, fi_tsend(caller.ep, name, NAME_LEN, NULL, to, 1, &c));
			next_is(&caller, &c);
		}
		barrier_progressing(sock, &caller);
		close_net(&caller);
		return;
	}
	barrier(sock);
}

static void side(int rank, int sock)
{
	struct net n[COUNT];
	if (rank == 1) {
		for (int i = 0; i < 4; i++)
			calls(rank, sock, NULL);
		return;
	}
	int port = free_port();
	char text[32];
	snprintf(text, sizeof text, "%d-%d", port, port);
	setenv("FI_RUSTMX_PORT_RANGE", text, 1);
	open_all(n, port);
	calls(rank, sock, n);
	/* A child that closes what it has copies of, and ends. */
	int status;
	fflush(NULL);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		for (int i = 0; i < COUNT; i++)
			fi_close(&n[i].ep->fid);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	calls(rank, sock, n);
	/* One that keeps them: no handler of fork runs in it. */
	child = _Fork();
	CHECK(child >= 0);
	if (!child) {
		/* Should the test fail, it waits for the end of what is written there. */
		alarm(4 * LIMIT_SECONDS);
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		pause();
		_exit(0);
	}
	calls(rank, sock, n);
	close_all(n);
	open_all(n, port);
	calls(rank, sock, n);
	close_all(n);
	kill(child, SIGKILL);
	CHECK(waitpid(child, &status, 0) == child);
}

int main(void)
{
	in_two_processes(side);
	printf("OK\n");
	return 0;
}
