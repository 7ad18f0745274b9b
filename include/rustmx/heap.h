/* What the preloadable heap of rustmx (librustmx_heap.so) tells a library in the same process: where a buffer that malloc returned
 * lies in memory that another process can map.
 *
 *	const struct rustmx_heap_1 *heap = dlsym(RTLD_DEFAULT, RUSTMX_HEAP_1);
 *	if (heap && !heap->find(buffer, &range))
 *		...
 *
 * Nothing is found if the heap is not preloaded or is switched off (RUSTMX_HEAP=off). Later versions only append to the structure of
 * functions; what changes otherwise gets another name.
 *
 * What stays true. An arena's addresses stay mapped, by the same file, for the life of the process; the file neither grows nor shrinks
 * (sealed). So a range that was found holds for every address between base and base + length at which the program has a block, and a
 * mapping of the file shows what the program sees there. A freed block's pages may be given back: they read as zero then, in every
 * mapping, and are used again later. fork ends all of it for the child: its blocks stay where they are and are not found any more;
 * new ones are found in arenas of another generation.
 *
 * Not of memory that the program itself maps over a block (mmap with MAP_FIXED, mremap, shmat with SHM_REMAP): what is sent of it, and
 * what a forked child gets, is what the file holds.
 *
 * What exporting means. A descriptor is for a whole arena: who has it can read every long block of the program.
 *
 * All functions may be called by any thread at any time, in a signal handler too. They do not change errno.
 */
#ifndef RUSTMX_HEAP_H
#define RUSTMX_HEAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RUSTMX_HEAP_1 "rustmx_heap_1"

/* Where an address lies. */
struct rustmx_heap_range {
	int fd;              /* the arena's file; the heap's own: duplicate it, better by open(), never close it */
	uint32_t reserved;   /* 0 */
	uint64_t generation; /* of the arena: no other of this process has or had the same */
	void *base;          /* first address of the arena */
	uint64_t length;     /* bytes of the arena and of its file; a sparse file, and not all of it need be mapped here yet */
	uint64_t offset;     /* of the address, in both */
};

struct rustmx_heap_1 {
	size_t size; /* of this structure, as the heap knows it */

	/* Where an address lies: 0, or -ENOENT: not ours (a short block, the stack, memory from elsewhere, or from before a fork).
	 * No system call, no lock. The descriptor may have been closed by a program that closes what it does not know. */
	int (*find)(const void *address, struct rustmx_heap_range *range);

	/* A new descriptor (close-on-exec, the caller's) of the arena in which an address lies, for reading only unless `writable`; or
	 * -ENOENT as above, -EBADF if the program closed the heap's own, -EMFILE, ... It has been checked: it is that arena. */
	int (*open)(const void *address, int writable);
};

#ifdef __cplusplus
}
#endif

#endif
