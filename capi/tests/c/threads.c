/* Several threads that wait for one queue, counter or wait set, by calls or by a descriptor: each wakes for what it waits for.
 * One process, with messages to itself. */
#define _GNU_SOURCE /* gettid */
#include "client.h"
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#define THREADS 6
#define ROUNDS 20
/* Who is not woken ends with this, and the test with it. */
#define LONG 8000

static struct net n;

/* Calls `run` in a thread; gives it time to fall asleep. */
static pthread_t asleep(void *(*run)(void *), void *of)
{
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, run, of));
	usleep(3000);
	return t;
}

static void ends(pthread_t t)
{
	CHECK(!pthread_join(t, NULL));
}

static double cpu(void)
{
	struct rusage u;
	CHECK(!getrusage(RUSAGE_SELF, &u));
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* A message to ourselves: two completions. */
static void message(void)
{
	static struct fi_context2 s, r;
	static char in[8];
	EXPECT(0, fi_trecv(n.ep, in, 8, NULL, n.self, 1, 0, &r));
	POST(&n, fi_tsend(n.ep, "message", 8, NULL, n.self, 1, &s));
}

/* A thread that waits for a counter. */
struct waits {
	struct fid_cntr *cntr;
	uint64_t threshold;
	int result;
	_Atomic pid_t thread;
};

static void *for_counter(void *of)
{
	struct waits *w = of;
	w->thread = gettid();
	w->result = fi_cntr_wait(w->cntr, w->threshold, LONG);
	return NULL;
}

/* Waits until a thread that is about to wait sleeps, however long it takes to get a core: twice in a row, for it may have waited for a lock. */
static void sleeps(struct waits *w)
{
	char path[64], state = 0;
	for (int times = 0; times < 2; times = state == 'S' ? times + 1 : 0) {
		usleep(5000);
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)w->thread);
		FILE *f = w->thread ? fopen(path, "r") : NULL;
		state = 0;
		if (f) {
			CHECK(fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
			fclose(f);
		}
	}
}

static struct fid_cntr *open_counter(enum fi_wait_obj wait, struct fid_wait *set)
{
	struct fi_cntr_attr a = { .wait_obj = wait, .wait_set = set };
	struct fid_cntr *c;
	EXPECT(0, fi_cntr_open(n.domain, &a, &c, NULL));
	return c;
}

/* Each has its own threshold, and whoever is woken first must not keep it from the others. */
static void thresholds(enum fi_wait_obj wait)
{
	struct fid_cntr *c = open_counter(wait, NULL);
	for (int round = 0; round < ROUNDS; round++) {
		struct waits w[THREADS];
		pthread_t t[THREADS];
		EXPECT(0, fi_cntr_set(c, 0));
		for (int i = 0; i < THREADS; i++) {
			/* Rising and falling. */
			w[i] = (struct waits){ c, round % 2 ? i + 1 : THREADS - i, 1 };
			t[i] = asleep(for_counter, &w[i]);
		}
		for (uint64_t k = 1; k <= THREADS; k++) {
			double start = now();
			EXPECT(0, fi_cntr_add(c, 1));
			int which = round % 2 ? (int)k - 1 : THREADS - (int)k;
			ends(t[which]);
			EXPECT(0, w[which].result);
			CHECK(now() - start < LONG / 2000);
		}
	}
	EXPECT(0, fi_close(&c->fid));
}

/* Who sleeps in a call does not take what makes the client's descriptor readable. */
static void descriptors(void)
{
	struct fid_cntr *c = open_counter(FI_WAIT_FD, NULL);
	struct fid *fids[1] = { &c->fid };
	struct pollfd p = { .events = POLLIN };
	EXPECT(0, fi_control(&c->fid, FI_GETWAIT, &p.fd));
	for (uint64_t count = 1; count <= ROUNDS; count++) {
		struct waits w = { c, count, 1 };
		pthread_t t = asleep(for_counter, &w);
		while (fi_trywait(n.fabric, fids, 1))
			fi_cntr_read(c);
		/* Between the look and the sleep. */
		EXPECT(0, fi_cntr_add(c, 1));
		ends(t);
		EXPECT(0, w.result);
		EXPECT(1, poll(&p, 1, LONG));
		EXPECT(count, fi_cntr_read(c));
	}
	EXPECT(0, fi_close(&c->fid));
}

