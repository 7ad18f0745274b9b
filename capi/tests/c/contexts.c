/* Shared contexts: two endpoints of one process receive with one, and send with one; another process sends to both. */
#include "client.h"

#include <rdma/fi_rma.h>

#define COUNT 100

static struct fi_info *find_shared(void)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	hints->caps = FI_MSG | FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
	hints->fabric_attr->prov_name = strdup("rustmx");
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(info->ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT && info->ep_attr->tx_ctx_cnt == FI_SHARED_CONTEXT);
	CHECK(info->domain_attr->max_ep_srx_ctx > 1 && info->domain_attr->max_ep_stx_ctx > 1);
	fi_freeinfo(hints);
	return info;
}

static void receiver(int sock)
{
	struct net n;
	struct options o = { 0 };
	struct fid_ep *srx, *ep[2];
	struct fid_stx *stx;
	static char bufs[COUNT][100];
	size_t len = NAME_LEN, size = 16;
	uint8_t name[NAME_LEN];
	char self[8] = "self", in[8];
	fi_addr_t own;
	open_net(&n, &o);
	fi_freeinfo(n.info);
	n.info = find_shared();
	EXPECT(0, fi_srx_context(n.domain, n.info->rx_attr, &srx, NULL));
	EXPECT(0, fi_stx_context(n.domain, n.info->tx_attr, &stx, NULL));
	for (int i = 0; i < 2; i++) {
		EXPECT(0, fi_endpoint(n.domain, n.info, &ep[i], NULL));
		EXPECT(0, fi_ep_bind(ep[i], &n.av->fid, 0));
		EXPECT(0, fi_ep_bind(ep[i], &n.cq->fid, FI_TRANSMIT | FI_RECV));
		EXPECT(-FI_EOPBADSTATE, fi_enable(ep[i]));
		EXPECT(-FI_EBADFLAGS, fi_ep_bind(ep[i], &srx->fid, FI_RECV));
		EXPECT(0, fi_ep_bind(ep[i], &srx->fid, 0));
		EXPECT(-FI_EOPBADSTATE, fi_ep_bind(ep[i], &srx->fid, 0));
		EXPECT(0, fi_ep_bind(ep[i], &stx->fid, 0));
		EXPECT(-FI_EOPBADSTATE, fi_ep_bind(ep[i], &stx->fid, 0));
		EXPECT(0, fi_enable(ep[i]));
		EXPECT(0, fi_getname(&ep[i]->fid, name, &len));
		tell(sock, name, NAME_LEN);
		EXPECT(1, fi_av_insert(n.av, name, 1, &own, 0, NULL));
		/* Its receives are posted to the context, and nothing else is. */
		EXPECT(-FI_EOPBADSTATE, fi_recv(ep[i], in, 8, NULL, FI_ADDR_UNSPEC, NULL));
	}
	EXPECT(-FI_EINVAL, fi_send(srx, in, 8, NULL, 0, NULL));
	EXPECT(-FI_EINVAL, fi_write(srx, in, 8, NULL, 0, 0, 0, NULL));
	EXPECT(-FI_EINVAL, fi_getname(&srx->fid, name, &len));
	EXPECT(-FI_ENOSYS, fi_ep_bind(srx, &n.cq->fid, FI_RECV));
	EXPECT(-FI_EBUSY, fi_close(&srx->fid));
	EXPECT(-FI_EBUSY, fi_close(&stx->fid));
	EXPECT(0, fi_setopt(&srx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &size, sizeof size));
	EXPECT(-FI_ENOPROTOOPT, fi_setopt(&srx->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, sizeof size));

	/* An endpoint to the other: through the context. */
	EXPECT(0, fi_trecv(srx, in, sizeof in, NULL, FI_ADDR_UNSPEC, 3, 0, in));
	EXPECT(0, fi_trecv(srx, in, sizeof in, NULL, FI_ADDR_UNSPEC, 4, 0, bufs));
	EXPECT(0, fi_cancel(&srx->fid, bufs));
	CHECK(next_error(&n).err == FI_ECANCELED);
	EXPECT(-FI_ENOENT, fi_cancel(&srx->fid, bufs));
	EXPECT(0, fi_tinject(ep[0], self, sizeof self, own, 3));
	next_is(&n, in);
	CHECK(!memcmp(in, self, sizeof self));

	/* Half of them early, half late. */
	for (int i = 0; i < COUNT / 2; i++)
		EXPECT(0, fi_recv(srx, bufs[i], 100, NULL, FI_ADDR_UNSPEC, bufs[i]));
	barrier(sock);
	for (int i = 0; i < COUNT / 2; i++)
		next(&n);
	barrier_progressing(sock, &n);
	for (int i = COUNT / 2; i < COUNT; i++) {
		struct iovec iov = { bufs[i], 100 };
		struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = bufs[i] };
		EXPECT(0, fi_recvmsg(srx, &m, FI_COMPLETION));
	}
	for (int i = COUNT / 2; i < COUNT; i++)
		next(&n);
	int from[2] = { 0, 0 };
	for (int i = 0; i < COUNT; i++) {
		CHECK(bufs[i][0] == 0 || bufs[i][0] == 1);
		/* Messages to one endpoint keep their order. */
		CHECK(bufs[i][1] == from[(int)bufs[i][0]]++);
	}
	barrier(sock);
	for (int i = 0; i < 2; i++)
		EXPECT(0, fi_close(&ep[i]->fid));
	EXPECT(0, fi_close(&srx->fid));
	EXPECT(0, fi_close(&stx->fid));
	close_net(&n);
}

static void sender(int sock)
{
	struct net n;
	struct options o = { 0 };
	uint8_t name[NAME_LEN];
	fi_addr_t to[2];
	open_net(&n, &o);
	for (int i = 0; i < 2; i++) {
		hear(sock, name, NAME_LEN);
		EXPECT(1, fi_av_insert(n.av, name, 1, &to[i], 0, NULL));
	}
	for (int half = 0; half < 2; half++) {
		if (!half)
			barrier(sock);
		for (int i = 0; i < COUNT / 2; i++) {
			char out[100] = { (char)(i % 2), (char)(half * COUNT / 4 + i / 2) };
			POST(&n, fi_inject(n.ep, out, sizeof out, to[i % 2]));
		}
		if (half == 1)
			barrier_progressing(sock, &n);
	}
	barrier(sock);
	close_net(&n);
}

static void side(int rank, int sock)
{
	rank ? sender(sock) : receiver(sock);
}

int main(void)
{
	in_two_processes(side);
	puts("OK");
	return 0;
}
