/* Several endpoints and domains per process, sources, directed receives, counters, services, threads, forked children. */
#include "client.h"

#include <pthread.h>

/* Two endpoints share a queue; the peer's two endpoints are told apart by FI_SOURCE and by directed receives. */
static void endpoints(int rank, int sock)
{
	struct options o = { .caps = FI_TAGGED | FI_MSG | FI_SOURCE | FI_DIRECTED_RECV };
	struct net n, second;
	open_net(&n, &o);
	CHECK(n.info->caps & FI_SOURCE);
	second = n;
	open_ep(&second, &o);
	uint8_t theirs[2][NAME_LEN];
	fi_addr_t at[2];
	tell(sock, n.name, NAME_LEN);
	tell(sock, second.name, NAME_LEN);
	hear(sock, theirs, sizeof theirs);
	CHECK(memcmp(theirs[0], theirs[1], NAME_LEN));
	EXPECT(2, fi_av_insert(n.av, theirs, 2, at, 0, NULL));
	CHECK(at[0] == 1 && at[1] == 2);
	fi_addr_t there;
	EXPECT(1, fi_av_insert(second.av, theirs[0], 1, &there, 0, NULL));
	char buf[2][16];
	struct fi_context2 c[2];
	if (rank == 0) {
		POST(&n, fi_tinject(n.ep, "first", 6, 1, 5));
		POST(&second, fi_tinject(second.ep, "second", 7, there, 5));
		/* To both endpoints of the other side. */
		POST(&n, fi_inject(n.ep, "a", 2, at[0]));
		POST(&n, fi_inject(n.ep, "b", 2, at[1]));
	} else {
		struct fi_cq_tagged_entry e;
		fi_addr_t from;
		ssize_t got;
		/* The second sender's message first, whichever came first. */
		POST(&n, fi_trecv(n.ep, buf[1], 16, NULL, at[1], 5, 0, &c[1]));
		while ((got = fi_cq_readfrom(n.cq, &e, 1, &from)) == -FI_EAGAIN)
			;
		CHECK(got == 1 && e.op_context == &c[1] && from == at[1] && !strcmp(buf[1], "second"));
		POST(&n, fi_trecv(n.ep, buf[0], 16, NULL, FI_ADDR_UNSPEC, 5, 0, &c[0]));
		while ((got = fi_cq_readfrom(n.cq, &e, 1, &from)) == -FI_EAGAIN)
			;
		CHECK(got == 1 && e.op_context == &c[0] && from == at[0] && !strcmp(buf[0], "first"));
		POST(&second, fi_recv(second.ep, buf[1], 16, NULL, FI_ADDR_UNSPEC, &c[1]));
		POST(&n, fi_recv(n.ep, buf[0], 16, NULL, FI_ADDR_UNSPEC, &c[0]));
		next_is(&n, &c[0]);
		next_is(&second, &c[1]);
		CHECK(buf[0][0] == 'a' && buf[1][0] == 'b');
	}
	barrier_progressing(sock, &n);
	EXPECT(0, fi_close(&second.ep->fid));
	EXPECT(0, fi_close(&second.cq->fid));
	EXPECT(0, fi_close(&second.av->fid));
	/* The rest goes on. */
	if (rank == 0)
		POST(&n, fi_tinject(n.ep, "more", 5, at[0], 6));
	else
		POST(&n, fi_trecv(n.ep, buf[0], 16, NULL, FI_ADDR_UNSPEC, 6, 0, &c[0]));
	if (rank == 1)
		next_is(&n, &c[0]);
	barrier_progressing(sock, &n);
	close_net(&n);
}

