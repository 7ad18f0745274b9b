/* Objects without traffic between processes: fi_getinfo, address vectors, event queues, counters, blocking reads, refusals,
 * close orders. */
#include "client.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

static struct net n;
static const struct options plain = { .caps = FI_MSG | FI_TAGGED };

static int ask(uint32_t version, const char *node, const char *service, uint64_t flags, struct fi_info *hints)
{
	struct fi_info *info = NULL;
	hints->fabric_attr->prov_name = strdup("rustmx");
	int ret = fi_getinfo(version, node, service, flags, hints, &info);
	fi_freeinfo(hints);
	fi_freeinfo(info);
	return ret;
}

#define REFUSED(what)                                                            \
	do {                                                                     \
		struct fi_info *h = fi_allocinfo();                              \
		what;                                                            \
		if (ask(FI_VERSION(1, 17), NULL, NULL, 0, h) != -FI_ENODATA)     \
			FAIL("should be refused: %s", #what);                    \
	} while (0)

#define OFFERED(what)                                                   \
	do {                                                            \
		struct fi_info *h = fi_allocinfo();                     \
		what;                                                   \
		int ret_ = ask(FI_VERSION(1, 17), NULL, NULL, 0, h);    \
		if (ret_)                                               \
			FAIL("should be offered: %s: %d", #what, ret_); \
	} while (0)

static void getinfo(void)
{
	REFUSED(h->ep_attr->type = FI_EP_MSG);
	REFUSED(h->ep_attr->type = FI_EP_DGRAM);
	REFUSED(h->caps = FI_HMEM | FI_MSG);
	REFUSED(h->caps = FI_COLLECTIVE);
	REFUSED(h->addr_format = FI_SOCKADDR_IN);
	REFUSED(h->domain_attr->name = strdup("invalid_domain"));
	REFUSED(h->fabric_attr->name = strdup("other"));
	REFUSED(h->domain_attr->cq_data_size = 9);
	REFUSED(h->domain_attr->mr_iov_limit = 2);
	REFUSED(h->domain_attr->mr_cnt = (1 << 16) + 1);
	REFUSED(h->domain_attr->tx_ctx_cnt = (1 << 16) + 1);
	REFUSED(h->domain_attr->rx_ctx_cnt = (1 << 16) + 1);
	REFUSED(h->domain_attr->data_progress = 3);
	REFUSED(h->domain_attr->mr_mode = FI_MR_BASIC | FI_MR_LOCAL);
	REFUSED(h->tx_attr->rma_iov_limit = 17);
	REFUSED(h->tx_attr->msg_order = FI_ORDER_RAS);
	REFUSED(h->ep_attr->tx_ctx_cnt = 2);
	REFUSED(h->ep_attr->max_msg_size = SIZE_MAX);
	REFUSED(h->tx_attr->inject_size = 1 << 20);
	REFUSED(h->tx_attr->iov_limit = 17);
	REFUSED(h->tx_attr->comp_order = FI_ORDER_STRICT);
	REFUSED(h->tx_attr->op_flags = FI_COMMIT_COMPLETE);
	REFUSED(h->rx_attr->total_buffered_recv = 1);
	OFFERED(h->mode = ~0ull; h->domain_attr->mode = ~0ull; h->domain_attr->mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE));
	OFFERED(h->domain_attr->mr_mode = FI_MR_BASIC);
	OFFERED(h->domain_attr->mr_iov_limit = 1; h->domain_attr->mr_cnt = 1 << 16);
	OFFERED(h->domain_attr->tx_ctx_cnt = h->domain_attr->rx_ctx_cnt = 1 << 16);
	OFFERED(h->caps = FI_RMA | FI_ATOMIC | FI_RMA_EVENT | FI_FENCE);
	OFFERED(h->ep_attr->mem_tag_format = 0x00c000007fffffff);
	OFFERED(h->tx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_WAW);
	OFFERED(h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_DATA);
	OFFERED(h->tx_attr->tclass = FI_TC_LOW_LATENCY);
	/* What rxm and its like ask when they look for a provider below. */
	EXPECT(-FI_ENODATA, ask(FI_VERSION(1, 17), NULL, NULL, 1ull << 59, fi_allocinfo()));

	/* Values that a client compares with its hints. */
	struct fi_info *h = fi_allocinfo(), *i;
	h->caps = FI_TAGGED;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->av_type = FI_AV_MAP;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
	h->tx_attr->msg_order = FI_ORDER_SAS;
	h->tx_attr->size = 77;
	EXPECT(0, fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, h, &i));
	CHECK(i->caps == (FI_TAGGED | FI_SEND | FI_RECV | FI_MULTI_RECV | FI_RMA_EVENT | FI_FENCE | FI_LOCAL_COMM |
			 FI_REMOTE_COMM | FI_SHARED_AV));
	CHECK(i->domain_attr->threading == FI_THREAD_DOMAIN && i->domain_attr->av_type == FI_AV_MAP);
	CHECK(i->tx_attr->op_flags == (FI_COMPLETION | FI_DELIVERY_COMPLETE) && i->tx_attr->msg_order == FI_ORDER_SAS);
	CHECK(i->tx_attr->size == 77 && i->domain_attr->mr_mode == 0 && i->mode == 0);
	struct fi_info *copy = fi_dupinfo(i), *again;
	EXPECT(0, fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, copy, &again));
	CHECK(again->caps == i->caps && again->src_addrlen == NAME_LEN);
	fi_freeinfo(again);
	fi_freeinfo(copy);
	fi_freeinfo(i);
	fi_freeinfo(h);
	/* Old clients are told the old registration mode. */
	EXPECT(0, fi_getinfo(FI_VERSION(1, 0), NULL, NULL, 0, NULL, &i));
	CHECK(i->domain_attr->mr_mode == FI_MR_SCALABLE && !(i->caps & FI_SOURCE) && i->caps & FI_DIRECTED_RECV);
	fi_freeinfo(i);
}

