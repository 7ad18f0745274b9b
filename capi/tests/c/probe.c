/* Peek, claim, discard (the sequences of fabtests' rdm_tagged_peek and of the MPI libraries), cancel, truncation. */
#include "client.h"

static struct net n;

static struct fi_msg_tagged about(uint64_t tag, struct iovec *iov, void *context)
{
	return (struct fi_msg_tagged){
		.msg_iov = iov, .iov_count = iov ? 1 : 0, .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context,
	};
}

/* Peeks until the message is there. */
static struct fi_cq_tagged_entry peek(uint64_t tag, uint64_t flags, void *context)
{
	struct fi_msg_tagged m = about(tag, NULL, context);
	double until = now() + LIMIT_SECONDS;
	for (;;) {
		struct fi_cq_tagged_entry e;
		ssize_t got;
		POST(&n, fi_trecvmsg(n.ep, &m, FI_PEEK | FI_COMPLETION | flags));
		while ((got = fi_cq_read(n.cq, &e, 1)) == -FI_EAGAIN)
			;
		if (got == 1) {
			CHECK(e.op_context == context && (e.flags & (FI_RECV | FI_TAGGED)) == (FI_RECV | FI_TAGGED));
			return e;
		}
		struct fi_cq_err_entry err = { 0 };
		EXPECT(1, fi_cq_readerr(n.cq, &err, 0));
		CHECK(err.err == FI_ENOMSG && err.op_context == context);
		CHECK(now() < until);
	}
}

/* Clients of before 1.5 know no err_data_size: there is something else of theirs. */
static void old_error(void)
{
	struct net old;
	struct fi_context2 c;
	open_net(&old, &(struct options){ .version = FI_VERSION(1, 4) });
	struct fi_msg_tagged m = about(99, NULL, &c);
	POST(&old, fi_trecvmsg(old.ep, &m, FI_PEEK | FI_COMPLETION));
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { .err_data_size = 4711 };
	while (fi_cq_read(old.cq, &e, 1) != -FI_EAVAIL)
		;
	EXPECT(1, fi_cq_readerr(old.cq, &err, 0));
	CHECK(err.err == FI_ENOMSG && err.op_context == &c && err.err_data_size == 4711);
	close_net(&old);
}

