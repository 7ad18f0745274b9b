/* Authorization keys of endpoints and domains (fi_endpoint(3), fi_domain(3)): who has the same is talked to, others are refused. */
#include "client.h"

#define LIMIT_KEY 512

static struct fi_info *asking(const char *ep_key, const char *domain_key)
{
	struct fi_info *hints = fi_allocinfo();
	hints->caps = FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("rustmx");
	if (ep_key) {
		hints->ep_attr->auth_key = (uint8_t *)strdup(ep_key);
		hints->ep_attr->auth_key_size = strlen(ep_key);
	}
	if (domain_key) {
		hints->domain_attr->auth_key = (uint8_t *)strdup(domain_key);
		hints->domain_attr->auth_key_size = strlen(domain_key);
	}
	return hints;
}

static void open_keyed(struct net *n, const char *ep_key, const char *domain_key)
{
	struct fi_info *hints = asking(ep_key, domain_key);
	memset(n, 0, sizeof *n);
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &n->info));
	fi_freeinfo(hints);
	EXPECT(0, fi_fabric(n->info->fabric_attr, &n->fabric, NULL));
	EXPECT(0, fi_domain(n->fabric, n->info, &n->domain, NULL));
	open_ep(n, &(struct options){ .caps = FI_TAGGED });
}

/* What is asked for is in the answer, in memory of its own, and a copy of it (fi_dupinfo) has it, too. */
static void hints(void)
{
	struct fi_info *hints = asking("of the endpoint", "of the domain"), *info, *copy;
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	copy = fi_dupinfo(info);
	struct fi_info *both[2] = { info, copy };
	for (int i = 0; i < 2; i++) {
		EXPECT(15, both[i]->ep_attr->auth_key_size);
		EXPECT(13, both[i]->domain_attr->auth_key_size);
		CHECK(both[i]->ep_attr->auth_key != hints->ep_attr->auth_key);
		CHECK(!memcmp(both[i]->ep_attr->auth_key, "of the endpoint", 15));
		CHECK(!memcmp(both[i]->domain_attr->auth_key, "of the domain", 13));
	}
	fi_freeinfo(copy);
	fi_freeinfo(info);
	/* Longer than any is. */
	free(hints->ep_attr->auth_key);
	hints->ep_attr->auth_key = calloc(1, LIMIT_KEY + 1);
	hints->ep_attr->auth_key_size = LIMIT_KEY + 1;
	EXPECT(-FI_ENODATA, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	hints->ep_attr->auth_key_size = LIMIT_KEY;
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	fi_freeinfo(info);
	fi_freeinfo(hints);
	/* Without keys there are none. */
	hints = asking(NULL, NULL);
	EXPECT(0, fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(!info->ep_attr->auth_key && !info->ep_attr->auth_key_size);
	CHECK(!info->domain_attr->auth_key && !info->domain_attr->auth_key_size);
	fi_freeinfo(hints);
	fi_freeinfo(info);
}

/* Rank 0 sends to rank 1; `err`: what comes of it. */
static void try(int rank, int sock, const char *const keys[2][2], int err)
{
	struct net n;
	struct fi_context2 c;
	static char buf[100000];
	open_keyed(&n, keys[rank][0], keys[rank][1]);
	meet(&n, sock);
	if (rank == 0) {
		fill(buf, sizeof buf, 3);
		POST(&n, fi_tsend(n.ep, buf, sizeof buf, NULL, n.peer, 1, &c));
		if (err) {
			struct fi_cq_err_entry e = next_error(&n);
			char said[400];
			fi_cq_strerror(n.cq, e.prov_errno, e.err_data, said, sizeof said);
			EXPECT(err, e.err);
			if (!strstr(said, "key"))
				FAIL("it says: %s", said);
		} else {
			next_is(&n, &c);
		}
	} else {
		POST(&n, fi_trecv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, 1, 0, &c));
		if (!err) {
			next_is(&n, &c);
			check_fill(buf, sizeof buf, 3);
		}
	}
	barrier_progressing(sock, &n);
	close_net(&n);
}

static void side(int rank, int sock)
{
	const char *const same[2][2] = { { "one key", NULL }, { "one key", "another" } };
	const char *const domain[2][2] = { { NULL, "one key" }, { "one key", NULL } };
	const char *const others[2][2] = { { "one key", NULL }, { "another", "one key" } };
	const char *const none[2][2] = { { "one key", NULL }, { NULL, NULL } };
	const char *const only[2][2] = { { NULL, NULL }, { NULL, "one key" } };
	hints();
	try(rank, sock, same, 0);
	try(rank, sock, domain, 0);
	try(rank, sock, others, FI_EACCES);
	try(rank, sock, none, FI_EACCES);
	try(rank, sock, only, FI_EACCES);
}

int main(void)
{
	in_two_processes(side);
	printf("OK\n");
	return 0;
}