/* No descriptors for the waiters of those that come later: they look now and then. */
static void without_descriptors(void)
{
	struct rlimit before, none;
	/* A domain that has no waiters to spare. */
	struct options o = { 0 };
	struct net all = n;
	open_net(&n, &o);
	struct fid_cntr *c = open_counter(FI_WAIT_UNSPEC, NULL);
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	none = (struct rlimit){ 3, before.rlim_max };
	CHECK(!setrlimit(RLIMIT_NOFILE, &none));
	struct waits w[3];
	pthread_t t[3];
	for (int i = 0; i < 3; i++) {
		w[i] = (struct waits){ c, i + 1, 1 };
		t[i] = asleep(for_counter, &w[i]);
	}
	for (int i = 0; i < 3; i++) {
		double start = now(), spent = cpu();
		usleep(50000);
		CHECK(cpu() - spent < (now() - start) / 2);
		EXPECT(0, fi_cntr_add(c, 1));
		ends(t[i]);
		EXPECT(0, w[i].result);
		CHECK(now() - start < LONG / 2000);
	}
	CHECK(!setrlimit(RLIMIT_NOFILE, &before));
	EXPECT(0, fi_close(&c->fid));
	close_net(&n);
	n = all;
}

/* A change of the failures ends every wait, whoever learns of it meanwhile. */
static void failures(void)
{
	struct fid_cntr *c = open_counter(FI_WAIT_UNSPEC, NULL);
	for (int round = 0; round < 4; round++) {
		struct waits w[3];
		pthread_t t[3];
		for (int i = 0; i < 3; i++) {
			w[i] = (struct waits){ c, 10, 1 };
			t[i] = asleep(for_counter, &w[i]);
		}
		for (int i = 0; i < 3; i++)
			sleeps(&w[i]);
		uint64_t before = fi_cntr_readerr(c);
		if (round % 2)
			EXPECT(0, fi_cntr_seterr(c, before + 1));
		else
			EXPECT(0, fi_cntr_adderr(c, 1));
		if (round / 2)
			EXPECT(before + 1, fi_cntr_readerr(c));
		for (int i = 0; i < 3; i++) {
			ends(t[i]);
			EXPECT(-FI_EAVAIL, w[i].result);
		}
		/* It is known now. */
		EXPECT(-FI_ETIMEDOUT, fi_cntr_wait(c, 10, 1));
	}
	EXPECT(0, fi_close(&c->fid));
}

/* A thread that takes one entry of a queue. */
static void *one_entry(void *of)
{
	struct fi_cq_tagged_entry e;
	EXPECT(1, fi_cq_sread(of, &e, 1, NULL, LONG));
	return NULL;
}

static void *one_entry_by_descriptor(void *of)
{
	struct fid_cq *cq = of;
	struct fi_cq_tagged_entry e;
	struct fid *fids[1] = { &cq->fid };
	struct pollfd p = { .events = POLLIN };
	EXPECT(0, fi_control(&cq->fid, FI_GETWAIT, &p.fd));
	while (fi_cq_read(cq, &e, 1) != 1)
		if (!fi_trywait(n.fabric, fids, 1))
			EXPECT(1, poll(&p, 1, LONG));
	return NULL;
}

/* Each takes one and leaves; there are as many as threads, by two. */
static void entries(enum fi_wait_obj wait)
{
	struct options o = { .wait = wait };
	struct net all = n;
	open_net(&n, &o);
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t t[THREADS];
		for (int i = 0; i < THREADS; i++) {
			bool by_descriptor = wait == FI_WAIT_FD && i == round % THREADS;
			t[i] = asleep(by_descriptor ? one_entry_by_descriptor : one_entry, n.cq);
		}
		double start = now();
		for (int i = 0; i < THREADS; i += 2)
			message();
		for (int i = 0; i < THREADS; i++)
			ends(t[i]);
		CHECK(now() - start < LONG / 2000);
	}
	close_net(&n);
	n = all;
}

static void *cancelled(void *of)
{
	struct fi_cq_tagged_entry e;
	EXPECT(-FI_ECANCELED, fi_cq_sread(of, &e, 1, NULL, LONG));
	return NULL;
}

/* Nothing to read, and soon leave to sleep: so many answers that there is something. */
static int pending(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e;
	struct fid *fids[1] = { &cq->fid };
	int times = 0;
	double until = now() + 2;
	while (fi_trywait(n.fabric, fids, 1)) {
		EXPECT(-FI_EAGAIN, fi_cq_read(cq, &e, 1));
		if (now() > until)
			FAIL("fi_trywait says that there is something, %d times", times);
		times++;
	}
	return times;
}

