/* Multi-receive buffers, and every completion format with selective completion and delivery complete. */
#include "client.h"

#define BUFFER 4096

/* As MPICH: untagged messages into a few large buffers, posted again when given back. */
static void multi_receive(int rank, int sock)
{
	enum { COUNT = 500 };
	struct net n;
	struct fi_context2 c[2];
	static uint8_t buf[2][BUFFER];
	size_t min = 600, len = sizeof min;
	open_net(&n, &(struct options){ .caps = FI_MSG | FI_MULTI_RECV, .bind = FI_SELECTIVE_COMPLETION });
	CHECK(n.info->caps & FI_MULTI_RECV);
	meet(&n, sock);
	EXPECT(0, fi_setopt(&n.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
	min = 0;
	EXPECT(0, fi_getopt(&n.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, &len));
	CHECK(min == 600 && len == sizeof min);
	EXPECT(-FI_EINVAL, fi_setopt(&n.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, 1));
	EXPECT(-FI_ENOPROTOOPT, fi_setopt(&n.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &min, sizeof min));
	EXPECT(-FI_ENOPROTOOPT, fi_getopt(&n.ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_MIN, &min, &len));

	if (rank == 0) {
		uint8_t out[600];
		for (int i = 0; i < COUNT; i++) {
			size_t size = 1 + (i * 37) % 600;
			fill(out, size, i);
			if (size <= n.info->tx_attr->inject_size) {
				POST(&n, fi_injectdata(n.ep, out, size, i, n.peer));
			} else {
				struct iovec v = { out, size };
				struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = n.peer, .context = &c[0], .data = i };
				POST(&n, fi_sendmsg(n.ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA));
				next_is(&n, &c[0]);
			}
		}
		barrier_progressing(sock, &n);
		close_net(&n);
		return;
	}
	usleep(20000); /* some messages are there before the first buffer */
	int posted = 0, seen = 0;
	bool in_use[2] = { false, false };
	/* Messages lie behind each other in their order, but one that had to be asked for may be whole after the next one. */
	static bool came[COUNT], used[2][BUFFER];
	while (seen < COUNT) {
		for (int b = 0; b < 2; b++) {
			if (in_use[b])
				continue;
			struct iovec v = { buf[b], BUFFER };
			struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &c[b] };
			POST(&n, fi_recvmsg(n.ep, &m, FI_MULTI_RECV | FI_COMPLETION));
			in_use[b] = true;
			memset(used[b], 0, sizeof used[b]);
			posted++;
		}
		struct fi_cq_tagged_entry e = next(&n);
		int b = e.op_context == &c[1];
		CHECK(e.op_context == &c[b] && in_use[b]);
		if (e.flags & FI_RECV) {
			CHECK(e.data < COUNT && !came[e.data]);
			came[e.data] = true;
			size_t size = 1 + (e.data * 37) % 600, at = (uint8_t *)e.buf - buf[b];
			CHECK(e.len == size && at < BUFFER && at + size <= BUFFER && (uintptr_t)e.buf % 8 == 0);
			for (size_t i = at; i < at + size; i++) {
				CHECK(!used[b][i]);
				used[b][i] = true;
			}
			check_fill(e.buf, size, e.data);
			seen++;
		}
		if (e.flags & FI_MULTI_RECV)
			in_use[b] = false;
		else
			CHECK(e.flags & FI_RECV);
	}
	CHECK(posted > 20);
	/* As Intel MPI at the end: cancel what is posted, wait for the entries. */
	int posted_now = in_use[0] + in_use[1];
	for (int b = 0; b < 2; b++)
		if (in_use[b])
			EXPECT(0, fi_cancel(&n.ep->fid, &c[b]));
	for (int k = 0; k < posted_now; k++)
		CHECK(next_error(&n).err == FI_ECANCELED);
	barrier_progressing(sock, &n);
	close_net(&n);
}

/* A receive whose default flags make every buffer a multi-receive one (fabtests). */
static void multi_receive_by_default(int rank, int sock)
{
	struct net n;
	struct fi_context2 c;
	static uint8_t buf[BUFFER];
	open_net(&n, &(struct options){ .caps = FI_MSG | FI_MULTI_RECV, .rx_flags = FI_MULTI_RECV });
	meet(&n, sock);
	if (rank == 0) {
		for (int i = 0; i < 3; i++)
			POST(&n, fi_inject(n.ep, "abcdefgh", 8, n.peer));
	} else {
		POST(&n, fi_recv(n.ep, buf, BUFFER, NULL, FI_ADDR_UNSPEC, &c));
		for (int i = 0; i < 3; i++) {
			struct fi_cq_tagged_entry e = next_is(&n, &c);
			CHECK(e.len == 8 && !memcmp(e.buf, "abcdefgh", 8));
		}
	}
	barrier_progressing(sock, &n);
	close_net(&n);
}

