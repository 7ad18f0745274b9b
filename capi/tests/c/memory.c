/* Memory of the other process: registration, reads and writes of every kind, counters, atomics. */
#include "client.h"
#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

enum { LENGTH = 100000 };

static const uint64_t KEY = 0x80000000000001f0ull; /* as MPICH makes them */

static struct fid_mr *reg(struct net *n, void *buf, size_t len, uint64_t access, uint64_t key)
{
	struct fid_mr *mr;
	EXPECT(0, fi_mr_reg(n->domain, buf, len, access, 0, key, 0, &mr, NULL));
	CHECK(fi_mr_key(mr) == key);
	return mr;
}

static void registration(struct net *n)
{
	static uint8_t buf[64];
	struct fid_mr *mr, *other;
	struct iovec v[2] = { { buf, 8 }, { buf + 8, 8 } };
	struct fi_mr_attr a = { .mr_iov = v, .iov_count = 1, .access = FI_REMOTE_READ, .requested_key = 6 };
	mr = reg(n, buf, sizeof buf, FI_REMOTE_READ, 5);
	EXPECT(-FI_ENOKEY, fi_mr_reg(n->domain, buf, 8, FI_REMOTE_READ, 0, 5, 0, &other, NULL));
	EXPECT(-FI_EBADFLAGS, fi_mr_reg(n->domain, buf, 8, FI_REMOTE_READ, 0, 6, FI_TRIGGER, &other, NULL));
	EXPECT(-FI_EINVAL, fi_mr_reg(n->domain, buf, 8, FI_COLLECTIVE, 0, 6, 0, &other, NULL));
	EXPECT(-FI_EINVAL, fi_mr_regv(n->domain, v, 2, FI_REMOTE_READ, 0, 6, 0, &other, NULL));
	EXPECT(0, fi_mr_regattr(n->domain, &a, 0, &other));
	EXPECT(-FI_EBUSY, fi_close(&n->domain->fid));
	EXPECT(0, fi_mr_bind(mr, &n->ep->fid, 0));
	EXPECT(0, fi_mr_enable(mr));
	EXPECT(0, fi_close(&mr->fid));
	EXPECT(0, fi_close(&other->fid));
	mr = reg(n, buf, 1, FI_REMOTE_WRITE, 5);
	EXPECT(0, fi_close(&mr->fid));
}

static void failed(struct net *n, int err, void *context)
{
	struct fi_cq_err_entry e = next_error(n);
	if (e.err != err || e.op_context != context)
		FAIL("error %d (%s), expected %d", e.err, fi_strerror(e.err), err);
}

static void reads_and_writes(struct net *n, struct fid_cntr *counter)
{
	struct fi_context2 c;
	struct fi_cq_tagged_entry e;
	static uint8_t out[LENGTH], in[LENGTH];
	uint64_t counted = 0;
	for (int i = 0; i < 40; i++) {
		size_t size = 1 + (size_t)i * i * 60, half = size / 3;
		struct iovec w[2] = { { out, half }, { out + half, size - half } };
		struct iovec r[2] = { { in, size - half }, { in + size - half, half } };
		struct fi_rma_iov to[2] = { { 10, size - half, KEY }, { 10 + size - half, half, KEY } };
		struct fi_msg_rma m = { .msg_iov = w, .iov_count = 2, .addr = n->peer, .rma_iov = to, .rma_iov_count = 2, .context = &c };
		fill(out, size, i);
		memset(in, 0, sizeof in);
		switch (i % 4) {
		case 0: POST(n, fi_write(n->ep, out, size, NULL, n->peer, 10, KEY, &c)); break;
		case 1: POST(n, fi_writev(n->ep, w, NULL, 2, n->peer, 10, KEY, &c)); break;
		case 2: POST(n, fi_writemsg(n->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE)); break;
		case 3: POST(n, fi_writemsg(n->ep, &m, FI_COMPLETION | FI_FENCE)); break;
		}
		e = next_is(n, &c);
		CHECK(e.flags == (FI_RMA | FI_WRITE));
		m.msg_iov = r;
		switch (i % 3) {
		case 0: POST(n, fi_read(n->ep, in, size, NULL, n->peer, 10, KEY, &c)); break;
		case 1: POST(n, fi_readv(n->ep, r, NULL, 2, n->peer, 10, KEY, &c)); break;
		case 2: POST(n, fi_readmsg(n->ep, &m, FI_COMPLETION)); break;
		}
		e = next_is(n, &c);
		CHECK(e.flags == (FI_RMA | FI_READ));
		CHECK(!memcmp(in, out, size));
		counted += 2;
	}
	fill(out, 100, 77);
	POST(n, fi_inject_write(n->ep, out, 100, n->peer, 0, KEY));
	memset(out, 0, 100);
	EXPECT(0, fi_cntr_wait(counter, counted + 1, 10000));
	POST(n, fi_read(n->ep, in, 100, NULL, n->peer, 0, KEY, &c));
	next_is(n, &c);
	fill(out, 100, 77);
	CHECK(!memcmp(in, out, 100));
	EXPECT(counted + 2, fi_cntr_read(counter));

	/* On the target's terms. */
	POST(n, fi_read(n->ep, in, 10, NULL, n->peer, LENGTH - 9, KEY, &c));
	failed(n, FI_EACCES, &c);
	POST(n, fi_write(n->ep, in, 10, NULL, n->peer, 0, KEY + 1, &c)); /* may be read only */
	failed(n, FI_EACCES, &c);
	POST(n, fi_read(n->ep, in, 10, NULL, n->peer, 0, KEY + 2, &c));
	failed(n, FI_EKEYREJECTED, &c);
	EXPECT(3, fi_cntr_readerr(counter));
	EXPECT(-FI_EMSGSIZE, fi_inject_write(n->ep, in, n->info->tx_attr->inject_size + 1, n->peer, 0, KEY));
}

