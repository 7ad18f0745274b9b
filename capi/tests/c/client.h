/* What the C clients share: two processes that know each other's names, waiting with a time limit, checks that say where. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#ifndef LIMIT_SECONDS
#define LIMIT_SECONDS 30
#endif
#define NAME_LEN 56

static int my_rank = -1;

#define FAIL(...)                                                                   \
	do {                                                                        \
		fprintf(stderr, "%s:%d: rank %d: ", __FILE__, __LINE__, my_rank);   \
		fprintf(stderr, __VA_ARGS__);                                       \
		fprintf(stderr, "\n");                                              \
		_exit(1);                                                           \
	} while (0)

#define CHECK(cond)                                 \
	do {                                        \
		if (!(cond))                        \
			FAIL("not so: %s", #cond);  \
	} while (0)

/* The call returns exactly this. */
#define EXPECT(want, call)                                                                         \
	do {                                                                                       \
		long long want_ = (want), got_ = (call);                                           \
		if (got_ != want_)                                                                 \
			FAIL("%s = %lld (%s), expected %lld", #call, got_, fi_strerror((int)llabs(got_)), want_); \
	} while (0)

/* The call succeeds, after retries with progress. */
#define POST(net, call)                                                                            \
	do {                                                                                       \
		ssize_t got_;                                                                      \
		double until_ = now() + LIMIT_SECONDS;                                             \
		while ((got_ = (call)) == -FI_EAGAIN) {                                            \
			fi_cq_read((net)->cq, NULL, 0);                                            \
			if (now() > until_)                                                        \
				FAIL("%s stays at EAGAIN", #call);                                 \
		}                                                                                  \
		if (got_)                                                                          \
			FAIL("%s = %zd (%s)", #call, got_, fi_strerror((int)-got_));               \
	} while (0)

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* How a test wants its objects. Zero: the default. */
struct options {
	uint64_t caps;
	uint64_t tx_flags, rx_flags;
	uint64_t bind; /* besides FI_TRANSMIT | FI_RECV */
	enum fi_cq_format format;
	enum fi_av_type av_type;
	enum fi_threading threading;
	enum fi_wait_obj wait;
	bool auto_progress;
	uint32_t version;
};

struct net {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	fi_addr_t self, peer;
	uint8_t name[NAME_LEN], peer_name[NAME_LEN];
};

static inline struct fi_info *find(const struct options *o)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	hints->caps = o->caps ? o->caps : FI_MSG | FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = o->threading;
	hints->domain_attr->av_type = o->av_type;
	if (o->auto_progress)
		hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
	hints->tx_attr->op_flags = o->tx_flags;
	hints->rx_attr->op_flags = o->rx_flags;
	hints->fabric_attr->prov_name = strdup("rustmx");
	EXPECT(0, fi_getinfo(o->version ? o->version : FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(info && !info->next && !strcmp(info->fabric_attr->prov_name, "rustmx"));
	fi_freeinfo(hints);
	return info;
}

/* An endpoint in an open domain, with its own queue and vector. */
static inline void open_ep(struct net *n, const struct options *o)
{
	struct fi_cq_attr cq = { .format = o->format ? o->format : FI_CQ_FORMAT_TAGGED, .wait_obj = o->wait };
	struct fi_av_attr av = { .type = n->info->domain_attr->av_type };
	size_t len = sizeof n->name;
	EXPECT(0, fi_endpoint(n->domain, n->info, &n->ep, NULL));
	EXPECT(0, fi_cq_open(n->domain, &cq, &n->cq, NULL));
	EXPECT(0, fi_av_open(n->domain, &av, &n->av, NULL));
	EXPECT(0, fi_ep_bind(n->ep, &n->av->fid, 0));
	EXPECT(0, fi_ep_bind(n->ep, &n->cq->fid, FI_TRANSMIT | FI_RECV | o->bind));
	EXPECT(0, fi_enable(n->ep));
	EXPECT(0, fi_getname(&n->ep->fid, n->name, &len));
	CHECK(len == NAME_LEN);
	EXPECT(1, fi_av_insert(n->av, n->name, 1, &n->self, 0, NULL));
	CHECK(n->self == 0);
}

static inline void open_net(struct net *n, const struct options *o)
{
	memset(n, 0, sizeof *n);
	n->info = find(o);
	EXPECT(0, fi_fabric(n->info->fabric_attr, &n->fabric, NULL));
	EXPECT(0, fi_domain(n->fabric, n->info, &n->domain, NULL));
	open_ep(n, o);
}

static inline void tell(int sock, const void *buf, size_t len)
{
	CHECK(write(sock, buf, len) == (ssize_t)len);
}

static inline void hear(int sock, void *buf, size_t len)
{
	for (size_t have = 0; have < len;) {
		ssize_t n = read(sock, (char *)buf + have, len - have);
		if (n <= 0)
			FAIL("the other process is gone");
		have += n;
	}
}

static inline void barrier(int sock)
{
	char c = 'b';
	tell(sock, &c, 1);
	hear(sock, &c, 1);
}

/* Waits for the other side without letting our own endpoint stand still. */
static inline void barrier_progressing(int sock, struct net *n)
{
	char c = 'p';
	tell(sock, &c, 1);
	double until = now() + LIMIT_SECONDS;
	while (recv(sock, &c, 1, MSG_DONTWAIT) != 1) {
		if (errno != EAGAIN || now() > until)
			FAIL("the other process is gone");
		fi_cq_read(n->cq, NULL, 0);
		usleep(50);
	}
}

/* Exchanges names; the peer gets handle 1 here. */
static inline void meet(struct net *n, int sock)
{
	tell(sock, n->name, NAME_LEN);
	hear(sock, n->peer_name, NAME_LEN);
	EXPECT(1, fi_av_insert(n->av, n->peer_name, 1, &n->peer, 0, NULL));
	CHECK(n->peer == 1);
}

static inline void close_net(struct net *n)
{
	EXPECT(0, fi_close(&n->ep->fid));
	EXPECT(0, fi_close(&n->cq->fid));
	EXPECT(0, fi_close(&n->av->fid));
	EXPECT(0, fi_close(&n->domain->fid));
	EXPECT(0, fi_close(&n->fabric->fid));
	fi_freeinfo(n->info);
}

static inline void explain(struct fid_cq *cq, const char *what)
{
	struct fi_cq_err_entry e = { 0 };
	EXPECT(1, fi_cq_readerr(cq, &e, 0));
	FAIL("%s: error entry %d (%s): %s", what, e.err, fi_strerror(e.err), fi_cq_strerror(cq, e.prov_errno, e.err_data, NULL, 0));
}

/* The next completion of a FI_CQ_FORMAT_TAGGED queue. */
static inline struct fi_cq_tagged_entry next_of(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e;
	double until = now() + LIMIT_SECONDS;
	for (;;) {
		ssize_t n = fi_cq_read(cq, &e, 1);
		if (n == 1)
			return e;
		if (n == -FI_EAVAIL)
			explain(cq, "fi_cq_read");
		if (n != -FI_EAGAIN)
			FAIL("fi_cq_read = %zd", n);
		if (now() > until)
			FAIL("no completion after %d s", LIMIT_SECONDS);
	}
}

static inline struct fi_cq_tagged_entry next(struct net *n)
{
	return next_of(n->cq);
}

/* The completion of this context; others must not come. */
static inline struct fi_cq_tagged_entry next_is(struct net *n, void *context)
{
	struct fi_cq_tagged_entry e = next(n);
	if (e.op_context != context)
		FAIL("completion of %p, expected %p (flags %" PRIx64 ")", e.op_context, context, e.flags);
	return e;
}

/* The next entry must be an error. */
static inline struct fi_cq_err_entry next_error(struct net *n)
{
	struct fi_cq_err_entry e;
	struct fi_cq_tagged_entry plain;
	memset(&e, 0xee, sizeof e);
	e.err_data_size = 0;
	double until = now() + LIMIT_SECONDS;
	for (;;) {
		ssize_t got = fi_cq_read(n->cq, &plain, 1);
		if (got == -FI_EAVAIL)
			break;
		if (got != -FI_EAGAIN)
			FAIL("fi_cq_read = %zd, expected an error entry", got);
		if (now() > until)
			FAIL("no error entry after %d s", LIMIT_SECONDS);
	}
	EXPECT(1, fi_cq_readerr(n->cq, &e, 0));
	return e;
}

/* Nothing comes for a while. */
static inline void quiet(struct net *n)
{
	struct fi_cq_tagged_entry e;
	double until = now() + 0.05;
	while (now() < until)
		EXPECT(-FI_EAGAIN, fi_cq_read(n->cq, &e, 1));
}

static inline void fill(void *buf, size_t len, unsigned seed)
{
	uint8_t *b = buf;
	for (size_t i = 0; i < len; i++)
		b[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

static inline void check_fill(const void *buf, size_t len, unsigned seed)
{
	const uint8_t *b = buf;
	for (size_t i = 0; i < len; i++)
		if (b[i] != (uint8_t)(seed * 31 + i * 7 + (i >> 8)))
			FAIL("byte %zu of %zu is wrong", i, len);
}

/* A port that nobody uses now, below those that the kernel gives by itself. */
static inline int free_port(void)
{
	for (int i = 0; i < 20000; i++) {
		int port = 10000 + (getpid() + i) % 20000, sock = socket(AF_INET, SOCK_STREAM, 0);
		struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
		CHECK(sock >= 0);
		int free = !bind(sock, (struct sockaddr *)&at, sizeof at);
		close(sock);
		if (free)
			return port;
	}
	FAIL("no port is free");
}

/* Runs `side` in two processes, which are joined by a socket; the parent is rank 0. Neither has opened anything before. */
static inline void in_two_processes(void (*side)(int rank, int sock))
{
	int s[2], status;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	/* Whoever is killed takes the other one along: it would look for a peer that is gone. */
	pid_t parent = getpid(), child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
		if (getppid() != parent)
			_exit(1);
	}
	my_rank = child ? 0 : 1;
	close(s[my_rank ? 0 : 1]);
	side(my_rank, s[my_rank]);
	if (!child)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		FAIL("the other process ended with status %x", status);
	close(s[0]);
}