static void formats(int rank, int sock)
{
	static const struct { enum fi_cq_format format; size_t size; } all[] = {
		{ FI_CQ_FORMAT_CONTEXT, sizeof(struct fi_cq_entry) },
		{ FI_CQ_FORMAT_MSG, sizeof(struct fi_cq_msg_entry) },
		{ FI_CQ_FORMAT_DATA, sizeof(struct fi_cq_data_entry) },
		{ FI_CQ_FORMAT_TAGGED, sizeof(struct fi_cq_tagged_entry) },
	};
	for (int f = 0; f < 4; f++) {
		enum { COUNT = 5 };
		struct net n;
		struct fi_context2 c[COUNT];
		char in[COUNT][16];
		open_net(&n, &(struct options){ .caps = FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE, .format = all[f].format });
		meet(&n, sock);
		if (rank == 0) {
			for (int i = 0; i < COUNT; i++)
				POST(&n, fi_tinjectdata(n.ep, "0123456789", i, 1000 + i, n.peer, i));
		} else {
			uint8_t entries[COUNT * 64];
			fi_addr_t from[COUNT];
			memset(entries, 0xaa, sizeof entries);
			memset(from, 0xaa, sizeof from);
			for (int i = 0; i < COUNT; i++)
				POST(&n, fi_trecv(n.ep, in[i], 16, NULL, n.peer, i, 0, &c[i]));
			for (int have = 0; have < COUNT;) {
				ssize_t got = fi_cq_readfrom(n.cq, entries + have * all[f].size, COUNT - have, from + have);
				CHECK(got > 0 || got == -FI_EAGAIN);
				have += got > 0 ? got : 0;
			}
			for (int i = 0; i < COUNT; i++) {
				struct fi_cq_tagged_entry e = { 0 };
				memcpy(&e, entries + i * all[f].size, all[f].size);
				CHECK(e.op_context == &c[i] && from[i] == n.peer);
				if (all[f].size > 8)
					CHECK(e.len == (size_t)i && e.flags == (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA));
				if (all[f].size > 24)
					CHECK(e.data == 1000u + i);
				if (all[f].size > 40)
					CHECK(e.tag == (unsigned)i);
			}
			for (size_t i = COUNT * all[f].size; i < sizeof entries; i++)
				CHECK(entries[i] == 0xaa);
		}
		barrier_progressing(sock, &n);
		close_net(&n);
	}
}

/* FI_SELECTIVE_COMPLETION as Open MPI (completion by default) and as a client that asks each time; delivery complete. */
static void selective(int rank, int sock)
{
	for (int by_default = 0; by_default < 2; by_default++) {
		struct net n;
		struct fi_context2 c[3];
		static char buf[100000];
		uint64_t flags = by_default ? FI_COMPLETION | FI_DELIVERY_COMPLETE : 0;
		open_net(&n, &(struct options){
			.caps = FI_TAGGED, .bind = FI_SELECTIVE_COMPLETION, .tx_flags = flags, .rx_flags = flags & FI_COMPLETION });
		CHECK(n.info->tx_attr->op_flags == flags);
		meet(&n, sock);
		uint64_t now_flags = FI_TRANSMIT;
		EXPECT(0, fi_control(&n.ep->fid, FI_GETOPSFLAG, &now_flags));
		CHECK(now_flags == flags);
		struct iovec v = { buf, 8 };
		struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .tag = 2, .context = &c[1] };
		if (rank == 0) {
			POST(&n, fi_tsend(n.ep, buf, sizeof buf, NULL, n.peer, 1, &c[0]));
			if (by_default)
				next_is(&n, &c[0]);
			m.addr = n.peer;
			POST(&n, fi_tsendmsg(n.ep, &m, 0));
			quiet(&n);
			m.tag = 3;
			POST(&n, fi_tsendmsg(n.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
			next_is(&n, &c[1]);
			/* The default changed after the fact. */
			uint64_t turned = FI_TRANSMIT | (by_default ? 0 : FI_COMPLETION);
			EXPECT(0, fi_control(&n.ep->fid, FI_SETOPSFLAG, &turned));
			POST(&n, fi_tsend(n.ep, buf, 8, NULL, n.peer, 4, &c[2]));
			if (by_default)
				quiet(&n);
			else
				next_is(&n, &c[2]);
		} else {
			POST(&n, fi_trecv(n.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, 1, 0, &c[0]));
			if (by_default)
				next_is(&n, &c[0]);
			m.addr = FI_ADDR_UNSPEC;
			POST(&n, fi_trecvmsg(n.ep, &m, 0));
			m.tag = 3;
			m.context = &c[2];
			POST(&n, fi_trecvmsg(n.ep, &m, FI_COMPLETION));
			next_is(&n, &c[2]);
			POST(&n, fi_trecv(n.ep, buf, 8, NULL, FI_ADDR_UNSPEC, 4, 0, &c[1]));
			if (by_default)
				next_is(&n, &c[1]);
		}
		barrier_progressing(sock, &n);
		quiet(&n);
		barrier(sock); /* its end must not disturb our quiet */
		close_net(&n);
	}
}

static void side(int rank, int sock)
{
	multi_receive(rank, sock);
	multi_receive_by_default(rank, sock);
	formats(rank, sock);
	selective(rank, sock);
}

int main(void)
{
	in_two_processes(side);
	printf("OK\n");
	return 0;
}