/* Without FI_DIRECTED_RECV the source of a receive is ignored (fi_pingpong relies on it). */
static void undirected(int rank, int sock)
{
	struct net n;
	char buf[8];
	struct fi_context2 c;
	open_net(&n, &(struct options){ .caps = FI_TAGGED });
	meet(&n, sock);
	if (rank == 0) {
		POST(&n, fi_tinject(n.ep, "x", 2, n.peer, 1));
	} else {
		POST(&n, fi_trecv(n.ep, buf, 8, NULL, n.self, 1, 0, &c));
		next_is(&n, &c);
	}
	barrier_progressing(sock, &n);
	close_net(&n);
}

/* Domains of one process are independent, and reach each other like processes do. */
static void domains(void)
{
	struct options o = { .caps = FI_TAGGED, .threading = FI_THREAD_DOMAIN };
	struct net a, b;
	struct fi_context2 s, r;
	static char out[50000], in[50000];
	open_net(&a, &o);
	open_net(&b, &o);
	EXPECT(1, fi_av_insert(a.av, b.name, 1, &a.peer, 0, NULL));
	fill(out, sizeof out, 3);
	POST(&b, fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, &r));
	POST(&a, fi_tsend(a.ep, out, sizeof out, NULL, a.peer, 1, &s));
	int done = 0;
	double until = now() + LIMIT_SECONDS;
	while (done < 2) {
		struct fi_cq_tagged_entry e;
		done += fi_cq_read(a.cq, &e, 1) == 1;
		done += fi_cq_read(b.cq, &e, 1) == 1;
		CHECK(now() < until);
	}
	check_fill(in, sizeof in, 3);
	EXPECT(-FI_EDOMAIN, fi_ep_bind(a.ep, &b.av->fid, 0));
	EXPECT(-FI_EDOMAIN, fi_ep_bind(a.ep, &b.cq->fid, FI_RECV));
	close_net(&a);
	close_net(&b);
}

