/* Endpoints for one direction: they need a queue for that only, and refuse the other. */
#include "client.h"

#include <rdma/fi_rma.h>

#define COUNT 100

/* An endpoint of these capabilities with everything but a queue, in the domain of `n`. */
static struct fid_ep *open_for(struct net *n, uint64_t caps)
{
	struct fid_ep *ep;
	fi_freeinfo(n->info);
	n->info = find(&(struct options){ .caps = caps });
	CHECK((n->info->caps & (FI_SEND | FI_RECV)) == (caps & (FI_SEND | FI_RECV)));
	EXPECT(0, fi_endpoint(n->domain, n->info, &ep, NULL));
	return ep;
}

/* What is missing has a number of its own. */
static void missing(void)
{
	static const struct {
		uint64_t caps, enough;
	} all[] = {
		{ FI_MSG | FI_SEND, FI_TRANSMIT },
		{ FI_TAGGED | FI_RECV, FI_RECV },
		{ FI_RMA | FI_READ | FI_WRITE, FI_TRANSMIT },
		{ FI_RMA | FI_REMOTE_READ, 0 },
		{ FI_MSG | FI_RECV | FI_RMA | FI_WRITE, FI_TRANSMIT | FI_RECV },
		{ FI_MSG | FI_SEND | FI_RECV, FI_TRANSMIT | FI_RECV },
	};
	struct net n;
	open_net(&n, &(struct options){ 0 });
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct fid_ep *ep = open_for(&n, all[i].caps);
		for (uint64_t flag = FI_RECV; flag; flag = flag == FI_RECV ? FI_TRANSMIT : 0)
			if (all[i].enough & flag) {
				EXPECT(-FI_ENOCQ, fi_enable(ep));
				EXPECT(0, fi_ep_bind(ep, &n.cq->fid, flag));
			}
		EXPECT(-FI_ENOAV, fi_enable(ep));
		EXPECT(0, fi_ep_bind(ep, &n.av->fid, 0));
		EXPECT(0, fi_enable(ep));
		EXPECT(0, fi_close(&ep->fid));
	}
	/* A counter does, too; of who sends it must count sends. */
	static const struct {
		uint64_t caps, counted;
		int enabled;
	} counting[] = {
		{ FI_RMA | FI_READ, FI_READ, 0 },
		{ FI_MSG | FI_RECV | FI_RMA | FI_WRITE, FI_RECV | FI_WRITE, 0 },
		{ FI_MSG | FI_RECV | FI_RMA | FI_WRITE, FI_WRITE, -FI_ENOCQ },
		{ FI_MSG | FI_SEND | FI_RMA | FI_WRITE, FI_WRITE, -FI_ENOCQ },
		{ FI_MSG | FI_SEND | FI_RMA | FI_WRITE, FI_SEND, 0 },
	};
	for (size_t i = 0; i < sizeof counting / sizeof *counting; i++) {
		struct fi_cntr_attr a = { 0 };
		struct fid_cntr *c;
		struct fid_ep *ep = open_for(&n, counting[i].caps);
		EXPECT(0, fi_cntr_open(n.domain, &a, &c, NULL));
		EXPECT(0, fi_ep_bind(ep, &n.av->fid, 0));
		EXPECT(-FI_ENOCQ, fi_enable(ep));
		EXPECT(0, fi_ep_bind(ep, &c->fid, counting[i].counted));
		EXPECT(counting[i].enabled, fi_enable(ep));
		EXPECT(0, fi_close(&ep->fid));
		EXPECT(0, fi_close(&c->fid));
	}
	close_net(&n);
}

/* Everything else of a net has both directions, and makes no messages. */
static struct fid_ep *open_one_way(struct net *n, uint64_t caps, uint64_t flag, int sock)
{
	size_t len = NAME_LEN;
	open_net(n, &(struct options){ 0 });
	struct fid_ep *ep = open_for(n, caps);
	EXPECT(0, fi_ep_bind(ep, &n->av->fid, 0));
	EXPECT(0, fi_ep_bind(ep, &n->cq->fid, flag));
	EXPECT(0, fi_enable(ep));
	EXPECT(0, fi_getname(&ep->fid, n->name, &len));
	meet(n, sock);
	return ep;
}

