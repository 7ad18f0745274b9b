/* Waiting: blocking reads that sleep, descriptors, wait sets, poll sets, automatic progress. */
#include "client.h"
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

static struct net n;

static double cpu(void)
{
	struct rusage u;
	CHECK(!getrusage(RUSAGE_SELF, &u));
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* One completion by a blocking read. */
static struct fi_cq_tagged_entry blocking(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e;
	ssize_t got = fi_cq_sread(cq, &e, 1, NULL, LIMIT_SECONDS * 1000);
	if (got == -FI_EAVAIL)
		explain(cq, "fi_cq_sread");
	if (got != 1)
		FAIL("fi_cq_sread = %zd", got);
	return e;
}

/* One completion as fi_poll(3) shows it. */
static struct fi_cq_tagged_entry by_descriptor(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e;
	struct fid *fids[1] = { &cq->fid };
	struct pollfd p = { .events = POLLIN };
	EXPECT(0, fi_control(&cq->fid, FI_GETWAIT, &p.fd));
	for (;;) {
		ssize_t got = fi_cq_read(cq, &e, 1);
		if (got == 1)
			return e;
		if (got == -FI_EAVAIL)
			explain(cq, "fi_cq_read");
		EXPECT(-FI_EAGAIN, got);
		int ret = fi_trywait(n.fabric, fids, 1);
		if (ret == 0)
			EXPECT(1, poll(&p, 1, LIMIT_SECONDS * 1000));
		else
			EXPECT(-FI_EAGAIN, ret);
	}
}

typedef struct fi_cq_tagged_entry (*way)(struct fid_cq *);

static void ping_pong(int rounds, way next_one)
{
	static const size_t sizes[] = { 8, 300, 4000, 100000 };
	static uint8_t out[100000], in[100000];
	for (int i = 0; i < rounds; i++) {
		size_t len = sizes[i % 4];
		struct fi_context2 s, r;
		int sent = 0, received = 0;
		EXPECT(0, fi_trecv(n.ep, in, len, NULL, n.peer, 7, 0, &r));
		fill(out, len, i);
		if (my_rank == 0)
			POST(&n, fi_tsend(n.ep, out, len, NULL, n.peer, 7, &s));
		while (!received || !sent) {
			struct fi_cq_tagged_entry e = next_one(n.cq);
			if (e.op_context == &r) {
				check_fill(in, len, i);
				received = 1;
				if (my_rank == 1)
					POST(&n, fi_tsend(n.ep, out, len, NULL, n.peer, 7, &s));
			} else {
				CHECK(e.op_context == &s);
				sent = 1;
			}
			if (i % 64 == 0)
				usleep(500); /* The other side sleeps for certain. */
		}
	}
}

static void nothing_costs_nothing(void)
{
	struct fi_cq_tagged_entry e;
	double start = now(), before = cpu();
	EXPECT(-FI_EAGAIN, fi_cq_sread(n.cq, &e, 1, NULL, 200));
	CHECK(now() - start > 0.195 && now() - start < 5);
	/* Who looks instead of sleeping takes all of it; what else is counted here is what a busy host takes from us. */
	if (cpu() - before > 0.05)
		FAIL("200 ms of sleep took %g s of processor time", cpu() - before);
}

static void *signaller(void *cq)
{
	usleep(20000);
	EXPECT(0, fi_cq_signal(cq));
	return NULL;
}

static void signals(void)
{
	pthread_t t;
	struct fi_cq_tagged_entry e;
	CHECK(!pthread_create(&t, NULL, signaller, n.cq));
	EXPECT(-FI_ECANCELED, fi_cq_sread(n.cq, &e, 1, NULL, -1));
	CHECK(!pthread_join(t, NULL));
}

static void rounds_between_sleepers(int rank, int sock)
{
	struct options o = { .wait = FI_WAIT_UNSPEC };
	my_rank = rank;
	open_net(&n, &o);
	meet(&n, sock);
	ping_pong(500, blocking);
	barrier(sock);
	nothing_costs_nothing();
	signals();
	barrier(sock);
	close_net(&n);
}

static void rounds_by_descriptor(int rank, int sock)
{
	struct options o = { .wait = FI_WAIT_FD, .threading = FI_THREAD_DOMAIN };
	my_rank = rank;
	open_net(&n, &o);
	meet(&n, sock);
	ping_pong(500, by_descriptor);
	ping_pong(100, blocking);
	enum fi_wait_obj kind = FI_WAIT_NONE;
	EXPECT(0, fi_control(&n.cq->fid, FI_GETWAITOBJ, &kind));
	CHECK(kind == FI_WAIT_FD);
	/* A signal makes the descriptor readable. */
	struct pollfd p = { .events = POLLIN };
	struct fid *fids[1] = { &n.cq->fid };
	struct fi_cq_tagged_entry e;
	EXPECT(0, fi_control(&n.cq->fid, FI_GETWAIT, &p.fd));
	while (fi_trywait(n.fabric, fids, 1))
		EXPECT(-FI_EAGAIN, fi_cq_read(n.cq, &e, 1));
	EXPECT(0, fi_cq_signal(n.cq));
	EXPECT(1, poll(&p, 1, 5000));
	EXPECT(-FI_EAGAIN, fi_trywait(n.fabric, fids, 1));
	EXPECT(-FI_ECANCELED, fi_cq_sread(n.cq, &e, 1, NULL, -1));
	barrier(sock);
	close_net(&n);
}

/* Counters, bound to a second endpoint of each process. */
static struct fid_ep *open_counted(struct fid_cntr *tx, struct fid_cntr *rx, int sock, fi_addr_t *peer)
{
	struct fid_ep *ep;
	uint8_t mine[NAME_LEN], theirs[NAME_LEN];
	size_t len = NAME_LEN;
	EXPECT(0, fi_endpoint(n.domain, n.info, &ep, NULL));
	EXPECT(0, fi_ep_bind(ep, &n.av->fid, 0));
	EXPECT(0, fi_ep_bind(ep, &tx->fid, FI_SEND));
	EXPECT(0, fi_ep_bind(ep, &rx->fid, FI_RECV));
	EXPECT(0, fi_enable(ep));
	EXPECT(0, fi_getname(&ep->fid, mine, &len));
	tell(sock, mine, NAME_LEN);
	hear(sock, theirs, NAME_LEN);
	EXPECT(1, fi_av_insert(n.av, theirs, 1, peer, 0, NULL));
	return ep;
}

static void wait_by_descriptor(struct fid_cntr *c, uint64_t want)
{
	struct fid *fids[1] = { &c->fid };
	struct pollfd p = { .events = POLLIN };
	EXPECT(0, fi_control(&c->fid, FI_GETWAIT, &p.fd));
	while (fi_cntr_read(c) < want)
		if (!fi_trywait(n.fabric, fids, 1))
			EXPECT(1, poll(&p, 1, LIMIT_SECONDS * 1000));
}

static void counters(int rank, int sock)
{
	struct options o = { 0 };
	struct fi_cntr_attr a = { .wait_obj = FI_WAIT_UNSPEC };
	struct fid_cntr *tx, *rx;
	char buf[64][8];
	fi_addr_t peer;
	my_rank = rank;
	open_net(&n, &o);
	EXPECT(0, fi_cntr_open(n.domain, &a, &tx, NULL));
	a.wait_obj = FI_WAIT_FD;
	EXPECT(0, fi_cntr_open(n.domain, &a, &rx, NULL));
	struct fid_ep *ep = open_counted(tx, rx, sock, &peer);
	for (uint64_t round = 1; round <= 100; round++) {
		for (int i = 0; i < 8; i++)
			EXPECT(0, fi_trecv(ep, buf[i], 8, NULL, peer, round, 0, NULL));
		if (rank == 0)
			for (int i = 0; i < 8; i++)
				EXPECT(0, fi_tsend(ep, "counted", 8, NULL, peer, round, NULL));
		if (round % 2)
			EXPECT(0, fi_cntr_wait(rx, round * 8, LIMIT_SECONDS * 1000));
		else
			wait_by_descriptor(rx, round * 8);
		if (rank == 1)
			for (int i = 0; i < 8; i++)
				EXPECT(0, fi_tsend(ep, "counted", 8, NULL, peer, round, NULL));
		EXPECT(0, fi_cntr_wait(tx, round * 8, LIMIT_SECONDS * 1000));
	}
	double start = now(), before = cpu();
	EXPECT(-FI_ETIMEDOUT, fi_cntr_wait(rx, 801, 100));
	CHECK(now() - start > 0.095 && cpu() - before < 0.05);
	barrier(sock);
	EXPECT(0, fi_close(&ep->fid));
	EXPECT(0, fi_close(&tx->fid));
	EXPECT(0, fi_close(&rx->fid));
	close_net(&n);
}

static void event_queue_descriptor(void)
{
	struct fi_eq_attr a = { .flags = FI_WRITE, .wait_obj = FI_WAIT_FD };
	struct fi_eq_entry e = { 0 };
	struct fid_eq *eq;
	uint32_t event;
	EXPECT(0, fi_eq_open(n.fabric, &a, &eq, NULL));
	struct fid *fids[1] = { &eq->fid };
	struct pollfd p = { .events = POLLIN };
	EXPECT(0, fi_control(&eq->fid, FI_GETWAIT, &p.fd));
	EXPECT(0, fi_trywait(n.fabric, fids, 1));
	EXPECT(0, poll(&p, 1, 10));
	for (int i = 0; i < 2; i++)
		EXPECT(sizeof e, fi_eq_write(eq, FI_NOTIFY, &e, sizeof e, 0));
	EXPECT(-FI_EAGAIN, fi_trywait(n.fabric, fids, 1));
	for (int i = 0; i < 2; i++) {
		EXPECT(1, poll(&p, 1, 1000));
		EXPECT(sizeof e, fi_eq_sread(eq, &event, &e, sizeof e, 1000, 0));
	}
	EXPECT(0, poll(&p, 1, 10));
	EXPECT(0, fi_close(&eq->fid));
}

/* Who waits for a counter may be another thread than the one that sets it. */
static void counter_descriptor(void)
{
	struct fi_cntr_attr na = { .wait_obj = FI_WAIT_FD };
	struct fid_cntr *c;
	EXPECT(0, fi_cntr_open(n.domain, &na, &c, NULL));
	struct fid *fids[1] = { &c->fid };
	EXPECT(0, fi_cntr_read(c));
	while (fi_trywait(n.fabric, fids, 1))
		;
	EXPECT(0, fi_cntr_add(c, 1));
	EXPECT(-FI_EAGAIN, fi_trywait(n.fabric, fids, 1));
	EXPECT(1, fi_cntr_read(c));
	while (fi_trywait(n.fabric, fids, 1))
		;
	EXPECT(0, fi_cntr_adderr(c, 1));
	EXPECT(-FI_EAGAIN, fi_trywait(n.fabric, fids, 1));
	EXPECT(1, fi_cntr_readerr(c));
	while (fi_trywait(n.fabric, fids, 1))
		;
	EXPECT(0, fi_close(&c->fid));
}

static void sets(int rank, int sock)
{
	struct options o = { 0 };
	my_rank = rank;
	open_net(&n, &o);
	meet(&n, sock);
	event_queue_descriptor();
	counter_descriptor();

	struct fi_wait_attr wa = { .wait_obj = FI_WAIT_FD };
	struct fid_wait *w;
	EXPECT(0, fi_wait_open(n.fabric, &wa, &w));
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_SET, .wait_set = w };
	struct fi_cntr_attr na = { .wait_obj = FI_WAIT_SET, .wait_set = w };
	struct fi_eq_attr ea = { .flags = FI_WRITE, .wait_obj = FI_WAIT_SET, .wait_set = w };
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_eq *eq;
	struct fid_ep *ep;
	char name_of_cq, name_of_cntr;
	EXPECT(0, fi_cq_open(n.domain, &ca, &cq, &name_of_cq));
	EXPECT(0, fi_cntr_open(n.domain, &na, &cntr, &name_of_cntr));
	EXPECT(0, fi_eq_open(n.fabric, &ea, &eq, NULL));
	EXPECT(-FI_EBUSY, fi_close(&w->fid));

	double start = now(), before = cpu();
	EXPECT(-FI_ETIMEDOUT, fi_wait(w, 100));
	CHECK(now() - start > 0.095 && cpu() - before < 0.05);
	struct fi_eq_entry event = { 0 };
	uint32_t kind;
	EXPECT(sizeof event, fi_eq_write(eq, FI_NOTIFY, &event, sizeof event, 0));
	EXPECT(0, fi_wait(w, -1));
	/* Another thread may be polling at this moment, which is to see it, too. */
	struct pollfd p = { .events = POLLIN };
	EXPECT(0, fi_control(&w->fid, FI_GETWAIT, &p.fd));
	EXPECT(1, poll(&p, 1, 0));
	EXPECT(sizeof event, fi_eq_read(eq, &kind, &event, sizeof event, 0));
	struct fid *fids[1] = { &w->fid };
	EXPECT(0, fi_trywait(n.fabric, fids, 1));
	EXPECT(0, poll(&p, 1, 0));

	struct fi_poll_attr pa = { 0 };
	struct fid_poll *set;
	void *found[2];
	EXPECT(0, fi_poll_open(n.domain, &pa, &set));
	EXPECT(0, fi_poll_add(set, &cq->fid, 0));
	EXPECT(0, fi_poll_add(set, &cntr->fid, 0));
	EXPECT(-FI_EINVAL, fi_poll_add(set, &eq->fid, 0));
	EXPECT(-FI_EBUSY, fi_close(&cq->fid));
	EXPECT(0, fi_poll(set, found, 2));

	/* An endpoint whose completions and counts go there. */
	uint8_t mine[NAME_LEN], theirs[NAME_LEN];
	size_t len = NAME_LEN;
	fi_addr_t peer;
	EXPECT(0, fi_endpoint(n.domain, n.info, &ep, NULL));
	EXPECT(0, fi_ep_bind(ep, &n.av->fid, 0));
	EXPECT(0, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(0, fi_ep_bind(ep, &cntr->fid, FI_RECV));
	EXPECT(0, fi_enable(ep));
	EXPECT(0, fi_getname(&ep->fid, mine, &len));
	tell(sock, mine, NAME_LEN);
	hear(sock, theirs, NAME_LEN);
	EXPECT(1, fi_av_insert(n.av, theirs, 1, &peer, 0, NULL));
	struct fi_cq_tagged_entry e;
	struct fi_context2 r, s;
	char in[8];
	for (int i = 0; i < 200; i++) {
		EXPECT(0, fi_trecv(ep, in, 8, NULL, FI_ADDR_UNSPEC, i, 0, &r));
		if (rank == 0)
			EXPECT(0, fi_tsend(ep, "message", 8, NULL, peer, i, &s));
		int received = 0, sent = 0;
		while (!received || !sent) {
			EXPECT(0, fi_wait(w, LIMIT_SECONDS * 1000));
			if (fi_cntr_read(cntr) == (uint64_t)i + 1 && i % 16 == 0 && !received) {
				int many = fi_poll(set, found, 2);
				CHECK(many == 2 && found[0] == &name_of_cq && found[1] == &name_of_cntr);
			}
			while (fi_cq_read(cq, &e, 1) == 1) {
				if (e.op_context == &r) {
					received = 1;
					if (rank == 1)
						EXPECT(0, fi_tsend(ep, "message", 8, NULL, peer, i, &s));
				} else {
					sent = 1;
				}
			}
		}
		fi_cntr_read(cntr);
	}
	barrier(sock);
	EXPECT(-FI_EBUSY, fi_close(&set->fid));
	EXPECT(0, fi_poll_del(set, &cq->fid, 0));
	EXPECT(-FI_EINVAL, fi_poll_del(set, &cq->fid, 0));
	EXPECT(0, fi_poll_del(set, &cntr->fid, 0));
	EXPECT(0, fi_close(&set->fid));
	EXPECT(0, fi_close(&ep->fid));
	EXPECT(0, fi_close(&cq->fid));
	EXPECT(0, fi_close(&cntr->fid));
	EXPECT(0, fi_close(&eq->fid));
	EXPECT(0, fi_close(&w->fid));
	close_net(&n);
}

/* Several descriptors, as struct pollfd. */
static void pollfds(void)
{
	struct fi_cq_attr a = { .wait_obj = FI_WAIT_POLLFD, .format = FI_CQ_FORMAT_TAGGED };
	struct fid_cq *cq;
	struct pollfd p[2];
	struct fi_wait_pollfd w = { .nfds = 0, .fd = p };
	EXPECT(0, fi_cq_open(n.domain, &a, &cq, NULL));
	EXPECT(-FI_ETOOSMALL, fi_control(&cq->fid, FI_GETWAIT, &w));
	CHECK(w.nfds == 1);
	EXPECT(0, fi_control(&cq->fid, FI_GETWAIT, &w));
	struct fid *fids[1] = { &cq->fid };
	while (fi_trywait(n.fabric, fids, 1))
		;
	EXPECT(0, poll(p, w.nfds, 10));
	EXPECT(0, fi_cq_signal(cq));
	EXPECT(1, poll(p, w.nfds, 1000));
	EXPECT(0, fi_close(&cq->fid));
	a.wait_obj = FI_WAIT_MUTEX_COND;
	EXPECT(-FI_ENOSYS, fi_cq_open(n.domain, &a, &cq, NULL));
	a.wait_obj = FI_WAIT_UNSPEC;
	EXPECT(0, fi_cq_open(n.domain, &a, &cq, NULL));
	int fd;
	EXPECT(-FI_ENODATA, fi_control(&cq->fid, FI_GETWAIT, &fd));
	EXPECT(0, fi_close(&cq->fid));
}

/* One rank makes no calls: what it posted before gets its message all the same. */
static void automatic(int rank, int sock)
{
	struct options o = { .wait = FI_WAIT_UNSPEC, .auto_progress = true, .threading = FI_THREAD_DOMAIN };
	static uint8_t buf[300000];
	struct fi_context2 c;
	my_rank = rank;
	open_net(&n, &o);
	CHECK(n.info->domain_attr->data_progress == FI_PROGRESS_AUTO);
	meet(&n, sock);
	if (rank == 1)
		EXPECT(0, fi_trecv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, 1, 0, &c));
	barrier(sock);
	if (rank == 0) {
		struct iovec iov = { buf, sizeof buf };
		struct fi_msg_tagged m = { .msg_iov = &iov, .iov_count = 1, .addr = n.peer, .tag = 1, .context = &c };
		fill(buf, sizeof buf, 5);
		POST(&n, fi_tsendmsg(n.ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION));
		CHECK(blocking(n.cq).op_context == &c);
	}
	/* Rank 1 comes here without a call since its receive. */
	barrier(sock);
	if (rank == 1) {
		check_fill(buf, sizeof buf, 5);
		CHECK(blocking(n.cq).op_context == &c);
	}
	/* Traffic with the thread in between. */
	ping_pong(500, blocking);
	ping_pong(100, next_of);
	barrier(sock);
	double before = cpu();
	usleep(200000);
	/* Who looks instead of sleeping takes all of it; what else is counted here is what a busy host takes from us. */
	if (cpu() - before > 0.05)
		FAIL("the thread takes %g s of 0.2", cpu() - before);
	barrier(sock);
	close_net(&n);
}

static void alone(int rank, int sock)
{
	struct options o = { 0 };
	my_rank = rank;
	(void)sock;
	open_net(&n, &o);
	pollfds();
	close_net(&n);
}

/* In processes that have opened nothing before. */
static void afresh(void (*side)(int rank, int sock))
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		in_two_processes(side);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		exit(1);
}

int main(void)
{
	afresh(alone);
	afresh(rounds_between_sleepers);
	afresh(rounds_by_descriptor);
	afresh(counters);
	afresh(sets);
	afresh(automatic);
	printf("OK\n");
	return 0;
}