static void addresses(void)
{
	struct fi_info *h = fi_allocinfo(), *i;
	h->fabric_attr->prov_name = strdup("rustmx");
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "9228", 0, h, &i));
	CHECK(i->dest_addr && i->dest_addrlen == NAME_LEN && i->src_addr && i->src_addrlen == NAME_LEN);
	fi_freeinfo(i);
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), "::1", "9228", FI_NUMERICHOST, h, &i));
	CHECK(i->dest_addr);
	fi_freeinfo(i);
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), NULL, "9228", FI_SOURCE, h, &i));
	CHECK(i->src_addr && !i->dest_addr);
	fi_freeinfo(i);
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), "localhost", NULL, FI_SOURCE, h, &i));
	fi_freeinfo(i);
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, 0, h, &i));
	CHECK(i->src_addr && !i->dest_addr);
	fi_freeinfo(i);
	/* Nothing is named: we say -FI_EINVAL, of which libfabric makes "no provider has it". */
	EXPECT(-FI_ENODATA, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, FI_SOURCE, h, &i));
	EXPECT(-FI_ENODATA, fi_getinfo(FI_VERSION(1, 17), "localhost", "9228", FI_NUMERICHOST, h, &i));
	EXPECT(-FI_ENODATA, fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "no such service", 0, h, &i));
	fi_freeinfo(h);
}

/* A source may be named by its text, too, and then whatever the hints say of one counts for nothing. */
static void sources(void)
{
	struct fi_info *h = fi_allocinfo(), *i, *same, *none;
	char text[256];
	size_t room = sizeof text;
	struct fid_av *av;
	struct fi_av_attr a = { .type = FI_AV_MAP };
	h->fabric_attr->prov_name = strdup("rustmx");
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "9229", FI_SOURCE, h, &i));
	EXPECT(0, fi_av_open(n.domain, &a, &av, NULL));
	fi_av_straddr(av, i->src_addr, text, &room);
	EXPECT(0, fi_close(&av->fid));
	h->src_addr = malloc(NAME_LEN);
	h->src_addrlen = NAME_LEN;
	memcpy(h->src_addr, i->src_addr, NAME_LEN);
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), text, NULL, FI_SOURCE, h, &same));
	CHECK(!same->dest_addr && !memcmp(same->src_addr, i->src_addr, NAME_LEN));
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, h, &none));
	CHECK(!none->dest_addr && memcmp(none->src_addr, i->src_addr, NAME_LEN));
	fi_freeinfo(none);
	fi_freeinfo(same);
	fi_freeinfo(i);
	fi_freeinfo(h);
}

