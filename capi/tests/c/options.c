/* What an endpoint is asked about: options, room, aliases, our extension; and what is refused, with which number. */
#include "client.h"

#include <rdma/fi_collective.h>

#include "../../../include/rustmx/fi_ext_rustmx.h"

/* fi_tx_size_left and fi_rx_size_left are, and are asked for all the same. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Of 2.x. */
#define OPT_CUDA_API_PERMITTED 10
#define OPT_SHARED_MEMORY_PERMITTED 11
#define OPT_MAX_MSG_SIZE 12
#define OPT_INJECT_MSG_SIZE 16
#define OPT_FIREWALL_ADDR 20

static size_t get(struct fid_ep *ep, int name)
{
	size_t value = 77, len = sizeof value;
	EXPECT(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, name, &value, &len));
	CHECK(len == sizeof value);
	return value;
}

static int set(struct fid_ep *ep, int name, const void *value, size_t len)
{
	return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, value, len);
}

static void options(struct net *n)
{
	size_t big = (size_t)1 << 63, small = 1000, len = 2;
	uint8_t yes = 1, no = 0;
	int p2p = FI_HMEM_P2P_ENABLED;
	EXPECT(0, set(n->ep, FI_OPT_MIN_MULTI_RECV, &small, sizeof small));
	CHECK(get(n->ep, FI_OPT_MIN_MULTI_RECV) == 1000);
	CHECK(get(n->ep, FI_OPT_CM_DATA_SIZE) == 0);
	CHECK(get(n->ep, FI_OPT_TX_SIZE) == n->info->tx_attr->size);
	CHECK(get(n->ep, FI_OPT_RX_SIZE) == n->info->rx_attr->size);
	CHECK(get(n->ep, OPT_MAX_MSG_SIZE) == n->info->ep_attr->max_msg_size);
	CHECK(get(n->ep, OPT_INJECT_MSG_SIZE) == n->info->tx_attr->inject_size);
	EXPECT(0, set(n->ep, OPT_MAX_MSG_SIZE, &small, sizeof small));
	CHECK(get(n->ep, OPT_MAX_MSG_SIZE) == 1000);
	EXPECT(-FI_EINVAL, set(n->ep, OPT_INJECT_MSG_SIZE, &big, sizeof big));
	EXPECT(-FI_EINVAL, set(n->ep, FI_OPT_MIN_MULTI_RECV, &small, 3));
	EXPECT(-FI_ETOOSMALL, fi_getopt(&n->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &small, &len));
	CHECK(len == sizeof small);
	/* No device memory, no CUDA, nothing but shared memory. */
	len = sizeof p2p;
	EXPECT(-FI_EOPNOTSUPP, set(n->ep, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
	EXPECT(0, fi_getopt(&n->ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &len));
	CHECK(p2p == FI_HMEM_P2P_DISABLED);
	EXPECT(0, set(n->ep, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
	EXPECT(0, set(n->ep, OPT_CUDA_API_PERMITTED, &no, 1));
	EXPECT(-FI_EINVAL, set(n->ep, OPT_CUDA_API_PERMITTED, &yes, 1));
	EXPECT(0, set(n->ep, OPT_SHARED_MEMORY_PERMITTED, &yes, 1));
	EXPECT(-FI_EOPNOTSUPP, set(n->ep, OPT_SHARED_MEMORY_PERMITTED, &no, 1));
	int refused[] = { FI_OPT_BUFFERED_MIN, FI_OPT_BUFFERED_LIMIT, FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE, FI_OPT_XPU_TRIGGER,
			  OPT_FIREWALL_ADDR, 99, -1 };
	len = sizeof small;
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		EXPECT(-FI_ENOPROTOOPT, fi_getopt(&n->ep->fid, FI_OPT_ENDPOINT, refused[i], &small, &len));
		EXPECT(-FI_ENOPROTOOPT, set(n->ep, refused[i], &small, sizeof small));
	}
	EXPECT(-FI_ENOPROTOOPT, fi_getopt(&n->ep->fid, 5, FI_OPT_MIN_MULTI_RECV, &small, &len));
	EXPECT(-FI_ENOPROTOOPT, fi_setopt(&n->ep->fid, 5, FI_OPT_MIN_MULTI_RECV, &small, len));
}

/* A handle with other default flags. */
static void aliases(struct net *n)
{
	struct fid_ep *alias = NULL, *again = NULL;
	char out[8] = "alias", in[8];
	EXPECT(-FI_EINVAL, fi_ep_alias(n->ep, &alias, FI_COMPLETION));
	EXPECT(-FI_EBADFLAGS, fi_ep_alias(n->ep, &alias, FI_TRANSMIT | FI_PEEK));
	/* Without the flag for entries: the queue is bound with FI_SELECTIVE_COMPLETION. */
	EXPECT(0, fi_ep_alias(n->ep, &alias, FI_TRANSMIT));
	EXPECT(0, fi_ep_alias(alias, &again, FI_TRANSMIT | FI_COMPLETION));
	EXPECT(-FI_EBUSY, fi_close(&n->ep->fid));
	EXPECT(0, fi_trecv(n->ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, in));
	EXPECT(0, fi_tsend(alias, out, sizeof out, NULL, n->self, 1, out));
	next_is(n, in);
	CHECK(!memcmp(in, out, sizeof out));
	EXPECT(0, fi_trecv(alias, in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, in));
	EXPECT(0, fi_tsend(again, out, sizeof out, NULL, n->self, 1, out));
	bool got[2] = { false, false };
	while (!got[0] || !got[1])
		got[next(n).op_context == out] = true;
	EXPECT(0, fi_close(&alias->fid));
	EXPECT(-FI_EBUSY, fi_close(&n->ep->fid));
	EXPECT(0, fi_close(&again->fid));
}

/* A peek of untagged messages, and the hint that more will follow. */
static void peek(struct net *n)
{
	char out[16] = "peeked", in[16] = "";
	struct iovec iov = { out, sizeof out };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = n->self, .context = out };
	struct fi_msg look = { .addr = FI_ADDR_UNSPEC, .context = in };
	EXPECT(0, fi_recvmsg(n->ep, &look, FI_PEEK));
	CHECK(next_error(n).err == FI_ENOMSG);
	EXPECT(0, fi_sendmsg(n->ep, &m, FI_MORE));
	for (;;) {
		struct fi_cq_tagged_entry e;
		EXPECT(0, fi_recvmsg(n->ep, &look, FI_PEEK | FI_CLAIM | FI_COMPLETION));
		ssize_t r = fi_cq_read(n->cq, &e, 1);
		if (r == 1) {
			CHECK(e.op_context == in && e.len == sizeof out);
			break;
		}
		CHECK(r == -FI_EAVAIL && next_error(n).err == FI_ENOMSG);
	}
	iov.iov_base = in;
	m.context = in;
	EXPECT(0, fi_recvmsg(n->ep, &m, FI_CLAIM | FI_COMPLETION | FI_MORE));
	next_is(n, in);
	CHECK(!strcmp(in, "peeked"));
}

static uint64_t counter(struct fi_rustmx_ops_1 *ops, struct fid *fid, const char *name)
{
	struct fi_rustmx_counter all[64];
	size_t count = 64, none = 0;
	EXPECT(-FI_ETOOSMALL, ops->counters(fid, NULL, &none));
	EXPECT(0, ops->counters(fid, all, &count));
	CHECK(count == none);
	for (size_t i = 0; i < count; i++)
		if (!strcmp(all[i].name, name))
			return all[i].value;
	FAIL("no counter %s", name);
}

static void extension(struct net *n)
{
	struct fi_rustmx_ops_1 *ops, *same;
	struct fi_rustmx_plan plan;
	char c = 1, in;
	EXPECT(-FI_ENOSYS, fi_open_ops(&n->ep->fid, "rustmx_ops_0", 0, (void **)&ops, NULL));
	EXPECT(-FI_EBADFLAGS, fi_open_ops(&n->ep->fid, FI_RUSTMX_OPS_1, 1, (void **)&ops, NULL));
	EXPECT(-FI_ENOSYS, fi_open_ops(&n->av->fid, FI_RUSTMX_OPS_1, 0, (void **)&ops, NULL));
	EXPECT(0, fi_open_ops(&n->ep->fid, FI_RUSTMX_OPS_1, 0, (void **)&ops, NULL));
	EXPECT(0, fi_open_ops(&n->domain->fid, FI_RUSTMX_OPS_1, 0, (void **)&same, NULL));
	CHECK(ops == same && ops->size >= sizeof *ops);
	uint64_t before = counter(ops, &n->ep->fid, "inline");
	EXPECT(0, fi_recv(n->ep, &in, 1, NULL, FI_ADDR_UNSPEC, &in));
	EXPECT(0, fi_inject(n->ep, &c, 1, n->self));
	next_is(n, &in);
	CHECK(counter(ops, &n->ep->fid, "inline") == before + 1);
	CHECK(counter(ops, &n->domain->fid, "inline") == before + 1);
	EXPECT(0, ops->plan(n->ep, n->self, FI_RUSTMX_MSG, 100, &plan));
	CHECK(!strcmp(plan.how, "inline") && plan.first == 0 && plan.last >= 100 && strstr(plan.why, "beside the header"));
	/* From where on the kernel copies depends on the processor: nowhere from later on. */
	EXPECT(0, ops->plan(n->ep, n->self, FI_RUSTMX_MSG, 64 << 20, &plan));
	CHECK(!strcmp(plan.how, "syscall") && plan.first <= 64 << 20 && plan.last >= 64 << 20);
	EXPECT(0, ops->plan(n->ep, n->self, FI_RUSTMX_MSG, 40000, &plan));
	CHECK(!strcmp(plan.how, "stream") && plan.first <= 40000 && plan.last < 64 << 20);
	EXPECT(0, ops->plan(n->ep, n->self, FI_RUSTMX_ATOMIC, 8, &plan));
	CHECK(!strcmp(plan.how, "one_sided"));
	EXPECT(0, ops->plan(n->ep, n->self, FI_RUSTMX_WRITE, 8, &plan));
	EXPECT(-FI_EADDRNOTAVAIL, ops->plan(n->ep, 12345, FI_RUSTMX_MSG, 8, &plan));
	EXPECT(-FI_EINVAL, ops->plan(n->ep, n->self, 9, 8, &plan));
	EXPECT(-FI_EINVAL, ops->counters(&n->av->fid, NULL, NULL));
}

/* README.md, "What is refused". */
static void refusals(struct net *n)
{
	struct fid_ep *ep;
	struct fid_pep *pep;
	struct fid_mc *mc;
	struct fid_av *av;
	struct fid_av_set *set;
	struct fid_cntr *cntr;
	struct fi_av_set_attr set_attr = { 0 };
	struct fi_av_attr readonly = { .flags = FI_READ };
	struct fi_cntr_attr bytes = { .events = FI_CNTR_EVENTS_COMP + 1 };
	uint8_t name[NAME_LEN];
	size_t len = sizeof name;
	EXPECT(-FI_ENOSYS, fi_scalable_ep(n->domain, n->info, &ep, NULL));
	EXPECT(-FI_ENOSYS, fi_passive_ep(n->fabric, n->info, &pep, NULL));
	EXPECT(-FI_ENOSYS, fi_tx_context(n->ep, 0, NULL, &ep, NULL));
	EXPECT(-FI_ENOSYS, fi_rx_context(n->ep, 0, NULL, &ep, NULL));
	EXPECT(-FI_ENOSYS, fi_join(n->ep, name, 0, &mc, NULL));
	EXPECT(-FI_ENOSYS, fi_connect(n->ep, name, NULL, 0));
	EXPECT(-FI_ENOSYS, fi_getpeer(n->ep, name, &len));
	EXPECT(-FI_ENOSYS, fi_av_set(n->av, &set_attr, &set, NULL));
	EXPECT(-FI_EINVAL, fi_av_open(n->domain, &readonly, &av, NULL));
	EXPECT(-FI_ENOSYS, fi_cntr_open(n->domain, &bytes, &cntr, NULL));
	CHECK(!n->ep->collective);
	enum fi_ep_type types[] = { FI_EP_MSG, FI_EP_DGRAM };
	uint64_t caps[] = { FI_COLLECTIVE, FI_MULTICAST, FI_HMEM, FI_NAMED_RX_CTX, FI_VARIABLE_MSG };
	for (size_t i = 0; i < 2 + sizeof caps / sizeof *caps; i++) {
		struct fi_info *hints = fi_allocinfo(), *info;
		hints->fabric_attr->prov_name = strdup("rustmx");
		if (i < 2)
			hints->ep_attr->type = types[i];
		else
			hints->caps = FI_MSG | caps[i - 2];
		EXPECT(-FI_ENODATA, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		fi_freeinfo(hints);
	}
}

int main(void)
{
	struct net n;
	struct options o = { .bind = FI_SELECTIVE_COMPLETION,
			     .rx_flags = FI_COMPLETION,
			     .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC };
	struct fid_ep *closed;
	my_rank = 0;
	open_net(&n, &o);
	EXPECT(0, fi_endpoint(n.domain, n.info, &closed, NULL));
	EXPECT(-FI_EOPBADSTATE, fi_tx_size_left(closed));
	EXPECT(-FI_EOPBADSTATE, fi_rx_size_left(closed));
	EXPECT(0, fi_close(&closed->fid));
	CHECK(fi_tx_size_left(n.ep) > 0);
	CHECK(fi_rx_size_left(n.ep) == (ssize_t)n.info->rx_attr->size);
	options(&n);
	aliases(&n);
	peek(&n);
	extension(&n);
	refusals(&n);
	close_net(&n);
	puts("OK");
	return 0;
}