/* A signal is told once to those who look, and once to those who read. */
static void signals(void)
{
	struct options o = { .wait = FI_WAIT_FD };
	struct net all = n;
	struct fi_cq_tagged_entry e;
	struct pollfd p = { .events = POLLIN };
	open_net(&n, &o);
	EXPECT(0, fi_control(&n.cq->fid, FI_GETWAIT, &p.fd));
	pending(n.cq);
	EXPECT(0, poll(&p, 1, 10));
	/* Before the look. */
	EXPECT(0, fi_cq_signal(n.cq));
	CHECK(pending(n.cq) >= 1);
	EXPECT(0, poll(&p, 1, 10));
	/* Between the look and the sleep. */
	EXPECT(0, fi_cq_signal(n.cq));
	EXPECT(1, poll(&p, 1, 5000));
	CHECK(pending(n.cq) >= 1);
	EXPECT(0, poll(&p, 1, 10));
	/* A read that comes later hears of it, and of several once. */
	EXPECT(-FI_ECANCELED, fi_cq_sread(n.cq, &e, 1, NULL, -1));
	EXPECT(-FI_EAGAIN, fi_cq_sread(n.cq, &e, 1, NULL, 0));
	/* Both at once; and what the one hears the other does not lose. */
	pthread_t t = asleep(cancelled, n.cq);
	EXPECT(0, poll(&p, 1, 50));
	EXPECT(0, fi_cq_signal(n.cq));
	EXPECT(1, poll(&p, 1, 5000));
	ends(t);
	CHECK(pending(n.cq) >= 1);
	EXPECT(0, poll(&p, 1, 10));
	close_net(&n);
	n = all;
}

static void *in_set(void *of)
{
	EXPECT(0, fi_wait(of, LONG));
	return NULL;
}

static struct fid_cq *in_cq;

static void *entry_in_set(void *of)
{
	struct fi_cq_tagged_entry e;
	double until = now() + LONG / 1000;
	while (fi_cq_read(in_cq, &e, 1) != 1) {
		EXPECT(0, fi_wait(of, LONG));
		CHECK(now() < until);
	}
	return NULL;
}

static void sets(void)
{
	struct options o = { 0 };
	struct net all = n;
	struct fi_wait_attr wa = { .wait_obj = FI_WAIT_UNSPEC };
	struct fid_wait *w;
	struct fid_ep *ep;
	open_net(&n, &o);
	EXPECT(0, fi_wait_open(n.fabric, &wa, &w));
	struct fi_cq_attr a = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_SET, .wait_set = w };
	EXPECT(0, fi_cq_open(n.domain, &a, &in_cq, NULL));
	/* A signal ends one wait. */
	pthread_t t = asleep(in_set, w);
	EXPECT(0, fi_cq_signal(in_cq));
	ends(t);
	EXPECT(-FI_ETIMEDOUT, fi_wait(w, 50));

	/* Entries of an endpoint, one for each thread. */
	uint8_t name[NAME_LEN];
	size_t len = sizeof name;
	fi_addr_t self;
	EXPECT(0, fi_endpoint(n.domain, n.info, &ep, NULL));
	EXPECT(0, fi_ep_bind(ep, &n.av->fid, 0));
	EXPECT(0, fi_ep_bind(ep, &in_cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(0, fi_enable(ep));
	EXPECT(0, fi_getname(&ep->fid, name, &len));
	EXPECT(1, fi_av_insert(n.av, name, 1, &self, 0, NULL));
	for (int round = 0; round < ROUNDS; round++) {
		static struct fi_context2 s[THREADS], r[THREADS];
		static char in[8];
		pthread_t ts[THREADS];
		for (int i = 0; i < THREADS; i++)
			ts[i] = asleep(entry_in_set, w);
		double start = now();
		for (int i = 0; i < THREADS; i += 2) {
			EXPECT(0, fi_trecv(ep, in, 8, NULL, self, 1, 0, &r[i]));
			EXPECT(0, fi_tsend(ep, "message", 8, NULL, self, 1, &s[i]));
		}
		for (int i = 0; i < THREADS; i++)
			ends(ts[i]);
		CHECK(now() - start < LONG / 2000);
	}
	EXPECT(0, fi_close(&ep->fid));
	EXPECT(0, fi_close(&in_cq->fid));
	EXPECT(0, fi_close(&w->fid));
	close_net(&n);
	n = all;
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	const char *only = argc > 1 ? argv[1] : "";
#define RUN(what, call)                             \
	do {                                        \
		if (!*only || !strcmp(only, what))  \
			call;                       \
	} while (0)
	open_net(&n, &o);
	RUN("thresholds", thresholds(FI_WAIT_UNSPEC));
	RUN("thresholds-fd", thresholds(FI_WAIT_FD));
	RUN("none", without_descriptors());
	RUN("failures", failures());
	RUN("entries", entries(FI_WAIT_UNSPEC));
	RUN("entries-fd", entries(FI_WAIT_FD));
	RUN("descriptors", descriptors());
	RUN("signals", signals());
	RUN("sets", sets());
	close_net(&n);
	puts("OK");
	return 0;
}
