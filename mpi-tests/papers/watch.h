/* A userfaultfd that never catches a page fault: ranges are registered in write-protect mode, nothing is ever protected, and
 * what is left is the kernel's word when somebody unmaps, moves or discards them. UFFD_USER_MODE_ONLY: no privilege is needed. */
#ifndef RUSTMX_WATCH_H
#define RUSTMX_WATCH_H

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "measure.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* Negative if this kernel or this container does not have it. */
static inline int open_watch(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) == 0) return fd;
    close(fd);
    return -1;
}

static inline int watch(int fd, void *at, size_t bytes) {
    struct uffdio_register r = {.range = {(unsigned long)at, bytes}, .mode = UFFDIO_REGISTER_MODE_WP};
    return ioctl(fd, UFFDIO_REGISTER, &r);
}

static inline int unwatch(int fd, void *at, size_t bytes) {
    struct uffdio_range r = {(unsigned long)at, bytes};
    return ioctl(fd, UFFDIO_UNREGISTER, &r);
}

#endif