static void atomics(struct net *n)
{
	struct fi_context2 c;
	struct fi_cq_tagged_entry e;
	uint64_t ten = 10, three = 3, old = 0;
	size_t count = 0;
	struct fi_atomic_attr attr;
	EXPECT(0, fi_atomicvalid(n->ep, FI_UINT64, FI_SUM, &count));
	CHECK(count >= 8);
	EXPECT(0, fi_fetch_atomicvalid(n->ep, FI_DOUBLE_COMPLEX, FI_PROD, &count));
	EXPECT(0, fi_compare_atomicvalid(n->ep, FI_INT128, FI_MSWAP, &count));
	EXPECT(-FI_EOPNOTSUPP, fi_atomicvalid(n->ep, FI_FLOAT, FI_BOR, &count));
	EXPECT(-FI_EOPNOTSUPP, fi_atomicvalid(n->ep, FI_LONG_DOUBLE, FI_SUM, &count));
	EXPECT(-FI_EOPNOTSUPP, fi_atomicvalid(n->ep, (enum fi_datatype)99, FI_SUM, &count));
	EXPECT(-FI_EOPNOTSUPP, fi_compare_atomicvalid(n->ep, FI_UINT64, (enum fi_op)77, &count));
	EXPECT(0, fi_query_atomic(n->domain, FI_UINT32, FI_CSWAP, &attr, FI_COMPARE_ATOMIC));
	CHECK(attr.size == 4 && attr.count >= 8);
	EXPECT(-FI_EOPNOTSUPP, fi_query_atomic(n->domain, FI_UINT32, FI_CSWAP, &attr, 0));

	POST(n, fi_atomic(n->ep, &ten, 1, NULL, n->peer, 8, KEY, FI_UINT64, FI_ATOMIC_WRITE, &c));
	e = next_is(n, &c);
	CHECK(e.flags == (FI_ATOMIC | FI_WRITE));
	POST(n, fi_inject_atomic(n->ep, &three, 1, n->peer, 8, KEY, FI_UINT64, FI_SUM));
	POST(n, fi_fetch_atomic(n->ep, &three, 1, NULL, &old, NULL, n->peer, 8, KEY, FI_UINT64, FI_PROD, &c));
	e = next_is(n, &c);
	CHECK(e.flags == (FI_ATOMIC | FI_READ) && old == 13);
	uint64_t is = 39, be = 1;
	POST(n, fi_compare_atomic(n->ep, &be, 1, NULL, &is, NULL, &old, NULL, n->peer, 8, KEY, FI_UINT64, FI_CSWAP, &c));
	next_is(n, &c);
	CHECK(old == 39);
	POST(n, fi_fetch_atomic(n->ep, NULL, 1, NULL, &old, NULL, n->peer, 8, KEY, FI_UINT64, FI_ATOMIC_READ, &c));
	next_is(n, &c);
	CHECK(old == 1);
	POST(n, fi_atomic(n->ep, &ten, 1, NULL, n->peer, 0, KEY + 1, FI_UINT64, FI_SUM, &c));
	failed(n, FI_EACCES, &c);
	EXPECT(-FI_EOPNOTSUPP, fi_atomic(n->ep, &ten, 1, NULL, n->peer, 8, KEY, FI_DOUBLE, FI_BXOR, &c));
	EXPECT(-FI_EMSGSIZE, fi_atomic(n->ep, &ten, 1 << 20, NULL, n->peer, 8, KEY, FI_UINT8, FI_SUM, &c));
	/* Not on the region whose key is the tag. */
	struct fi_ioc value = { .addr = &ten, .count = 1 };
	struct fi_rma_ioc place = { .addr = 8, .count = 1, .key = KEY };
	struct fi_msg_atomic tagged = {
		.msg_iov = &value, .iov_count = 1, .addr = n->peer, .rma_iov = &place, .rma_iov_count = 1,
		.datatype = FI_UINT64, .op = FI_SUM, .context = &c,
	};
	EXPECT(-FI_EOPNOTSUPP, fi_atomicmsg(n->ep, &tagged, FI_TAGGED));
}

