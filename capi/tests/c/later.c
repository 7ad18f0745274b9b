/* Triggered operations, and the deferred work queue of a domain: two processes, each with one endpoint. */
#include "client.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_trigger.h>

#define KEY 7

static struct net n;
static struct fid_cntr *when, *done;
static uint64_t memory[8];

static struct fid_cntr *open_cntr(void)
{
	struct fid_cntr *c;
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	EXPECT(0, fi_cntr_open(n.domain, &attr, &c, NULL));
	return c;
}

static void wait_for(struct fid_cntr *c, uint64_t count)
{
	double until = now() + LIMIT_SECONDS;
	while (fi_cntr_read(c) < count)
		if (now() > until)
			FAIL("the counter stays at %" PRIu64 " of %" PRIu64, fi_cntr_read(c), count);
}

/* Flags of the call, of an alias; cancelled; refused. */
static void triggered(void)
{
	struct fi_triggered_context2 a = { .event_type = FI_TRIGGER_THRESHOLD, .trigger.threshold = { when, 1 } };
	struct fi_triggered_context2 b = a, c = a;
	struct fid_ep *alias = NULL;
	char out[8] = "early", in[8], second[8] = "alias", into[8];
	struct iovec iov = { out, sizeof out };
	struct fi_msg_tagged m = { .msg_iov = &iov, .iov_count = 1, .addr = n.self, .tag = 1, .context = &a };
	EXPECT(0, fi_trecv(n.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, in));
	EXPECT(0, fi_trecv(n.ep, into, 8, NULL, FI_ADDR_UNSPEC, 2, 0, into));
	EXPECT(0, fi_tsendmsg(n.ep, &m, FI_TRIGGER | FI_COMPLETION));
	b.trigger.threshold.threshold = 2;
	EXPECT(0, fi_ep_alias(n.ep, &alias, FI_TRANSMIT | FI_TRIGGER | FI_COMPLETION));
	EXPECT(0, fi_tsend(alias, second, 8, NULL, n.self, 2, &b));
	c.trigger.threshold.threshold = 99;
	m.context = &c;
	EXPECT(0, fi_tsendmsg(n.ep, &m, FI_TRIGGER));
	for (int i = 0; i < 10; i++)
		EXPECT(-FI_EAGAIN, fi_cq_read(n.cq, NULL, 0) ?: -FI_EAGAIN);
	/* Nothing is read before the counter says so. */
	memcpy(out, "later", 6);
	EXPECT(0, fi_cntr_add(when, 1));
	bool got[2] = { false, false };
	while (!got[0] || !got[1])
		got[next(&n).op_context == &a] = true;
	CHECK(!strcmp(in, "later"));
	EXPECT(0, fi_cntr_add(when, 1));
	got[0] = got[1] = false;
	while (!got[0] || !got[1])
		got[next(&n).op_context == &b] = true;
	CHECK(!strcmp(into, "alias"));
	EXPECT(-FI_EBUSY, fi_close(&when->fid));
	EXPECT(0, fi_cancel(&n.ep->fid, &c));
	struct fi_cq_err_entry e = next_error(&n);
	CHECK(e.err == FI_ECANCELED && e.op_context == &c);
	a.event_type = FI_TRIGGER_XPU;
	m.context = &a;
	EXPECT(-FI_ENOSYS, fi_tsendmsg(n.ep, &m, FI_TRIGGER));
	m.context = NULL;
	EXPECT(-FI_EINVAL, fi_tsendmsg(n.ep, &m, FI_TRIGGER));
	EXPECT(-FI_EINVAL, fi_tinject(alias, out, 8, n.self, 1));
	EXPECT(0, fi_close(&alias->fid));
	EXPECT(0, fi_cntr_set(when, 0));
}

/* One request of each kind; the structures are gone when it runs, only buffers stay. */
static void queue(enum fi_op_type type, uint64_t threshold, uint64_t *ours, uint64_t *result, uint64_t *compare, struct fi_deferred_work *w)
{
	struct iovec iov = { ours, 8 };
	struct fi_rma_iov there = { .addr = 0, .len = 8, .key = KEY };
	struct fi_ioc value = { ours, 1 }, back = { result, 1 }, with = { compare, 1 };
	struct fi_rma_ioc cell = { .addr = 8, .count = 1, .key = KEY };
	struct fi_msg_atomic atomic = { .msg_iov = &value, .iov_count = 1, .addr = n.peer, .rma_iov = &cell, .rma_iov_count = 1,
					.datatype = FI_UINT64, .op = type == FI_OP_COMPARE_ATOMIC ? FI_CSWAP : FI_SUM };
	struct fi_op_msg msg = { n.ep, { .msg_iov = &iov, .iov_count = 1, .addr = n.peer }, 0 };
	struct fi_op_tagged tagged = { n.ep, { .msg_iov = &iov, .iov_count = 1, .addr = n.peer, .tag = 5 }, 0 };
	struct fi_op_rma rma = { n.ep, { .msg_iov = &iov, .iov_count = 1, .addr = n.peer, .rma_iov = &there, .rma_iov_count = 1 }, 0 };
	struct fi_op_atomic base = { n.ep, atomic, 0 };
	struct fi_op_fetch_atomic fetch = { n.ep, atomic, { .msg_iov = &back, .iov_count = 1 }, 0 };
	struct fi_op_compare_atomic swap = { n.ep, atomic, { .msg_iov = &back, .iov_count = 1 }, { .msg_iov = &with, .iov_count = 1 }, 0 };
	memset(w, 0, sizeof *w);
	w->threshold = threshold;
	w->triggering_cntr = when;
	w->completion_cntr = done;
	w->op_type = type;
	if (type == FI_OP_RECV)
		msg.msg.addr = FI_ADDR_UNSPEC;
	if (type == FI_OP_TRECV)
		tagged.msg.addr = FI_ADDR_UNSPEC;
	switch (type) {
	case FI_OP_RECV:
	case FI_OP_SEND:
		w->op.msg = &msg;
		break;
	case FI_OP_TRECV:
	case FI_OP_TSEND:
		w->op.tagged = &tagged;
		break;
	case FI_OP_READ:
	case FI_OP_WRITE:
		w->op.rma = &rma;
		break;
	case FI_OP_ATOMIC:
		w->op.atomic = &base;
		break;
	case FI_OP_FETCH_ATOMIC:
		w->op.fetch_atomic = &fetch;
		break;
	default:
		w->op.compare_atomic = &swap;
	}
	EXPECT(0, fi_control(&n.domain->fid, FI_QUEUE_WORK, w));
}

