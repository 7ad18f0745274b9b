/* What was accepted leaves, also if its sender does not call again: by inject, which ends with the call, at first contact, behind another one, after a
 * while without anything, more than there is room for, and more than a receiver takes unasked. The sender waits for a word that has nothing to do with the fabric. And a domain may be closed just
 * while something of it is looked after. */
#include "client.h"

#define FEW 5
#define MOST 2000000
/* As long as may be, and more of them than go without being asked for. */
#define LONG_ONES 200
static char text[8192];

static void send_few(struct net *n, fi_addr_t to, uint64_t tag)
{
	for (uint64_t i = 0; i < FEW; i++) {
		uint64_t word = tag + i;
		EXPECT(0, fi_tinject(n->ep, &word, sizeof word, to, tag));
	}
}

static void take(struct net *n, uint64_t tag, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t word = 0;
		struct fi_context2 c;
		POST(n, fi_trecv(n->ep, &word, sizeof word, NULL, FI_ADDR_UNSPEC, tag, 0, &c));
		next_is(n, &c);
		CHECK(word == tag + i);
	}
}

static void send_long(struct net *n, fi_addr_t to, uint64_t tag)
{
	size_t size = n->info->tx_attr->inject_size;
	CHECK(size == sizeof text);
	for (int i = 0; i < LONG_ONES; i++) {
		memset(text, i, size);
		POST(n, fi_tinject(n->ep, text, size, to, tag));
	}
	memset(text, 0xff, size);
}

static void take_long(struct net *n, uint64_t tag)
{
	for (int i = 0; i < LONG_ONES; i++) {
		struct fi_context2 c;
		POST(n, fi_trecv(n->ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, tag, 0, &c));
		next_is(n, &c);
		for (size_t at = 0; at < sizeof text; at++)
			CHECK((unsigned char)text[at] == i);
	}
}

static void sender(int sock, struct net *n, fi_addr_t to)
{
	char word;
	/* Who has polled for a while looks at calls seldom. */
	for (int i = 0; i < 5000; i++)
		fi_cq_read(n->cq, NULL, 0);
	send_few(n, to, 1000);
	hear(sock, &word, 1);
	send_few(n, to, 2000);
	hear(sock, &word, 1);
	/* Whoever looks after this has fallen asleep. */
	usleep(1500 * 1000);
	send_few(n, to, 3000);
	hear(sock, &word, 1);
	send_long(n, to, 3500);
	hear(sock, &word, 1);
	uint64_t count = 0;
	for (ssize_t ret = 0; count < MOST && ret != -FI_EAGAIN; count += !ret) {
		uint64_t text = 4000 + count;
		ret = fi_tinject(n->ep, &text, sizeof text, to, 4000);
		CHECK(!ret || ret == -FI_EAGAIN);
	}
	CHECK(count > 100 && count < MOST);
	tell(sock, &count, sizeof count);
	hear(sock, &word, 1);
}

/* Whoever looks after what was kept back takes his first turn one to some milliseconds later, and falls asleep some more later. */
static void close_meanwhile(const uint8_t *name)
{
	for (int i = 0; i < 60; i++) {
		struct net n;
		fi_addr_t to;
		open_net(&n, &(struct options){ .caps = FI_TAGGED });
		EXPECT(1, fi_av_insert(n.av, name, 1, &to, 0, NULL));
		send_few(&n, to, 5000);
		usleep(500 + i * 300);
		close_net(&n);
	}
}

static void side(int rank, int sock)
{
	struct net n;
	uint8_t name[NAME_LEN];
	open_net(&n, &(struct options){ .caps = FI_TAGGED });
	if (rank == 0) {
		fi_addr_t to;
		hear(sock, name, NAME_LEN);
		EXPECT(1, fi_av_insert(n.av, name, 1, &to, 0, NULL));
		sender(sock, &n, to);
		close_meanwhile(name);
		tell(sock, "x", 1);
	} else {
		uint64_t count;
		tell(sock, n.name, NAME_LEN);
		for (uint64_t tag = 1000; tag <= 3000; tag += 1000) {
			take(&n, tag, FEW);
			tell(sock, "x", 1);
		}
		take_long(&n, 3500);
		tell(sock, "x", 1);
		hear(sock, &count, sizeof count);
		take(&n, 4000, count);
		tell(sock, "x", 1);
		/* It takes no turns, and keeps nothing back. */
		char word;
		hear(sock, &word, 1);
	}
	barrier(sock);
	close_net(&n);
}

int main(void)
{
	in_two_processes(side);
	printf("OK\n");
	return 0;
}