/* Keys of the provider's, addresses of the target's. */
static void basic(int rank, int sock)
{
	struct net n;
	struct fi_context2 c;
	struct options o = { .caps = FI_MSG | FI_RMA };
	struct { uint64_t key, addr; } place;
	static uint64_t word[4], got[4];
	struct fid_mr *mr = NULL;
	memset(&n, 0, sizeof n);
	n.info = find(&o);
	n.info->domain_attr->mr_mode = FI_MR_BASIC;
	struct fi_info *again;
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, n.info, &again));
	CHECK(again->domain_attr->mr_mode == FI_MR_BASIC);
	fi_freeinfo(n.info);
	n.info = again;
	EXPECT(0, fi_fabric(n.info->fabric_attr, &n.fabric, NULL));
	EXPECT(0, fi_domain(n.fabric, n.info, &n.domain, NULL));
	open_ep(&n, &o);
	meet(&n, sock);
	if (rank == 1) {
		word[2] = 4711;
		EXPECT(0, fi_mr_reg(n.domain, word, sizeof word, FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
		place.key = fi_mr_key(mr);
		place.addr = (uintptr_t)word;
		tell(sock, &place, sizeof place);
	} else {
		hear(sock, &place, sizeof place);
		POST(&n, fi_read(n.ep, got, 8, NULL, n.peer, place.addr + 16, place.key, &c));
		next_is(&n, &c);
		CHECK(got[0] == 4711);
	}
	barrier_progressing(sock, &n);
	if (mr)
		EXPECT(0, fi_close(&mr->fid));
	close_net(&n);
}

static void both(int rank, int sock)
{
	struct net n;
	static uint8_t mine[LENGTH], locked[64];
	struct fid_mr *mr[2];
	struct fid_cntr *counter, *remote;
	struct fi_cntr_attr a = { .events = FI_CNTR_EVENTS_COMP };
	struct options o = { .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RMA_EVENT };
	size_t len = NAME_LEN;
	memset(&n, 0, sizeof n);
	n.info = find(&o);
	EXPECT(0, fi_fabric(n.info->fabric_attr, &n.fabric, NULL));
	EXPECT(0, fi_domain(n.fabric, n.info, &n.domain, NULL));
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	EXPECT(0, fi_endpoint(n.domain, n.info, &n.ep, NULL));
	EXPECT(0, fi_cq_open(n.domain, &cq, &n.cq, NULL));
	EXPECT(0, fi_av_open(n.domain, &av, &n.av, NULL));
	EXPECT(0, fi_cntr_open(n.domain, &a, &counter, NULL));
	EXPECT(0, fi_cntr_open(n.domain, &a, &remote, NULL));
	EXPECT(0, fi_ep_bind(n.ep, &n.av->fid, 0));
	EXPECT(0, fi_ep_bind(n.ep, &n.cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(0, fi_ep_bind(n.ep, &counter->fid, FI_READ | FI_WRITE));
	EXPECT(0, fi_ep_bind(n.ep, &remote->fid, FI_REMOTE_WRITE));
	EXPECT(0, fi_enable(n.ep));
	EXPECT(0, fi_getname(&n.ep->fid, n.name, &len));
	EXPECT(1, fi_av_insert(n.av, n.name, 1, &n.self, 0, NULL));
	registration(&n);
	mr[0] = reg(&n, mine, LENGTH, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
	mr[1] = reg(&n, locked, sizeof locked, FI_REMOTE_READ, KEY + 1);
	meet(&n, sock);
	if (rank == 0) {
		struct fi_context2 c;
		uint64_t word = 1;
		reads_and_writes(&n, counter);
		atomics(&n);
		EXPECT(4, fi_cntr_readerr(counter)); /* known from now on: they end no wait */
		uint64_t before = fi_cntr_read(counter);
		POST(&n, fi_writedata(n.ep, &word, 8, NULL, 0xfeedull, n.peer, 0, KEY, &c));
		next_is(&n, &c);
		POST(&n, fi_inject_writedata(n.ep, &word, 8, 0xbeefull, n.peer, 0, KEY));
		EXPECT(0, fi_cntr_wait(counter, before + 2, 10000));
	} else {
		struct fi_cq_tagged_entry e = next(&n);
		CHECK(e.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && e.data == 0xfeed);
		e = next(&n);
		CHECK(e.data == 0xbeef);
		/* 40 writes and an inject; atomics that fetch nothing: a write, a sum; two with data. */
		EXPECT(45, fi_cntr_read(remote));
	}
	barrier_progressing(sock, &n);
	EXPECT(0, fi_close(&mr[0]->fid));
	EXPECT(0, fi_close(&mr[1]->fid));
	EXPECT(0, fi_close(&n.ep->fid));
	EXPECT(0, fi_close(&counter->fid));
	EXPECT(0, fi_close(&remote->fid));
	n.ep = NULL;
	EXPECT(0, fi_close(&n.cq->fid));
	EXPECT(0, fi_close(&n.av->fid));
	EXPECT(0, fi_close(&n.domain->fid));
	EXPECT(0, fi_close(&n.fabric->fid));
	fi_freeinfo(n.info);
}

static void side(int rank, int sock)
{
	both(rank, sock);
	barrier(sock);
	basic(rank, sock);
}

int main(void)
{
	in_two_processes(side);
	printf("OK\n");
	return 0;
}