static void vectors(void)
{
	for (enum fi_av_type type = FI_AV_UNSPEC; type <= FI_AV_TABLE; type++) {
		struct fi_av_attr a = { .type = type, .count = 10 };
		struct fid_av *av;
		uint8_t names[4][NAME_LEN], back[NAME_LEN + 8];
		fi_addr_t at[4];
		int errors[4] = { 9, 9, 9, 9 };
		size_t len;
		EXPECT(0, fi_av_open(n.domain, &a, &av, NULL));
		CHECK(a.type == (type ? type : FI_AV_TABLE));
		for (int k = 0; k < 4; k++)
			memcpy(names[k], n.name, NAME_LEN);
		memset(names[2], 0x5a, NAME_LEN);
		EXPECT(3, fi_av_insert(av, names, 4, at, 0, NULL));
		CHECK(at[0] == 0 && at[1] == 1 && at[2] == FI_ADDR_NOTAVAIL && at[3] == 2);
		EXPECT(3, fi_av_insert(av, names, 4, NULL, FI_SYNC_ERR | FI_MORE, errors));
		CHECK(!errors[0] && !errors[1] && errors[2] > 0 && !errors[3]);
		EXPECT(0, fi_av_insert(av, names[2], 1, at, 0, NULL));
		/* A name of another version, of its format or of the protocol, is said to be one, once. */
		const char *other = getenv("OBJECTS_OTHER_VERSION");
		if (other && !strcmp(other, "protocol")) {
			memcpy(names[2], n.name, NAME_LEN);
			names[2][5]++;
		} else {
			memcpy(names[2], other ? "rmx\1" : "rxm\1", 4);
		}
		EXPECT(0, fi_av_insert(av, names[2], 1, at, 0, NULL));
		EXPECT(-FI_EBADFLAGS, fi_av_insert(av, names, 1, at, FI_AV_USER_ID, NULL));
		len = sizeof back;
		EXPECT(0, fi_av_lookup(av, 2, back, &len));
		CHECK(len == NAME_LEN && !memcmp(back, n.name, NAME_LEN));
		len = 5;
		memset(back, 0, sizeof back);
		EXPECT(0, fi_av_lookup(av, 2, back, &len));
		CHECK(len == NAME_LEN && !memcmp(back, n.name, 5) && !back[5]);
		EXPECT(-FI_EINVAL, fi_av_lookup(av, 6, back, &len));
		EXPECT(-FI_EINVAL, fi_av_lookup(av, FI_ADDR_NOTAVAIL, back, &len));
		at[0] = 1;
		EXPECT(0, fi_av_remove(av, at, 1, 0));
		EXPECT(-FI_EINVAL, fi_av_remove(av, at, 1, 0));
		EXPECT(-FI_EINVAL, fi_av_lookup(av, 1, back, &len));
		EXPECT(1, fi_av_insert(av, names, 1, at, 0, NULL));
		CHECK(at[0] == 1);
		char text[200], small[10];
		len = sizeof text;
		CHECK(fi_av_straddr(av, n.name, text, &len) == text);
		CHECK(!strncmp(text, "rustmx://", 9) && len == strlen(text) + 1);
		len = sizeof small;
		fi_av_straddr(av, n.name, small, &len);
		CHECK(strlen(small) == 9 && len == strlen(text) + 1);
		EXPECT(1, fi_av_insertsvc(av, text, NULL, at, 0, NULL));
		len = sizeof back;
		EXPECT(0, fi_av_lookup(av, at[0], back, &len));
		CHECK(!memcmp(back, n.name, NAME_LEN));
		EXPECT(1, fi_av_insertsvc(av, "127.0.0.1", "9228", at, 0, NULL));
		EXPECT(0, fi_av_insertsvc(av, "127.0.0.1", "x", at, 0, NULL));
		CHECK(at[0] == FI_ADDR_NOTAVAIL);
		EXPECT(4, fi_av_insertsym(av, "10.0.0.1", 2, "9228", 2, at, 0, NULL));
		EXPECT(0, fi_close(&av->fid));
	}
}

static struct fid_eq *open_eq(size_t size, uint64_t flags, enum fi_wait_obj wait)
{
	struct fi_eq_attr a = { .size = size, .flags = flags, .wait_obj = wait };
	struct fid_eq *eq;
	EXPECT(0, fi_eq_open(n.fabric, &a, &eq, NULL));
	return eq;
}

