/* Peers that cannot be connected to: each send ends with an error, and who runs the job is told why. (The test reads standard error.) */
#include "client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>

static struct net n;

static struct sockaddr_in place(const char *ip, uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	CHECK(inet_pton(AF_INET, ip, &at.sin_addr) == 1);
	return at;
}

/* A port of this address that is bound; with `listens`, one that answers nobody, as behind a firewall: its backlog is full. */
static uint16_t port_at(const char *ip, bool listens)
{
	struct sockaddr_in at = place(ip, 0);
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof at));
	CHECK(!getsockname(fd, (struct sockaddr *)&at, &len));
	if (listens) {
		CHECK(!listen(fd, 0));
		for (int i = 0; i < 4; i++) {
			int caller = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
			CHECK(caller >= 0 && (!connect(caller, (struct sockaddr *)&at, sizeof at) || errno == EINPROGRESS));
			usleep(100000);
		}
	}
	return ntohs(at.sin_port);
}

/* A send to whoever listens there. Its error, at once or later. */
static void fails(const char *ip, uint16_t port, int err)
{
	static char buf[8];
	struct fi_context2 c;
	char service[8];
	fi_addr_t to;
	snprintf(service, sizeof service, "%u", port);
	EXPECT(1, fi_av_insertsvc(n.av, ip, service, &to, 0, NULL));
	ssize_t got = fi_tsend(n.ep, buf, sizeof buf, NULL, to, 1, &c);
	if (got == 0)
		got = -next_error(&n).err;
	EXPECT(-err, got);
}

int main(void)
{
	open_net(&n, &(struct options){ 0 });
	fails("127.0.0.8", port_at("127.0.0.8", false), FI_ETIMEDOUT);
	/* Two peers on one host. */
	for (int i = 0; i < 2; i++)
		fails("127.0.0.9", port_at("127.0.0.9", true), FI_ETIMEDOUT);
	/* No descriptors are left for two more, and none can be had. */
	uint16_t port = port_at("127.0.0.7", false);
	int last = open("/dev/null", O_RDONLY);
	struct rlimit all = { last + 1, last + 1 };
	CHECK(last >= 0 && !setrlimit(RLIMIT_NOFILE, &all));
	for (int i = 0; i < 2; i++)
		fails("127.0.0.7", port + i, FI_ENOMEM);
	close(last);
	close_net(&n);
	puts("OK");
	return 0;
}