/* Both sides queue everything, start it by one counter, and find nothing in their queues. */
static void deferred(int rank, int sock)
{
	uint64_t in = 0, tin = 0, out = 11 + rank, tout = 21 + rank, put = 31 + rank, got = 0, add = 1, old = 99, cmp = 40, swapped = 99;
	struct fi_deferred_work w[10];
	memory[1] = 38;
	barrier(sock);
	queue(FI_OP_RECV, 1, &in, NULL, NULL, &w[0]);
	queue(FI_OP_TRECV, 1, &tin, NULL, NULL, &w[1]);
	queue(FI_OP_SEND, 1, &out, NULL, NULL, &w[2]);
	queue(FI_OP_TSEND, 1, &tout, NULL, NULL, &w[3]);
	queue(FI_OP_WRITE, 1, &put, NULL, NULL, &w[4]);
	queue(FI_OP_READ, 2, &got, NULL, NULL, &w[5]);
	queue(FI_OP_ATOMIC, 2, &add, NULL, NULL, &w[6]);
	queue(FI_OP_FETCH_ATOMIC, 3, &add, &old, NULL, &w[7]);
	queue(FI_OP_COMPARE_ATOMIC, 4, &put, &swapped, &cmp, &w[8]);
	queue(FI_OP_SEND, 100, &out, NULL, NULL, &w[9]);
	CHECK(fi_cntr_read(done) == 0);
	for (int i = 0; i < 4; i++) {
		EXPECT(0, fi_cntr_add(when, 1));
		wait_for(done, (uint64_t[]){ 5, 7, 8, 9 }[i]);
		barrier_progressing(sock, &n);
	}
	CHECK(in == 12 - (uint64_t)rank && tin == 22 - (uint64_t)rank);
	CHECK(memory[0] == 32 - (uint64_t)rank && got == 31 + (uint64_t)rank);
	/* 38, + 1, + 1, and then the swap. */
	CHECK(old == 39 && swapped == 40 && memory[1] == 32 - (uint64_t)rank);
	EXPECT(-FI_EAGAIN, fi_cq_read(n.cq, NULL, 0) ?: -FI_EAGAIN);
	EXPECT(0, fi_cntr_readerr(done));

	/* What did not start can be taken back. */
	EXPECT(0, fi_control(&n.domain->fid, FI_CANCEL_WORK, &w[9]));
	EXPECT(-FI_ENOENT, fi_control(&n.domain->fid, FI_CANCEL_WORK, &w[9]));
	struct fi_op_cntr set = { done, 5 };
	struct fi_deferred_work count = { .threshold = 10, .triggering_cntr = when, .op_type = FI_OP_CNTR_SET, .op.cntr = &set };
	EXPECT(0, fi_control(&n.domain->fid, FI_QUEUE_WORK, &count));
	EXPECT(0, fi_control(&n.domain->fid, FI_FLUSH_WORK, done));
	EXPECT(-FI_EBUSY, fi_close(&when->fid));
	EXPECT(0, fi_control(&n.domain->fid, FI_FLUSH_WORK, when));
	count.threshold = 1;
	EXPECT(0, fi_control(&n.domain->fid, FI_QUEUE_WORK, &count));
	CHECK(fi_cntr_read(done) == 5);
	count.op_type = FI_OP_CNTR_ADD;
	EXPECT(0, fi_control(&n.domain->fid, FI_QUEUE_WORK, &count));
	CHECK(fi_cntr_read(done) == 10);
	count.completion_cntr = done;
	EXPECT(-FI_EINVAL, fi_control(&n.domain->fid, FI_QUEUE_WORK, &count));
	count.op_type = 77;
	EXPECT(-FI_ENOSYS, fi_control(&n.domain->fid, FI_QUEUE_WORK, &count));
	EXPECT(0, fi_control(&n.domain->fid, FI_FLUSH_WORK, NULL));
	EXPECT(-FI_ENOSYS, fi_control(&n.domain->fid, FI_BACKLOG, NULL));
}

static void side(int rank, int sock)
{
	struct options o = { .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER };
	struct fid_mr *mr;
	open_net(&n, &o);
	CHECK(n.info->caps & FI_TRIGGER);
	EXPECT(0, fi_mr_reg(n.domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	when = open_cntr();
	done = open_cntr();
	meet(&n, sock);
	triggered();
	deferred(rank, sock);
	barrier(sock);
	EXPECT(0, fi_close(&mr->fid));
	EXPECT(0, fi_close(&when->fid));
	EXPECT(0, fi_close(&done->fid));
	close_net(&n);
}

int main(void)
{
	in_two_processes(side);
	puts("OK");
	return 0;
}