static void event_queues(void)
{
	struct fi_eq_entry e;
	struct fi_eq_err_entry err;
	uint32_t event;
	struct fid_eq *eq = open_eq(4, FI_WRITE, FI_WAIT_UNSPEC), *mute = open_eq(0, 0, FI_WAIT_NONE);
	struct fi_eq_attr cond = { .wait_obj = FI_WAIT_MUTEX_COND };
	struct fid_eq *none;
	EXPECT(-FI_ENOSYS, fi_eq_open(n.fabric, &cond, &none, NULL));
	EXPECT(-FI_EAGAIN, fi_eq_read(eq, &event, &e, sizeof e, 0));
	EXPECT(-FI_EAGAIN, fi_eq_readerr(eq, &err, 0));
	for (int i = 0; i < 4; i++) {
		e = (struct fi_eq_entry){ &eq->fid, (void *)(intptr_t)i, i };
		EXPECT(sizeof e, fi_eq_write(eq, FI_NOTIFY, &e, sizeof e, 0));
	}
	EXPECT(-FI_EOVERRUN, fi_eq_write(eq, FI_NOTIFY, &e, sizeof e, 0));
	for (int i = 0; i < 4; i++) {
		EXPECT(sizeof e, fi_eq_read(eq, &event, &e, sizeof e, FI_PEEK));
		EXPECT(sizeof e, fi_eq_sread(eq, &event, &e, sizeof e, 1000, 0));
		CHECK(event == FI_NOTIFY && e.fid == &eq->fid && e.context == (void *)(intptr_t)i);
	}
	double start = now();
	EXPECT(-FI_EAGAIN, fi_eq_sread(eq, &event, &e, sizeof e, 100, 0));
	CHECK(now() - start > 0.09 && now() - start < 5);
	EXPECT(-FI_EINVAL, fi_eq_write(mute, FI_NOTIFY, &e, sizeof e, 0));
	EXPECT(-FI_ENOSYS, fi_eq_sread(mute, &event, &e, sizeof e, 0, 0));

	/* Asynchronous insertion. */
	struct fi_av_attr a = { .type = FI_AV_MAP, .flags = FI_EVENT };
	struct fid_av *av;
	uint8_t names[3][NAME_LEN];
	fi_addr_t at[3];
	memcpy(names[0], n.name, NAME_LEN);
	memset(names[1], 1, NAME_LEN);
	memcpy(names[2], n.name, NAME_LEN);
	EXPECT(0, fi_av_open(n.domain, &a, &av, NULL));
	EXPECT(-FI_ENOEQ, fi_av_insert(av, names, 3, at, 0, names));
	EXPECT(0, fi_av_bind(av, &eq->fid, 0));
	EXPECT(0, fi_av_insert(av, names, 3, at, 0, names));
	EXPECT(-FI_EAVAIL, fi_eq_read(eq, &event, &e, sizeof e, 0));
	EXPECT(sizeof err, fi_eq_readerr(eq, &err, 0));
	CHECK(err.fid == &av->fid && err.context == names && err.data == 1 && err.err == FI_EINVAL);
	CHECK(fi_eq_strerror(eq, err.prov_errno, NULL, NULL, 0)[0]);
	EXPECT(sizeof e, fi_eq_read(eq, &event, &e, sizeof e, 0));
	CHECK(event == FI_AV_COMPLETE && e.fid == &av->fid && e.context == names && e.data == 2);
	CHECK(at[0] == 0 && at[1] == FI_ADDR_NOTAVAIL && at[2] == 1);
	EXPECT(-FI_EBUSY, fi_close(&eq->fid));
	EXPECT(0, fi_close(&av->fid));
	EXPECT(0, fi_close(&eq->fid));

	/* A domain keeps the queue that is bound to it. */
	struct fid_domain *d;
	EXPECT(0, fi_domain(n.fabric, n.info, &d, NULL));
	EXPECT(0, fi_domain_bind(d, &mute->fid, 0));
	EXPECT(-FI_EBUSY, fi_close(&mute->fid));
	EXPECT(0, fi_close(&d->fid));
	EXPECT(0, fi_close(&mute->fid));
}

static void counters(void)
{
	struct fi_cntr_attr a = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
	struct fid_cntr *c;
	a.wait_obj = FI_WAIT_MUTEX_COND;
	EXPECT(-FI_ENOSYS, fi_cntr_open(n.domain, &a, &c, NULL));
	a.wait_obj = FI_WAIT_UNSPEC;
	EXPECT(0, fi_cntr_open(n.domain, &a, &c, NULL));
	EXPECT(0, fi_cntr_set(c, 5));
	EXPECT(0, fi_cntr_add(c, 3));
	EXPECT(8, fi_cntr_read(c));
	EXPECT(0, fi_cntr_wait(c, 8, -1));
	double start = now();
	EXPECT(-FI_ETIMEDOUT, fi_cntr_wait(c, 9, 50));
	CHECK(now() - start > 0.045 && now() - start < 5);
	EXPECT(-FI_ETIMEDOUT, fi_cntr_wait(c, 9, 0));
	EXPECT(0, fi_cntr_seterr(c, 2));
	EXPECT(-FI_ETIMEDOUT, fi_cntr_wait(c, 9, 0));
	EXPECT(0, fi_cntr_adderr(c, 1));
	EXPECT(-FI_EAVAIL, fi_cntr_wait(c, 9, 1000));
	EXPECT(3, fi_cntr_readerr(c));
	EXPECT(0, fi_close(&c->fid));
}

