#!/usr/bin/env bash
# Compares the protocols of rustmx through MPI: the same benchmark with each protocol forced in turn
# (FI_RUSTMX_PROTOCOL), and with none forced, under Open MPI 5 and MPICH. All messages have completions
# (FI_RUSTMX_INJECT_MAX), for only those that go by a copy can do without.
#
# Usage: ci/compare-mpi.sh [options]
#
#   --rounds N       rounds that count (default 5; with --quick: 2)
#   --quick          a fifth of the time for each size
#   --sizes MIN:MAX  bytes, k and m may follow (default 1:4m)
#   --only WORDS     these only, by comma: an MPI (ompi5, mpich), a test (latency, bw, bibw, mbw_mr), a kind of
#                    source (reused, fresh), a protocol (default, inline, …). Tests are latency and bw if none
#                    is named
#   --no-build       use target/release as it is
#   --json           the JSON on standard output instead of tables
#   --help
#
# The benchmark is mpi-tests/bench/perf.c. If OSU_DIR is set, OSU's own osu_latency, osu_bw, osu_bibw and osu_mbw_mr are
# run instead; they are looked for below it. It may be several directories, by colon, for several MPIs: a program
# runs under the MPI whose library it is linked with. OSU does not rewrite its source buffers, so only reused is told then.
#
# The protocols are those that `rustmx explain` names, each with the sizes it carries; one that shares memory of the
# preloaded heap is run with that heap, and so is a second default. Sizes are taken in groups that the same protocols
# carry; a round of a group runs all protocols one after the other, and the groups take turns. Two ranks are pinned to
# cores 0 and 1. As in ci/bench.sh, a round in which the hand-over of a cache line moved by more than a third is discarded
# and repeated, up to twice as many rounds in all. A run must prove that it went the way that was forced.
#
# Prints for each MPI, test and kind of source the medians, which protocol is quickest from which size on and in how many
# rounds, and the regret of the default: how much worse than the quickest. Writes target/compare-mpi/*.json. Five rounds
# take some 15 minutes: leave the machine alone meanwhile. Interrupted, it tells what it has. Exits with 1 if a run failed.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/measure.sh"
measure compare-mpi.py rustmx-fi rustmx-cli rustmx-heap -- "$@"