/* Counters count what is bound to them, with or without entries in a queue. */
static void counters(int rank, int sock)
{
	struct net n;
	struct fi_cntr_attr a = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr v = { .type = FI_AV_TABLE };
	struct fid_cntr *tx, *rx;
	struct fi_context2 c[4];
	char buf[4][8];
	size_t len = NAME_LEN;
	memset(&n, 0, sizeof n);
	n.info = find(&(struct options){ .caps = FI_TAGGED });
	EXPECT(0, fi_fabric(n.info->fabric_attr, &n.fabric, NULL));
	EXPECT(0, fi_domain(n.fabric, n.info, &n.domain, NULL));
	EXPECT(0, fi_endpoint(n.domain, n.info, &n.ep, NULL));
	EXPECT(0, fi_cntr_open(n.domain, &a, &tx, NULL));
	EXPECT(0, fi_cntr_open(n.domain, &a, &rx, NULL));
	EXPECT(0, fi_cq_open(n.domain, &q, &n.cq, NULL));
	EXPECT(0, fi_av_open(n.domain, &v, &n.av, NULL));
	EXPECT(0, fi_ep_bind(n.ep, &tx->fid, FI_SEND));
	EXPECT(0, fi_ep_bind(n.ep, &rx->fid, FI_RECV));
	EXPECT(0, fi_ep_bind(n.ep, &n.cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
	EXPECT(0, fi_ep_bind(n.ep, &n.av->fid, 0));
	EXPECT(-FI_EBADFLAGS, fi_ep_bind(n.ep, &tx->fid, FI_PEEK));
	EXPECT(0, fi_enable(n.ep));
	EXPECT(0, fi_getname(&n.ep->fid, n.name, &len));
	EXPECT(1, fi_av_insert(n.av, n.name, 1, &n.self, 0, NULL));
	meet(&n, sock);
	if (rank == 0) {
		for (int i = 0; i < 3; i++)
			POST(&n, fi_tsend(n.ep, "1234567", 8, NULL, n.peer, i, &c[i]));
		POST(&n, fi_tinject(n.ep, "1234567", 8, n.peer, 3));
		EXPECT(0, fi_cntr_wait(tx, 4, 10000));
		EXPECT(4, fi_cntr_read(tx));
		EXPECT(0, fi_cntr_read(rx));
	} else {
		for (int i = 0; i < 4; i++)
			POST(&n, fi_trecv(n.ep, buf[i], i == 3 ? 2 : 8, NULL, FI_ADDR_UNSPEC, i, 0, &c[i]));
		EXPECT(0, fi_cntr_wait(rx, 3, 10000));
		/* The last one is truncated: a failure. */
		EXPECT(-FI_EAVAIL, fi_cntr_wait(rx, 4, 10000));
		EXPECT(1, fi_cntr_readerr(rx));
		EXPECT(3, fi_cntr_read(rx));
		CHECK(next_error(&n).err == FI_ETRUNC);
	}
	quiet(&n);
	barrier_progressing(sock, &n);
	EXPECT(0, fi_close(&n.ep->fid));
	EXPECT(0, fi_close(&tx->fid));
	EXPECT(0, fi_close(&rx->fid));
	EXPECT(0, fi_close(&n.cq->fid));
	EXPECT(0, fi_close(&n.av->fid));
	EXPECT(0, fi_close(&n.domain->fid));
	EXPECT(0, fi_close(&n.fabric->fid));
	fi_freeinfo(n.info);
}

/* As fabtests without -E: the server listens at a service, the client reaches it by node and service and says who it is. */
static void services(int rank, int sock)
{
	struct net n;
	struct fi_info *h = fi_allocinfo();
	char port[16], buf[NAME_LEN];
	struct fi_context2 c;
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr v = { .type = FI_AV_MAP };
	size_t len = NAME_LEN;
	memset(&n, 0, sizeof n);
	h->caps = FI_MSG | FI_TAGGED;
	h->fabric_attr->prov_name = strdup("rustmx");
	int number = rank ? 0 : free_port();
	if (rank == 0)
		tell(sock, &number, sizeof number);
	else
		hear(sock, &number, sizeof number);
	snprintf(port, sizeof port, "%d", number);
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), rank ? "127.0.0.1" : NULL, port, rank ? 0 : FI_SOURCE, h, &n.info));
	EXPECT(0, fi_fabric(n.info->fabric_attr, &n.fabric, NULL));
	EXPECT(0, fi_domain(n.fabric, n.info, &n.domain, NULL));
	EXPECT(0, fi_endpoint(n.domain, n.info, &n.ep, NULL));
	EXPECT(0, fi_cq_open(n.domain, &q, &n.cq, NULL));
	EXPECT(0, fi_av_open(n.domain, &v, &n.av, NULL));
	EXPECT(0, fi_ep_bind(n.ep, &n.cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(0, fi_ep_bind(n.ep, &n.av->fid, 0));
	EXPECT(0, fi_enable(n.ep));
	EXPECT(0, fi_getname(&n.ep->fid, n.name, &len));
	barrier(sock);
	if (rank == 0) {
		POST(&n, fi_recv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, &c));
		next_is(&n, &c);
		EXPECT(1, fi_av_insert(n.av, buf, 1, &n.peer, 0, NULL));
		POST(&n, fi_inject(n.ep, "welcome", 8, n.peer));
	} else {
		EXPECT(1, fi_av_insert(n.av, n.info->dest_addr, 1, &n.peer, 0, NULL));
		POST(&n, fi_send(n.ep, n.name, NAME_LEN, NULL, n.peer, &c));
		next_is(&n, &c);
		POST(&n, fi_recv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, &c));
		next_is(&n, &c);
		CHECK(!strcmp(buf, "welcome"));
		/* Another process that wants to listen there is told. */
		struct fi_info *taken;
		struct fid_ep *rival;
		EXPECT(0, fi_getinfo(FI_VERSION(1, 17), NULL, port, FI_SOURCE, h, &taken));
		EXPECT(0, fi_endpoint(n.domain, taken, &rival, NULL));
		EXPECT(0, fi_ep_bind(rival, &n.cq->fid, FI_TRANSMIT | FI_RECV));
		EXPECT(0, fi_ep_bind(rival, &n.av->fid, 0));
		EXPECT(-FI_EADDRINUSE, fi_enable(rival));
		EXPECT(0, fi_close(&rival->fid));
		fi_freeinfo(taken);
	}
	barrier_progressing(sock, &n);
	close_net(&n);
	fi_freeinfo(h);
}