static void blocking_reads(void)
{
	struct fi_cq_attr a = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fid_cq *cq;
	struct fi_cq_tagged_entry e[4];
	double start;
	EXPECT(0, fi_cq_open(n.domain, &a, &cq, NULL));
	start = now();
	EXPECT(-FI_EAGAIN, fi_cq_sread(cq, e, 4, NULL, 50));
	CHECK(now() - start > 0.045 && now() - start < 5);
	EXPECT(0, fi_cq_signal(cq));
	EXPECT(-FI_ECANCELED, fi_cq_sread(cq, e, 4, NULL, -1));
	EXPECT(-FI_EAGAIN, fi_cq_sread(cq, e, 4, NULL, 0));
	EXPECT(-FI_EAGAIN, fi_cq_read(cq, NULL, 0));
	EXPECT(0, fi_close(&cq->fid));
	EXPECT(-FI_ENOSYS, fi_cq_sread(n.cq, e, 4, NULL, 0));
	EXPECT(-FI_ENOSYS, fi_cq_signal(n.cq));
	a.wait_obj = FI_WAIT_MUTEX_COND;
	EXPECT(-FI_ENOSYS, fi_cq_open(n.domain, &a, &cq, NULL));
	a.wait_obj = FI_WAIT_NONE;
	a.format = 99;
	EXPECT(-FI_EINVAL, fi_cq_open(n.domain, &a, &cq, NULL));

	/* A threshold: both completions of a message to ourselves come with one call. */
	struct fid_ep *ep;
	struct fi_context2 s, r;
	char buf[8];
	a = (struct fi_cq_attr){ .wait_obj = FI_WAIT_UNSPEC, .format = FI_CQ_FORMAT_TAGGED, .wait_cond = FI_CQ_COND_THRESHOLD };
	EXPECT(0, fi_cq_open(n.domain, &a, &cq, NULL));
	EXPECT(0, fi_endpoint(n.domain, n.info, &ep, NULL));
	EXPECT(0, fi_ep_bind(ep, &n.av->fid, 0));
	EXPECT(0, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(0, fi_enable(ep));
	uint8_t name[NAME_LEN];
	size_t len = sizeof name;
	fi_addr_t me;
	EXPECT(0, fi_getname(&ep->fid, name, &len));
	EXPECT(1, fi_av_insert(n.av, name, 1, &me, 0, NULL));
	EXPECT(0, fi_trecv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &r));
	EXPECT(0, fi_tsend(ep, "message", 8, NULL, me, 1, &s));
	EXPECT(2, fi_cq_sread(cq, e, 4, (void *)2, 10000));
	EXPECT(0, fi_close(&ep->fid));
	EXPECT(0, fi_av_remove(n.av, &me, 1, 0));
	EXPECT(0, fi_close(&cq->fid));
}

