/* Both message kinds through every posting call: sizes over all protocols, scatter lists, remote data, inject, order, self. */
#include "client.h"

static const size_t sizes[] = { 0, 1, 8, 64, 232, 233, 1000, 4096, 4097, 10000, 65536, 200000, 1 << 20, (4 << 20) + 13 };
#define SIZES (sizeof sizes / sizeof *sizes)

static char *out, *in;

static void sizes_both_ways(struct net *n, int rank)
{
	for (size_t i = 0; i < SIZES; i++) {
		size_t len = sizes[i];
		struct fi_context2 s, r;
		fill(out, len, i + rank);
		memset(in, 0, len);
		/* Rank 0 posts early, rank 1 late: expected and unexpected messages. */
		if (rank == 0)
			POST(n, fi_trecv(n->ep, in, len, NULL, FI_ADDR_UNSPEC, 7 + i, 0, &r));
		POST(n, fi_tsend(n->ep, out, len, NULL, n->peer, 7 + i, &s));
		if (rank == 1)
			POST(n, fi_trecv(n->ep, in, len, NULL, n->peer, 7 + i, 0, &r));
		for (int k = 0; k < 2; k++) {
			struct fi_cq_tagged_entry e = next(n);
			if (e.op_context == &s) {
				CHECK(e.flags == (FI_SEND | FI_TAGGED));
			} else {
				CHECK(e.op_context == &r && e.flags == (FI_RECV | FI_TAGGED));
				CHECK(e.len == len && e.tag == 7 + i);
				check_fill(in, len, i + !rank);
			}
		}
		POST(n, fi_send(n->ep, out, len, NULL, n->peer, &s));
		POST(n, fi_recv(n->ep, in, len, NULL, FI_ADDR_UNSPEC, &r));
		for (int k = 0; k < 2; k++) {
			struct fi_cq_tagged_entry e = next(n);
			CHECK(e.flags == (e.op_context == &s ? FI_SEND | FI_MSG : FI_RECV | FI_MSG));
			CHECK(e.op_context == &s || e.len == len);
		}
		check_fill(in, len, i + !rank);
	}
}

/* Every slot of both tables once; rank 0 sends, rank 1 receives in order. */
static void every_call(struct net *n, int rank)
{
	struct fi_context2 c;
	char piece[6][100];
	struct iovec iov[3];
	for (int i = 0; i < 3; i++)
		iov[i] = (struct iovec){ piece[i], 10 * (i + 1) };
	fill(piece[0], 10, 1);
	fill(piece[1], 20, 2);
	fill(piece[2], 30, 3);
	struct fi_msg m = { .msg_iov = iov, .iov_count = 3, .addr = n->peer, .context = &c, .data = 0xabcdef0123456789 };
	struct fi_msg_tagged t = { .msg_iov = iov, .iov_count = 3, .addr = n->peer, .tag = ~0ull, .context = &c, .data = 42 };
	struct fi_msg_tagged ack = { .addr = n->peer, .tag = 5 };

	if (rank == 0) {
		POST(n, fi_inject(n->ep, piece[0], 10, n->peer));
		POST(n, fi_injectdata(n->ep, piece[0], 10, 77, n->peer));
		POST(n, fi_tinject(n->ep, piece[0], 10, n->peer, 1));
		POST(n, fi_tinjectdata(n->ep, piece[0], 10, 78, n->peer, 2));
		EXPECT(-FI_EMSGSIZE, fi_tinject(n->ep, out, n->info->tx_attr->inject_size + 1, n->peer, 1));
		quiet(n);
		POST(n, fi_senddata(n->ep, piece[0], 10, NULL, 79, n->peer, &c));
		next_is(n, &c);
		POST(n, fi_tsenddata(n->ep, piece[0], 10, NULL, 80, n->peer, 3, &c));
		next_is(n, &c);
		POST(n, fi_sendv(n->ep, iov, NULL, 3, n->peer, &c));
		next_is(n, &c);
		POST(n, fi_tsendv(n->ep, iov, NULL, 3, n->peer, 4, &c));
		next_is(n, &c);
		POST(n, fi_sendmsg(n->ep, &m, FI_REMOTE_CQ_DATA | FI_COMPLETION));
		next_is(n, &c);
		POST(n, fi_tsendmsg(n->ep, &t, FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_INJECT));
		memset(piece, 0, sizeof piece);
		next_is(n, &c);
		/* As Open MPI acknowledges a synchronous send: no buffer at all. */
		POST(n, fi_tsendmsg(n->ep, &ack, 0));
		next(n);
		EXPECT(-FI_EOPNOTSUPP, fi_tsendmsg(n->ep, &ack, FI_TRIGGER));
		EXPECT(-FI_EINVAL, fi_sendv(n->ep, iov, NULL, 17, n->peer, &c));
		return;
	}
	struct fi_cq_tagged_entry e;
	struct iovec to[2] = { { piece[4], 35 }, { piece[5], 25 } };
	memset(piece, 0, sizeof piece);
	for (int k = 0; k < 3; k++) {
		POST(n, fi_recv(n->ep, piece[3], 100, NULL, FI_ADDR_UNSPEC, &c));
		e = next_is(n, &c);
		CHECK(e.len == 10 && e.flags == (FI_RECV | FI_MSG | (k ? FI_REMOTE_CQ_DATA : 0)) && e.data == (k ? 75 + 2 * k : 0));
		check_fill(piece[3], 10, 1);
	}
	for (int k = 1; k <= 3; k++) {
		POST(n, fi_trecv(n->ep, piece[3], 100, NULL, n->peer, k, 0, &c));
		e = next_is(n, &c);
		CHECK(e.len == 10 && e.tag == (unsigned)k && !!(e.flags & FI_REMOTE_CQ_DATA) == (k > 1));
		CHECK(e.data == (k == 1 ? 0 : k == 2 ? 78 : 80));
	}
	POST(n, fi_recvv(n->ep, to, NULL, 2, FI_ADDR_UNSPEC, &c));
	e = next_is(n, &c);
	CHECK(e.len == 60);
	check_fill(piece[4], 10, 1);
	check_fill(piece[4] + 10, 20, 2);
	memset(piece, 0, sizeof piece);
	POST(n, fi_trecvv(n->ep, to, NULL, 2, FI_ADDR_UNSPEC, 4, 0, &c));
	next_is(n, &c);
	check_fill(piece[4] + 10, 20, 2);
	struct fi_msg rm = { .msg_iov = to, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .context = &c };
	POST(n, fi_recvmsg(n->ep, &rm, FI_COMPLETION));
	e = next_is(n, &c);
	CHECK(e.len == 60 && e.data == 0xabcdef0123456789 && e.flags & FI_REMOTE_CQ_DATA);
	memset(piece, 0, sizeof piece);
	struct fi_msg_tagged rt = { .msg_iov = to, .iov_count = 2, .addr = n->peer, .tag = ~0ull, .context = &c };
	POST(n, fi_trecvmsg(n->ep, &rt, FI_COMPLETION));
	e = next_is(n, &c);
	CHECK(e.len == 60 && e.data == 42 && e.tag == ~0ull);
	check_fill(piece[4], 10, 1);
	POST(n, fi_trecv(n->ep, NULL, 0, NULL, n->peer, 5, 0, &c));
	CHECK(next_is(n, &c).len == 0);
}

