#!/usr/bin/env bash
# Measures rustmx against the other ways of the same MPIs on this machine: latency, bandwidth,
# message rate, and an allreduce of more ranks than cores.
#
# Usage: ci/bench.sh [options]
#
#   --rounds N     rounds that count (default 5; with --quick: 2)
#   --quick        a fifth of the iterations
#   --only WORDS   these stacks and programs only, by comma: a stack (ompi5-sm), an MPI (ompi5), a way
#                  (rustmx, heap, sm, vader, ucx, tcp, own, shm), a program (sweep, rate, allreduce,
#                  reused, fresh, compare)
#   --max SIZE     longest message of reused and fresh, 1m to 32m (default 4m; 32m needs 8 GiB of memory and a minute
#                  more each round)
#   --offset BYTES buffers of reused and fresh begin so many bytes behind a page (default 0; 16 is where long blocks of
#                  glibc's malloc begin; goals for these, and plain loops, are of whole pages, and are
#                  not judged then)
#   --no-build     use target/release as it is
#   --json         the JSON on standard output instead of tables
#   --help
#
# Stacks: Open MPI 5 over rustmx, its sm, UCX and libfabric's tcp; Open MPI 4 over rustmx, its vader
# and UCX; MPICH over rustmx, its own shared memory and libfabric's shm; Intel MPI over rustmx and
# its own shared memory. A round runs one program under all ways of one MPI, one after the other (only
# those are compared); the rounds of all MPIs and programs take turns. Two ranks are pinned to cores 0
# and 1. For long messages (programs reused and fresh) rustmx with the preloaded heap and without it,
# Open MPI's sm and UCX, MPICH's and Intel MPI's own shared memory take turns in the same rounds, and
# `rustmx compare` says how near it comes to two processes that only copy. The hand-over of a cache
# line is measured before, between and after the runs of a round, and a round in which it moved by
# more than a third (the host moved a virtual core, or somebody worked) is discarded and repeated, up
# to twice as many rounds in all. Runs of rustmx must prove that they used it. Five full rounds take
# some 25 minutes: leave the machine alone meanwhile.
#
# Prints medians, spread, ratios and a verdict for each goal, and writes target/bench/*.json. Exits
# with 1 if a run failed; a missed goal is no failure, one without a steady round is unproven, or
# beside a stack of which a run failed, and one that plain loops in the same rounds do not reach either (mpi-tests/bench/loops.c)
# is the limit, if it takes no more than one and a half times as long as these.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/measure.sh"
measure bench.py rustmx-fi rustmx-heap rustmx-cli -- "$@"