static void refused(struct net *n, struct fid_ep *ep, bool sends)
{
	char buf[8] = "";
	struct iovec iov = { buf, sizeof buf };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = n->peer };
	struct fi_msg_tagged t = { .msg_iov = &iov, .iov_count = 1, .addr = n->peer };
	struct fid_ep *alias = NULL;
	EXPECT(0, fi_ep_alias(ep, &alias, sends ? FI_RECV : FI_TRANSMIT));
	struct fid_ep *both[] = { ep, alias };
	for (int i = 0; i < 2; i++) {
		ep = both[i];
		if (sends) {
			EXPECT(-FI_EOPNOTSUPP, fi_recv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, NULL));
			EXPECT(-FI_EOPNOTSUPP, fi_trecv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
			EXPECT(-FI_EOPNOTSUPP, fi_recvmsg(ep, &m, FI_COMPLETION));
			EXPECT(-FI_EOPNOTSUPP, fi_trecvmsg(ep, &t, FI_PEEK));
		} else {
			EXPECT(-FI_EOPNOTSUPP, fi_send(ep, buf, 8, NULL, n->peer, NULL));
			EXPECT(-FI_EOPNOTSUPP, fi_inject(ep, buf, 8, n->peer));
			EXPECT(-FI_EOPNOTSUPP, fi_tsenddata(ep, buf, 8, NULL, 1, n->peer, 1, NULL));
			EXPECT(-FI_EOPNOTSUPP, fi_sendmsg(ep, &m, FI_COMPLETION));
			EXPECT(-FI_EOPNOTSUPP, fi_write(ep, buf, 8, NULL, n->peer, 0, 0, NULL));
		}
	}
	EXPECT(0, fi_close(&alias->fid));
}

static void messages(int rank, int sock)
{
	struct net n;
	struct fid_ep *ep = rank ? open_one_way(&n, FI_MSG | FI_RECV, FI_RECV, sock)
				 : open_one_way(&n, FI_MSG | FI_SEND, FI_TRANSMIT, sock);
	static struct fi_context2 c[COUNT];
	static char buf[COUNT][3000];
	refused(&n, ep, !rank);
	for (int i = 0; i < COUNT; i++) {
		size_t len = i % 2 ? sizeof buf[i] : 8;
		if (rank) {
			EXPECT(0, fi_recv(ep, buf[i], len, NULL, FI_ADDR_UNSPEC, &c[i]));
		} else {
			fill(buf[i], len, i);
			POST(&n, fi_send(ep, buf[i], len, NULL, n.peer, &c[i]));
		}
	}
	bool done[COUNT] = { false };
	for (int i = 0; i < COUNT; i++) {
		/* In any order. */
		struct fi_context2 *which = next(&n).op_context;
		CHECK(which >= c && which < c + COUNT && !done[which - c]);
		done[which - c] = true;
	}
	for (int i = 0; i < COUNT; i++)
		check_fill(buf[i], i % 2 ? sizeof buf[i] : 8, i);
	barrier_progressing(sock, &n);
	EXPECT(0, fi_close(&ep->fid));
	close_net(&n);
}

/* A region that is only written to, and an endpoint that only writes. */
static void memory(int rank, int sock)
{
	struct net n;
	struct fid_ep *ep = rank ? open_one_way(&n, FI_RMA | FI_REMOTE_WRITE, FI_RECV, sock)
				 : open_one_way(&n, FI_RMA | FI_WRITE, FI_TRANSMIT, sock);
	static struct fi_context2 c;
	static char buf[3000];
	struct fid_mr *mr;
	if (rank) {
		EXPECT(-FI_EOPNOTSUPP, fi_write(ep, buf, 8, NULL, n.peer, 0, 7, NULL));
		EXPECT(0, fi_mr_reg(n.domain, buf, sizeof buf, FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
		barrier(sock);
		barrier_progressing(sock, &n);
		check_fill(buf, sizeof buf, 3);
		EXPECT(0, fi_close(&mr->fid));
	} else {
		EXPECT(-FI_EOPNOTSUPP, fi_recv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, NULL));
		barrier(sock);
		fill(buf, sizeof buf, 3);
		POST(&n, fi_write(ep, buf, sizeof buf, NULL, n.peer, 0, 7, &c));
		next_is(&n, &c);
		barrier_progressing(sock, &n);
	}
	EXPECT(0, fi_close(&ep->fid));
	close_net(&n);
}

static void side(int rank, int sock)
{
	my_rank = rank;
	messages(rank, sock);
	memory(rank, sock);
	if (!rank)
		missing();
}

int main(void)
{
	in_two_processes(side);
	puts("OK");
	return 0;
}