/* What is not offered answers so, through the real tables. */
static void refusals(void)
{
	struct fid_ep *other;
	struct fid_wait *w;
	struct fid_pep *p;
	struct fid_poll *poll;
	struct fi_wait_attr wa = { 0 };
	struct fi_poll_attr pa = { 0 };
	struct fid *alias, *fids[1] = { &n.cq->fid };
	char buf[8];
	size_t count;
	void *ops;
	EXPECT(-FI_ENOSYS, fi_scalable_ep(n.domain, n.info, &other, NULL));
	wa.wait_obj = FI_WAIT_MUTEX_COND;
	EXPECT(-FI_ENOSYS, fi_wait_open(n.fabric, &wa, &w));
	wa = (struct fi_wait_attr){ .wait_obj = FI_WAIT_FD, .flags = 1 };
	EXPECT(-FI_EINVAL, fi_wait_open(n.fabric, &wa, &w));
	pa.flags = 1;
	EXPECT(-FI_EINVAL, fi_poll_open(n.domain, &pa, &poll));
	/* This queue has no wait object. */
	EXPECT(-FI_EINVAL, fi_trywait(n.fabric, fids, 1));
	EXPECT(-FI_ENOSYS, fi_passive_ep(n.fabric, n.info, &p, NULL));
	EXPECT(-FI_EINVAL, fi_alias(&n.ep->fid, &alias, 0));
	EXPECT(-FI_ENOSYS, fi_alias(&n.domain->fid, &alias, 0));
	EXPECT(-FI_ENOSYS, fi_open_ops(&n.domain->fid, "anything", 0, &ops, NULL));
	EXPECT(-FI_ENOSYS, fi_set_ops(&n.domain->fid, "anything", 0, buf, NULL));
	EXPECT(-FI_ENOSYS, fi_setname(&n.ep->fid, buf, 8));
	EXPECT(-FI_ENOSYS, fi_connect(n.ep, buf, NULL, 0));
	EXPECT(-FI_EOPNOTSUPP, fi_compare_atomicvalid(n.ep, FI_UINT64, 99, &count));
	/* Wrong kinds of handle. */
	EXPECT(-FI_EINVAL, fi_ep_bind(n.ep, &n.domain->fid, 0));
	EXPECT(-FI_EBADFLAGS, fi_ep_bind(n.ep, &n.cq->fid, FI_READ));
	EXPECT(-FI_EINVAL, n.ep->fid.ops->close(&n.cq->fid));
}

/* Everything that is still used refuses to go; then each order a client may choose. */
static void closing(void)
{
	EXPECT(-FI_EBUSY, fi_close(&n.fabric->fid));
	EXPECT(-FI_EBUSY, fi_close(&n.domain->fid));
	EXPECT(-FI_EBUSY, fi_close(&n.av->fid));
	EXPECT(-FI_EBUSY, fi_close(&n.cq->fid));
	close_net(&n);
	static const char *orders[] = { "acv", "avc", "cav", "cva", "vac", "vca" };
	for (int o = 0; o < 6; o++) {
		struct fi_cntr_attr a = { 0 };
		struct fid_cntr *cntr;
		struct fid_eq *eq;
		open_net(&n, &plain);
		eq = open_eq(0, 0, FI_WAIT_UNSPEC);
		EXPECT(0, fi_cntr_open(n.domain, &a, &cntr, NULL));
		struct fid_ep *ep; /* opened, never enabled */
		EXPECT(0, fi_endpoint(n.domain, n.info, &ep, NULL));
		EXPECT(-FI_EOPBADSTATE, fi_getname(&ep->fid, n.name, &(size_t){ NAME_LEN }));
		EXPECT(0, fi_ep_bind(ep, &cntr->fid, FI_SEND | FI_RECV));
		EXPECT(0, fi_ep_bind(ep, &eq->fid, 0));
		EXPECT(-FI_EBUSY, fi_close(&cntr->fid));
		EXPECT(-FI_EBUSY, fi_close(&eq->fid));
		EXPECT(0, fi_close(&ep->fid));
		EXPECT(0, fi_close(&n.ep->fid));
		for (const char *k = orders[o]; *k; k++)
			EXPECT(0, fi_close(*k == 'a' ? &n.av->fid : *k == 'c' ? &n.cq->fid : &cntr->fid));
		EXPECT(0, fi_close(&n.domain->fid));
		EXPECT(0, fi_close(&eq->fid));
		EXPECT(0, fi_close(&n.fabric->fid));
		fi_freeinfo(n.info);
	}
}

/* The name in two steps, and into a buffer that is too short. */
static void names(void)
{
	uint8_t buf[64];
	size_t len = 0;
	EXPECT(-FI_ETOOSMALL, fi_getname(&n.ep->fid, NULL, &len));
	CHECK(len == NAME_LEN);
	memset(buf, 7, sizeof buf);
	len = 10;
	EXPECT(-FI_ETOOSMALL, fi_getname(&n.ep->fid, buf, &len));
	CHECK(len == NAME_LEN && !memcmp(buf, n.name, 10) && buf[10] == 7);
	len = sizeof buf;
	EXPECT(0, fi_getname(&n.ep->fid, buf, &len));
	CHECK(len == NAME_LEN && !memcmp(buf, n.name, NAME_LEN));
}

int main(void)
{
	getinfo();
	addresses();
	open_net(&n, &plain);
	sources();
	vectors();
	event_queues();
	counters();
	blocking_reads();
	refusals();
	names();
	closing();
	printf("OK\n");
	return 0;
}
