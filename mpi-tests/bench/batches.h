/* The middle of some timed batches: what all measuring programs here report, because one disturbance
 * of the machine cannot move it. */
#ifndef RUSTMX_BATCHES_H
#define RUSTMX_BATCHES_H

#include <stdlib.h>

static inline int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values; the first is the least afterwards. */
static inline double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

#endif