static void receiver(int sock)
{
	struct fi_context2 c;
	static char buf[20000];
	struct iovec iov = { buf, sizeof buf };
	struct fi_msg_tagged m = about(99, NULL, &c);

	/* A tag nobody sends: an error entry, not a return code. */
	POST(&n, fi_trecvmsg(n.ep, &m, FI_PEEK | FI_COMPLETION));
	struct fi_cq_err_entry err = next_error(&n);
	CHECK(err.err == FI_ENOMSG && err.op_context == &c && err.prov_errno);
	EXPECT(-FI_EAGAIN, fi_cq_readerr(n.cq, &err, 0));
	barrier(sock);
	old_error();

	/* Peek does not consume: twice, then receive. */
	struct fi_cq_tagged_entry e = peek(1, 0, &c);
	CHECK(e.len == 10 && e.tag == 1 && e.data == 101 && e.flags & FI_REMOTE_CQ_DATA);
	peek(1, 0, &c);
	POST(&n, fi_trecv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, 1, 0, &c));
	CHECK(next_is(&n, &c).len == 10);
	check_fill(buf, 10, 1);

	/* Claim: invisible to others, received with the same context. */
	e = peek(2, FI_CLAIM, &c);
	CHECK(e.len == 10000 && e.data == 102);
	struct fi_context2 other;
	m = about(2, NULL, &other);
	POST(&n, fi_trecvmsg(n.ep, &m, FI_PEEK | FI_COMPLETION));
	CHECK(next_error(&n).err == FI_ENOMSG);
	m = about(2, &iov, &c);
	m.addr = 0;
	memset(buf, 0, sizeof buf);
	POST(&n, fi_trecvmsg(n.ep, &m, FI_CLAIM | FI_COMPLETION));
	e = next_is(&n, &c);
	CHECK(e.len == 10000 && e.tag == 2 && e.data == 102);
	check_fill(buf, 10000, 2);

	/* Claim into a buffer that is too short. */
	e = peek(3, FI_CLAIM, &c);
	struct iovec small = { buf, 100 };
	m = about(3, &small, &c);
	POST(&n, fi_trecvmsg(n.ep, &m, FI_CLAIM | FI_COMPLETION));
	err = next_error(&n);
	CHECK(err.err == FI_ETRUNC && err.len == 100 && err.olen == 900 && err.op_context == &c && err.tag == 3 && err.data == 103);
	check_fill(buf, 100, 3);

	/* Discard at the peek, discard of a claimed one. */
	peek(4, FI_DISCARD, &c);
	m = about(4, NULL, &c);
	POST(&n, fi_trecvmsg(n.ep, &m, FI_PEEK | FI_COMPLETION));
	CHECK(next_error(&n).err == FI_ENOMSG);
	peek(5, FI_CLAIM, &c);
	m = about(5, NULL, &c);
	POST(&n, fi_trecvmsg(n.ep, &m, FI_CLAIM | FI_DISCARD | FI_COMPLETION));
	next_is(&n, &c);

	/* The rest in reverse order. */
	for (int t = 8; t >= 6; t--) {
		POST(&n, fi_trecv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, t, 0, &c));
		CHECK(next_is(&n, &c).tag == (unsigned)t);
		check_fill(buf, 50, t);
	}

	/* Truncation of eager, streamed and untagged messages. */
	for (int t = 10; t < 13; t++) {
		memset(buf, 0, sizeof buf);
		if (t < 12)
			POST(&n, fi_trecv(n.ep, buf, 7, NULL, n.peer, t, 0, &c));
		else
			POST(&n, fi_recv(n.ep, buf, 7, NULL, n.peer, &c));
		err = next_error(&n);
		CHECK(err.err == FI_ETRUNC && err.len == 7 && err.olen == (t == 11 ? 100000 : 50) - 7 && err.op_context == &c);
		CHECK(err.data == 100u + t && (err.flags & FI_RECV));
		check_fill(buf, 7, t);
		CHECK(buf[7] == 0);
	}

	/* Cancel: exactly one entry for each, and a message for the cancelled receive goes to the next one. */
	struct fi_context2 cc[8];
	for (int i = 0; i < 8; i++)
		POST(&n, fi_trecv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, 20, 0, &cc[i]));
	for (int i = 7; i >= 0; i--)
		EXPECT(0, fi_cancel(&n.ep->fid, &cc[i]));
	for (int i = 7; i >= 0; i--) {
		err = next_error(&n);
		CHECK(err.err == FI_ECANCELED && err.op_context == &cc[i] && (err.flags & FI_RECV));
	}
	EXPECT(-FI_ENOENT, fi_cancel(&n.ep->fid, &cc[0]));
	quiet(&n);
	POST(&n, fi_trecv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, 20, 0, &c));
	barrier(sock);
	next_is(&n, &c);
	check_fill(buf, 50, 20);

	/* Messages that wait unmatched, and a claimed one, at close. */
	peek(30, FI_CLAIM, &c);
	peek(31, 0, &c);
	barrier(sock);
}

static void send_one(uint64_t tag, size_t len, bool tagged)
{
	static char buf[100000];
	struct fi_context2 c;
	fill(buf, len, tag);
	if (tagged)
		POST(&n, fi_tsenddata(n.ep, buf, len, NULL, 100 + tag, n.peer, tag, &c));
	else
		POST(&n, fi_senddata(n.ep, buf, len, NULL, 100 + tag, n.peer, &c));
	next_is(&n, &c);
}

static void sender(int sock)
{
	barrier(sock);
	send_one(1, 10, true);
	send_one(2, 10000, true);
	send_one(3, 1000, true);
	send_one(4, 5000, true);
	send_one(5, 5000, true);
	for (int t = 6; t < 9; t++)
		send_one(t, 50, true);
	send_one(10, 50, true);
	send_one(11, 100000, true);
	send_one(12, 50, false);
	char c;
	tell(sock, "b", 1);
	hear(sock, &c, 1);
	send_one(20, 50, true);
	send_one(30, 1000, true);
	send_one(31, 1000, true);
	barrier_progressing(sock, &n);
}

static void side(int rank, int sock)
{
	open_net(&n, &(struct options){ .caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV });
	meet(&n, sock);
	rank ? receiver(sock) : sender(sock);
	close_net(&n);
}

int main(void)
{
	in_two_processes(side);
	printf("OK\n");
	return 0;
}
