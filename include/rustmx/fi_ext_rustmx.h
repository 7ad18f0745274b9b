/* What the libfabric provider "rustmx" offers beyond libfabric's own API: its counters by name, and the way that an operation
 * would go, with the reason. Opened with fi_open_ops(3):
 *
 *	struct fi_rustmx_ops_1 *ops;
 *	if (!fi_open_ops(&ep->fid, FI_RUSTMX_OPS_1, 0, (void **)&ops, NULL))
 *		ops->plan(ep, peer, FI_RUSTMX_MSG, 100000, &plan);
 *
 * on a domain or an endpoint. Later versions only append to these structures; what changes otherwise gets another name. None of it is
 * meant for a data path. It takes the domain's lock, as any other control call.
 */
#ifndef FI_EXT_RUSTMX_H
#define FI_EXT_RUSTMX_H

#include <stddef.h>
#include <stdint.h>

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FI_RUSTMX_OPS_1 "rustmx_ops_1"

/* One counter. The name is static. The list is that of FI_RUSTMX_STATS=1; its order may change between versions. What each
 * one means: provider/docs/counters.md. */
struct fi_rustmx_counter {
	const char *name;
	uint64_t value;
};

/* What is to be moved. */
enum fi_rustmx_movement {
	FI_RUSTMX_MSG,    /* a message, tagged or not */
	FI_RUSTMX_READ,   /* fi_read */
	FI_RUSTMX_WRITE,  /* fi_write */
	FI_RUSTMX_ATOMIC, /* fi_atomic */
};

/* How it would go if it were started now. No buffer is named, so a message out of memory that is lent to the peer may go otherwise
 * (by "mapped"). */
struct fi_rustmx_plan {
	char how[16];   /* "inline", "eager", "stream", "syscall", "direct", "one_sided" */
	uint64_t first; /* sizes for which the table says the same: from here ... */
	uint64_t last;  /* ... up to here, inclusive */
	char why[488];  /* a sentence for people, cut if need be */
};

struct fi_rustmx_ops_1 {
	size_t size; /* of this structure, as the provider knows it */

	/* Writes up to *count counters of an endpoint, or the sums of a domain's open endpoints, and the number there is to
	 * *count. 0, -FI_ETOOSMALL if that was more than there was room for, -FI_EINVAL. */
	int (*counters)(struct fid *fid, struct fi_rustmx_counter *counters, size_t *count);

	/* How `len` bytes would go to `peer`. 0, or why they cannot go there: -FI_EADDRNOTAVAIL (not in the address vector),
	 * -FI_ECONNRESET (it is gone), ...; -FI_EOPBADSTATE before fi_enable. */
	int (*plan)(struct fid_ep *ep, fi_addr_t peer, enum fi_rustmx_movement what, size_t len, struct fi_rustmx_plan *plan);
};

#ifdef __cplusplus
}
#endif

#endif