/* Messages of one pair match in the order they were sent, small after large, injected after sent, whatever the ignore mask. */
static void order(struct net *n, int rank)
{
	enum { COUNT = 300 };
	static struct fi_context2 c[COUNT];
	static int value[COUNT];
	if (rank == 0) {
		for (int i = 0; i < COUNT; i++) {
			*(int *)out = i;
			size_t len = i % 7 == 0 ? 100000 : 8;
			if (i % 3 && len == 8) {
				POST(n, fi_tinject(n->ep, out, len, n->peer, 0x1000 + i % 5));
			} else {
				POST(n, fi_tsend(n->ep, out, len, NULL, n->peer, 0x1000 + i % 5, &c[i]));
				next_is(n, &c[i]);
			}
		}
		return;
	}
	for (int i = 0; i < COUNT; i++) {
		POST(n, fi_trecv(n->ep, in, 100000, NULL, i % 2 ? n->peer : FI_ADDR_UNSPEC, 0x1000, 7, &c[i]));
		next_is(n, &c[i]);
		value[i] = *(int *)in;
		CHECK(value[i] == i);
	}
}

static void self(struct net *n)
{
	struct fi_context2 s, r;
	for (size_t i = 0; i < SIZES; i++) {
		fill(out, sizes[i], i);
		memset(in, 0, sizes[i]);
		POST(n, fi_tsend(n->ep, out, sizes[i], NULL, n->self, i, &s));
		POST(n, fi_trecv(n->ep, in, sizes[i], NULL, FI_ADDR_UNSPEC, i, 0, &r));
		struct fi_cq_tagged_entry a = next(n), b = next(n);
		CHECK((a.op_context == &s && b.op_context == &r) || (a.op_context == &r && b.op_context == &s));
		check_fill(in, sizes[i], i);
	}
}

/* More sends than any ring holds, and as many receives posted before anything arrives. */
static void flood(struct net *n, int rank)
{
	enum { COUNT = 5000 };
	static struct fi_context2 c[COUNT];
	static uint64_t value[COUNT];
	int done = 0;
	for (int i = 0; i < COUNT; i++) {
		value[i] = rank == 0 ? i : ~0ull;
		if (rank == 0)
			POST(n, fi_tsend(n->ep, &value[i], 8, NULL, n->peer, 9, &c[i]));
		else
			POST(n, fi_trecv(n->ep, &value[i], 8, NULL, n->peer, 9, 0, &c[i]));
	}
	while (done < COUNT) {
		struct fi_cq_tagged_entry e[64];
		ssize_t got = fi_cq_read(n->cq, e, 64);
		if (got == -FI_EAVAIL)
			explain(n->cq, "flood");
		CHECK(got > 0 || got == -FI_EAGAIN);
		done += got > 0 ? got : 0;
	}
	for (int i = 0; i < COUNT; i++)
		CHECK(value[i] == (uint64_t)i);
}

static void side(int rank, int sock)
{
	struct net n;
	open_net(&n, &(struct options){ .caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV });
	meet(&n, sock);
	out = malloc(5 << 20);
	in = malloc(5 << 20);
	sizes_both_ways(&n, rank);
	barrier_progressing(sock, &n);
	every_call(&n, rank);
	barrier_progressing(sock, &n);
	order(&n, rank);
	barrier_progressing(sock, &n);
	flood(&n, rank);
	barrier_progressing(sock, &n);
	self(&n);
	quiet(&n);
	barrier_progressing(sock, &n);
	close_net(&n);
	free(out);
	free(in);
}

int main(void)
{
	in_two_processes(side);
	printf("OK\n");
	return 0;
}