/* Control calls from one thread while another moves messages, under each threading model. */
struct shared {
	struct net *n;
	volatile bool stop;
	volatile long rounds;
};

static void *control_calls(void *arg)
{
	struct shared *s = arg;
	while (!s->stop) {
		struct fi_cq_attr a = { 0 };
		struct fi_cntr_attr ca = { 0 };
		struct fid_cq *cq;
		struct fid_cntr *cntr;
		struct fid_ep *ep;
		fi_addr_t at;
		EXPECT(0, fi_cq_open(s->n->domain, &a, &cq, NULL));
		EXPECT(0, fi_cntr_open(s->n->domain, &ca, &cntr, NULL));
		EXPECT(0, fi_endpoint(s->n->domain, s->n->info, &ep, NULL));
		EXPECT(0, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
		EXPECT(1, fi_av_insert(s->n->av, s->n->name, 1, &at, 0, NULL));
		EXPECT(0, fi_close(&ep->fid));
		EXPECT(0, fi_close(&cntr->fid));
		EXPECT(0, fi_close(&cq->fid));
		EXPECT(0, fi_av_remove(s->n->av, &at, 1, 0));
		s->rounds++;
	}
	return NULL;
}

static void to_self(struct net *n, int rounds, uint64_t tag)
{
	struct fi_context2 s, r;
	for (int i = 0; i < rounds; i++) {
		uint64_t out = i, in = ~0ull;
		POST(n, fi_trecv(n->ep, &in, 8, NULL, FI_ADDR_UNSPEC, tag, 0, &r));
		POST(n, fi_tsend(n->ep, &out, 8, NULL, n->self, tag, &s));
		next(n);
		next(n);
		CHECK(in == out);
	}
}

static void *own_endpoint(void *arg)
{
	to_self(arg, 3000, 1);
	return NULL;
}

static void threads(void)
{
	static const enum fi_threading models[] = { FI_THREAD_DOMAIN, FI_THREAD_SAFE, FI_THREAD_COMPLETION };
	for (int m = 0; m < 3; m++) {
		struct options o = { .caps = FI_TAGGED, .threading = models[m] };
		struct net n;
		pthread_t t[3];
		open_net(&n, &o);
		CHECK(n.info->domain_attr->threading == models[m]);
		struct shared s = { .n = &n };
		CHECK(!pthread_create(&t[0], NULL, control_calls, &s));
		double until = now() + LIMIT_SECONDS;
		long messages = 0;
		while (s.rounds < 200 || messages < 3000) {
			to_self(&n, 100, 1);
			messages += 100;
			if (now() > until)
				FAIL("%ld messages, %ld control calls: one side starves", messages, s.rounds);
		}
		if (getenv("RUSTMX_TEST_TIMES"))
			fprintf(stderr, "model %d: %ld messages, %ld control rounds in %.3f s\n", models[m], messages, s.rounds,
				now() - until + LIMIT_SECONDS);
		s.stop = true;
		pthread_join(t[0], NULL);
		if (models[m] != FI_THREAD_DOMAIN) {
			struct net more[3];
			for (int i = 0; i < 3; i++) {
				more[i] = n;
				open_ep(&more[i], &o);
				CHECK(!pthread_create(&t[i], NULL, own_endpoint, &more[i]));
			}
			for (int i = 0; i < 3; i++) {
				pthread_join(t[i], NULL);
				EXPECT(0, fi_close(&more[i].ep->fid));
				EXPECT(0, fi_close(&more[i].cq->fid));
				EXPECT(0, fi_close(&more[i].av->fid));
			}
		}
		close_net(&n);
	}
}

/* A child made by fork may call what it likes, close included, and runs libfabric's destructor at its exit; the parent's
 * traffic must not notice. */
static void children(int rank, int sock)
{
	struct net n;
	struct fi_context2 c;
	char buf[8];
	open_net(&n, &(struct options){ .caps = FI_TAGGED });
	meet(&n, sock);
	for (int round = 0; round < 3; round++) {
		if (rank == 0) {
			POST(&n, fi_tsend(n.ep, "1234567", 8, NULL, n.peer, 1, &c));
		} else {
			POST(&n, fi_trecv(n.ep, buf, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &c));
		}
		next_is(&n, &c);
		fflush(NULL);
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			struct fi_cq_tagged_entry e;
			alarm(20);
			if (round == 1) {
				CHECK(fi_tinject(n.ep, "x", 1, n.peer, 1) < 0);
				EXPECT(-FI_EAGAIN, fi_cq_read(n.cq, &e, 1));
				close_net(&n);
			}
			exit(0); /* not _exit: destructors run */
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
		CHECK(!system("true"));
	}
	barrier_progressing(sock, &n);
	close_net(&n);
}

struct reader {
	struct net *n;
	struct fid_poll *set;
	volatile bool stop;
};

static void *reads_all_the_time(void *arg)
{
	struct reader *r = arg;
	struct fi_cq_tagged_entry e;
	void *context;
	while (!r->stop) {
		EXPECT(-FI_EAGAIN, fi_cq_read(r->n->cq, &e, 1));
		EXPECT(0, fi_poll(r->set, &context, 1));
	}
	return NULL;
}

/* What a child gets does not depend on what other threads did at the moment of the fork: they may have been in the domain. */
static void children_of_many_threads(void)
{
	struct net n;
	struct fid_cntr *counter;
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	open_net(&n, &(struct options){ .caps = FI_TAGGED });
	EXPECT(0, fi_cntr_open(n.domain, &attr, &counter, NULL));
	EXPECT(0, fi_cntr_set(counter, 7));
	while (fi_cntr_read(counter) != 7)
		;
	struct fi_poll_attr poll_attr = { 0 };
	struct reader r = { .n = &n };
	pthread_t thread;
	EXPECT(0, fi_poll_open(n.domain, &poll_attr, &r.set));
	EXPECT(0, fi_poll_add(r.set, &n.cq->fid, 0));
	CHECK(!pthread_create(&thread, NULL, reads_all_the_time, &r));
	for (int round = 0; round < 100; round++) {
		fflush(NULL);
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry error = { 0 };
			void *context;
			alarm(20);
			EXPECT(0, fi_poll(r.set, &context, 1));
			EXPECT(-FI_EAGAIN, fi_cq_read(n.cq, &e, 1));
			EXPECT(-FI_EAGAIN, fi_cq_read(n.cq, NULL, 0));
			EXPECT(-FI_EAGAIN, fi_cq_readerr(n.cq, &error, 0));
			EXPECT(7, (ssize_t)fi_cntr_read(counter));
			EXPECT(0, (ssize_t)fi_cntr_readerr(counter));
			CHECK(fi_tinject(n.ep, "x", 1, 0, 1) < 0);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	}
	r.stop = true;
	pthread_join(thread, NULL);
	EXPECT(0, fi_poll_del(r.set, &n.cq->fid, 0));
	EXPECT(0, fi_close(&r.set->fid));
	EXPECT(0, fi_close(&counter->fid));
	close_net(&n);
}

static void side(int rank, int sock)
{
	endpoints(rank, sock);
	undirected(rank, sock);
	counters(rank, sock);
	services(rank, sock);
	children(rank, sock);
	if (rank == 0) {
		domains();
		threads();
		children_of_many_threads();
	}
}

int main(void)
{
	in_two_processes(side);
	printf("OK\n");
	return 0;
}
