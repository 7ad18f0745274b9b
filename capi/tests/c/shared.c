/* Address vectors that processes share (fi_av(3), FI_SHARED_AV): one process inserts, others open the vector for reading and send
 * through its handles while the creator sits in a system call. */
#include "client.h"

#include <dirent.h>

static char av_name[64];

static int open_fds(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int open_shared(struct net *n, struct fi_av_attr *attr, uint64_t flags, struct fid_av **av)
{
	*attr = (struct fi_av_attr){ .type = n->info->domain_attr->av_type, .name = av_name, .flags = flags, .count = 10 };
	return fi_av_open(n->domain, attr, av, NULL);
}

static void must_not_change(struct net *n, struct fid_av *av)
{
	fi_addr_t at = 0;
	EXPECT(-FI_EACCES, fi_av_insert(av, n->name, 1, &at, 0, NULL));
	EXPECT(-FI_EACCES, fi_av_insertsvc(av, "127.0.0.1", "7000", &at, 0, NULL));
	EXPECT(-FI_EACCES, fi_av_insertsym(av, "127.0.0.1", 1, "7000", 1, &at, 0, NULL));
	EXPECT(-FI_EACCES, fi_av_remove(av, &at, 1, 0));
}

/* The creator. Its own endpoint uses a vector of its own. */
static void parent(struct net *n, int sock)
{
	struct fi_av_attr attr;
	struct fid_av *av, *again;
	struct fi_context2 c[2];
	char buf[2][16] = { 0 }, go;
	fi_addr_t at[2];
	uint8_t got[NAME_LEN];
	size_t len = sizeof got;
	CHECK(n->info->domain_attr->caps & FI_SHARED_AV);
	EXPECT(-FI_ENOENT, open_shared(n, &attr, FI_READ, &av));
	int before = open_fds();
	EXPECT(0, open_shared(n, &attr, 0, &av));
	CHECK(attr.map_addr);
	fi_addr_t *handles = attr.map_addr;
	CHECK(handles[0] == 0 && handles[9] == 9);
	/* Two names, and a hole before the one that counts. */
	EXPECT(1, fi_av_insert(av, n->name, 1, &at[0], 0, NULL));
	EXPECT(1, fi_av_insert(av, n->name, 1, &at[1], 0, NULL));
	CHECK(at[0] == 0 && at[1] == 1);
	EXPECT(0, fi_av_remove(av, &at[0], 1, 0));
	/* Who comes later opens it, too, and reads. */
	EXPECT(0, open_shared(n, &attr, 0, &again));
	must_not_change(n, again);
	EXPECT(0, fi_av_lookup(again, 1, got, &len));
	CHECK(!memcmp(got, n->name, NAME_LEN));
	EXPECT(0, fi_close(&again->fid));
	for (int i = 0; i < 2; i++)
		POST(n, fi_trecv(n->ep, buf[i], 16, NULL, FI_ADDR_UNSPEC, i, 0, &c[i]));
	tell(sock, "o", 1);
	/* Blocked: the other process opens the vector without our help. */
	hear(sock, &go, 1);
	EXPECT(1, fi_av_insert(av, n->name, 1, &at[0], 0, NULL));
	CHECK(at[0] == 0);
	EXPECT(0, fi_av_remove(av, &at[1], 1, 0));
	tell(sock, "c", 1);
	hear(sock, &go, 1);
	EXPECT(0, fi_close(&av->fid));
	CHECK(open_fds() == before);
	EXPECT(-FI_ENOENT, open_shared(n, &attr, FI_READ, &av));
	tell(sock, "g", 1);
	next(n);
	next(n);
	CHECK(!strcmp(buf[0], "through 1") && !strcmp(buf[1], "through 0"));
}

static void child(struct net *n, int sock)
{
	struct fi_av_attr attr;
	struct fid_av *av;
	struct fid_ep *ep;
	char go;
	uint8_t got[NAME_LEN];
	size_t len = sizeof got;
	hear(sock, &go, 1);
	EXPECT(0, open_shared(n, &attr, FI_READ, &av));
	must_not_change(n, av);
	fi_addr_t *handles = attr.map_addr;
	CHECK(handles && handles[1] == 1);
	EXPECT(-FI_EINVAL, fi_av_lookup(av, 0, got, &len));
	EXPECT(-FI_EINVAL, fi_av_lookup(av, 2, got, &len));
	EXPECT(0, fi_endpoint(n->domain, n->info, &ep, NULL));
	EXPECT(0, fi_ep_bind(ep, &av->fid, 0));
	EXPECT(0, fi_ep_bind(ep, &n->cq->fid, FI_TRANSMIT | FI_RECV));
	EXPECT(0, fi_enable(ep));
	POST(n, fi_tinject(ep, "through 1", 10, handles[1], 0));
	EXPECT(-FI_EADDRNOTAVAIL, fi_tinject(ep, "x", 2, handles[0], 0));
	tell(sock, "i", 1);
	hear(sock, &go, 1);
	/* What the creator changed meanwhile. */
	EXPECT(-FI_EADDRNOTAVAIL, fi_tinject(ep, "x", 2, handles[1], 0));
	POST(n, fi_tinject(ep, "through 0", 10, handles[0], 1));
	tell(sock, "d", 1);
	hear(sock, &go, 1);
	/* The creator closed it: what was open stays. */
	EXPECT(0, fi_av_lookup(av, 0, got, &len));
	EXPECT(0, fi_close(&ep->fid));
	EXPECT(0, fi_close(&av->fid));
}

static void side(int rank, int sock)
{
	struct net n;
	enum fi_av_type types[] = { FI_AV_TABLE, FI_AV_MAP };
	for (size_t i = 0; i < 2; i++) {
		open_net(&n, &(struct options){ .caps = FI_TAGGED | FI_SHARED_AV, .av_type = types[i] });
		if (rank == 0)
			parent(&n, sock);
		else
			child(&n, sock);
		barrier_progressing(sock, &n);
		close_net(&n);
	}
}

static void refusals(void)
{
	struct net n;
	struct fi_av_attr attr;
	struct fid_av *av;
	int status;
	open_net(&n, &(struct options){ 0 });
	attr = (struct fi_av_attr){ .flags = FI_READ };
	EXPECT(-FI_EINVAL, fi_av_open(n.domain, &attr, &av, NULL));
	attr = (struct fi_av_attr){ .name = "" };
	EXPECT(-FI_EINVAL, fi_av_open(n.domain, &attr, &av, NULL));
	char name[82];
	memset(name, 'n', sizeof name - 1);
	name[81] = 0;
	attr = (struct fi_av_attr){ .name = name };
	EXPECT(-FI_EMSGSIZE, fi_av_open(n.domain, &attr, &av, NULL));
	/* Full. */
	fi_addr_t at = 0;
	EXPECT(0, open_shared(&n, &attr, 0, &av));
	for (int i = 0; i < 4096; i++)
		EXPECT(1, fi_av_insert(av, n.name, 1, &at, 0, NULL));
	CHECK(at == 4095);
	int err = 0;
	EXPECT(0, fi_av_insert(av, n.name, 1, &at, FI_SYNC_ERR, &err));
	CHECK(err == FI_ENOMEM && at == FI_ADDR_NOTAVAIL);
	/* A forked child does not have the memory. */
	fflush(NULL);
	pid_t forked = fork();
	if (!forked) {
		uint8_t got[NAME_LEN];
		size_t len = sizeof got;
		at = 0;
		EXPECT(0, fi_av_insert(av, n.name, 1, &at, FI_SYNC_ERR, &err));
		CHECK(err == FI_EIO);
		at = 0;
		CHECK(fi_av_remove(av, &at, 1, 0) < 0);
		CHECK(fi_av_lookup(av, 0, got, &len) < 0);
		EXPECT(0, fi_close(&av->fid));
		_exit(0);
	}
	CHECK(waitpid(forked, &status, 0) == forked && WIFEXITED(status) && !WEXITSTATUS(status));
	EXPECT(0, fi_close(&av->fid));
	close_net(&n);
}

int main(void)
{
	snprintf(av_name, sizeof av_name, "rustmx-test-%d\n", (int)getpid());
	in_two_processes(side);
	refusals();
	printf("OK\n");
	return 0;
}
