#!/usr/bin/env bash
# Measures half a round trip of long messages over rustmx and over the other ways, on a host that does
# not hold still: all of them are launched at once, and take turns of 10 ms on the same two cores.
#
# Usage: ci/turns.sh [options]
#
#   --rounds N     rounds through all sizes (default 3)
#   --seconds S    time for one size in one round, shared by all stacks (default 1.5)
#   --sizes LIST   sizes up to 4m by comma, such as 4k,40000,1m (default 1k to 4m, all powers of two, and 40000)
#   --only WORDS   these only, by comma: a stack (ompi5-rustmx, ompi5-heap, ompi5-sm, ompi5-ucx, mpich-own,
#                  impi-own), or a program (reused: buffers untouched; fresh: rewritten before each message)
#   --also WORD=DIRECTORY[,NAME=VALUE]…  Open MPI 5 over the provider in that directory, too, with these
#                  environment variables, under that name: another build, or other settings. Again and again. A WORD that ends in
#                  -heap: with the heap of target/release preloaded
#   --near NS      a hand-over of a line in less than so many nanoseconds is near (default 150). Where all
#                  take about that long: more, and there is one table
#   --offset BYTES buffers begin so many bytes behind a page (default 0)
#   --no-build     use target/release as it is
#   --json         the JSON on standard output instead of tables
#   --help
#
# A virtual machine's cores may lie near each other (a common cache, or one core's two threads) or far
# apart, and its host moves them within seconds: launches one after the other then differ by a third with
# nothing changed. Here every stack meets every place. Each message is told apart by how long a
# cache line takes between the two ranks just before and just after it: near is below 150 ns (--near). So there is
# a table and a verdict for each of the two, as far as the host went there; figures of one line are
# comparable, those of two lines need not be.
#
# Prints medians, and what part of the best other stack's time rustmx needs, and writes target/turns/*.json. Windows
# of messages do not fit into a turn: ci/bench.sh has them. Exits with 1 if a run failed.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/measure.sh"
measure turns.py rustmx-fi rustmx-heap -- "$@"
