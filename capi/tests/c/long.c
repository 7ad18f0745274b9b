/* Messages, reads and writes of more than 4 GiB, and 2 GiB of memory that is lent: no length on the way is a number of 32 bits.
 *
 *     long calls    a message that is awaited, one that comes early and is cut, a write and a read; a few megabytes stand for all of the memory
 *     long lent     a message out of a file that the program maps; as much memory as its length
 */
#define _GNU_SOURCE
#define LIMIT_SECONDS 90
#include "client.h"
#include <fcntl.h>
#include <rdma/fi_rma.h>
#include <sys/mman.h>

/* Longer than 4 GiB by little, so that a length cut to 32 bits is short. */
static const size_t LEN = ((size_t)4 << 30) + (3 << 20) + 5;
static const size_t LENT = ((size_t)2 << 30) + (1 << 20); /* whole pages: a file ends where its mapping does */
static const size_t AGAIN = 1 << 20;  /* the same memory is there again every so many bytes */
static const size_t OWN = 1 << 16;    /* but at these places it is not */
static const uint64_t KEY = 0x80000000000001f0ull;

enum { PLACES = 4 };

struct place {
	size_t at, len;
};

/* Where a length that was cut, or counted with a sign, would be seen. */
static void places(struct place p[PLACES])
{
	p[0] = (struct place){ ((size_t)2 << 30) - OWN, 2 * OWN };
	p[1] = (struct place){ ((size_t)4 << 30) - OWN, 2 * OWN };
	p[2] = (struct place){ LEN / 4096 * 4096 - OWN, OWN + LEN % 4096 };
	p[3] = (struct place){ LENT - OWN, OWN };
}

static uint8_t *memory(void)
{
	size_t whole = (LEN + AGAIN - 1) / AGAIN * AGAIN;
	struct place p[PLACES];
	int fd = memfd_create("again", MFD_CLOEXEC);
	uint8_t *m = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(fd >= 0 && !ftruncate(fd, AGAIN) && m != MAP_FAILED);
	for (size_t at = 0; at < whole; at += AGAIN)
		CHECK(mmap(m + at, AGAIN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == m + at);
	places(p);
	for (int i = 0; i < PLACES; i++)
		CHECK(mmap(m + p[i].at, p[i].len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	close(fd);
	return m;
}

static void draw(uint8_t *m, unsigned seed)
{
	struct place p[PLACES];
	fill(m, AGAIN, seed);
	places(p);
	for (int i = 0; i < PLACES; i++)
		fill(m + p[i].at, p[i].len, seed + 1 + i);
}

static void check(uint8_t *m, unsigned seed)
{
	struct place p[PLACES];
	places(p);
	for (int i = 0; i < PLACES; i++)
		check_fill(m + p[i].at, p[i].len, seed + 1 + i);
	check_fill(m, AGAIN, seed);
}

/* A message for which a receive is posted, and one for which a shorter one comes late. */
enum { POSTED, LATE, TURNS };

static void sends(int sock, struct net *n, uint8_t *m)
{
	struct fi_context2 c;
	for (int turn = 0; turn < TURNS; turn++) {
		draw(m, 10 * turn);
		if (turn == POSTED)
			barrier_progressing(sock, n);
		POST(n, fi_tsend(n->ep, m, LEN, NULL, n->peer, turn, &c));
		if (turn == LATE)
			barrier_progressing(sock, n);
		next_is(n, &c);
	}
}

static void receives(int sock, struct net *n, uint8_t *m)
{
	static uint8_t tail[2 << 16];
	struct fi_context2 c;
	struct place p[PLACES];
	size_t cut = 4321;
	for (int turn = 0; turn < TURNS; turn++) {
		draw(m, 5);
		if (turn == LATE) {
			barrier_progressing(sock, n);
			quiet(n);
		}
		POST(n, fi_trecv(n->ep, m, turn == LATE ? LEN - cut : LEN, NULL, n->peer, turn, 0, &c));
		if (turn == POSTED) {
			barrier_progressing(sock, n);
			CHECK(next_is(n, &c).len == LEN);
			check(m, 10 * turn);
			continue;
		}
		struct fi_cq_err_entry e = next_error(n);
		CHECK(e.err == FI_ETRUNC && e.op_context == &c && e.len == LEN - cut && e.olen == cut);
		places(p);
		check_fill(m + p[1].at, p[1].len, 10 * turn + 2);
		/* What is behind its end is as it was. */
		fill(tail, p[2].len, 5 + 3);
		CHECK(!memcmp(m + LEN - cut, tail + p[2].len - cut, cut));
	}
}

static void reads_and_writes(int rank, int sock, struct net *n, uint8_t *m)
{
	struct fid_mr *mr;
	struct fi_context2 c;
	draw(m, rank == 0 ? 50 : 60);
	EXPECT(0, fi_mr_reg(n->domain, m, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	barrier_progressing(sock, n);
	if (rank == 0) {
		POST(n, fi_write(n->ep, m, LEN, NULL, n->peer, 0, KEY, &c));
		CHECK(next_is(n, &c).flags == (FI_RMA | FI_WRITE));
	}
	barrier_progressing(sock, n);
	if (rank == 1) {
		check(m, 50);
		draw(m, 70);
	}
	barrier_progressing(sock, n);
	if (rank == 0) {
		POST(n, fi_read(n->ep, m, LEN, NULL, n->peer, 0, KEY, &c));
		CHECK(next_is(n, &c).flags == (FI_RMA | FI_READ));
		check(m, 70);
		/* One byte behind the end. */
		POST(n, fi_read(n->ep, m, OWN, NULL, n->peer, LEN - OWN + 1, KEY, &c));
		CHECK(next_error(n).err == FI_EACCES);
	}
	barrier_progressing(sock, n);
	EXPECT(0, fi_close(&mr->fid));
}

static void calls(int rank, int sock)
{
	struct net n;
	open_net(&n, &(struct options){ .caps = FI_TAGGED | FI_RMA });
	CHECK(n.info->ep_attr->max_msg_size >= LEN);
	meet(&n, sock);
	uint8_t *m = memory();
	(rank == 0 ? sends : receives)(sock, &n, m);
	reads_and_writes(rank, sock, &n, m);
	barrier(sock);
	close_net(&n);
}

static void lent(int rank, int sock)
{
	struct net n;
	struct fi_context2 c;
	struct place p[PLACES];
	int fd = memfd_create("lent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint8_t *m;
	places(p);
	open_net(&n, &(struct options){ .caps = FI_TAGGED });
	meet(&n, sock);
	if (rank == 0) {
		/* Lent is only what cannot become shorter. */
		CHECK(fd >= 0 && !ftruncate(fd, LENT) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
		CHECK((m = mmap(NULL, LENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
		fill(m + p[0].at, p[0].len, 2);
		fill(m + p[3].at, p[3].len, 3);
	} else {
		m = memory();
	}
	/* A file is looked at when it comes again. */
	for (int turn = 0; turn < 4; turn++) {
		if (rank == 0) {
			POST(&n, fi_tsend(n.ep, m, LENT, NULL, n.peer, turn, &c));
			next_is(&n, &c);
			continue;
		}
		draw(m, 5);
		POST(&n, fi_trecv(n.ep, m, LENT, NULL, n.peer, turn, 0, &c));
		CHECK(next_is(&n, &c).len == LENT);
		check_fill(m + p[0].at, p[0].len, 2);
		check_fill(m + p[3].at, p[3].len, 3);
	}
	barrier(sock);
	close_net(&n);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	in_two_processes(!strcmp(argv[1], "lent") ? lent : calls);
	printf("OK\n");
	return 0;
}
