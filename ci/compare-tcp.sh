#!/usr/bin/env bash
# Compares rustmx with libfabric's tcp provider between hosts: Open MPI 5, the same command, and FI_PROVIDER decides. With both
# ranks on one host (rustmx then with FI_RUSTMX_SHM=0) and on two hosts of a laboratory (ci/netlab.sh).
#
# Usage: ci/compare-tcp.sh [options]
#
#   --rounds N       rounds that count (default 5; with --quick: 2)
#   --quick          fewer sizes, half of the time for each
#   --max SIZE       longest message of bw, 1m to 32m (default 4m; with --quick: 1m)
#   --only WORDS     these only, by comma: a place (one, two), a test (latency, bw, rate), a provider (rustmx, tcp, raw, --also's)
#   --also NAME=[DIR][,VARIABLE=VALUE...]  another rustmx in the same rounds: of another build's DIR, or with these settings, or both
#   --lab OPTIONS    what ci/netlab.sh up is told besides, like "--mtu 9000" or "--ipv6-only"
#   --fault WORDS    a fault of the second host's cable, in words of ci/netlab.sh: "rate 1gbit", "delay 0.1"; may be given again
#   --no-build       use target/release as it is
#   --json           the JSON on standard output instead of tables
#   --help
#
# Tests: half a round trip, a window of 64 messages one way (MB/s), and how many messages of 8 bytes a second go in such windows;
# mpi-tests/bench/perf.c measures them through MPI. Raw are plain non-blocking sockets over the same cable, in the same round
# (mpi-tests/bench/rawtcp.c): the bound for latency and bandwidth; for the rate, what one send(2) of a whole window reaches.
#
# The two processes are pinned to cores 0 and 1. A round runs all providers one after the other, forwards and backwards in turn;
# only what is within a round is compared. As in ci/bench.sh, a round in which the hand-over of a cache line moved by more than a
# third is discarded and repeated, up to twice as many rounds in all. Runs of rustmx must prove that they used it.
#
# Last come the goals (ci/tcp_goals.py), met or missed: messages of 8 bytes at ten times the rate of the tcp provider, one of them not later,
# 1.3 times its bandwidth from 64 KiB on, and, with --fault "rate …", all but a twentieth of what such a link leaves to TCP. Each stands beside
# what plain sockets did in the same rounds: "limit" where they do not reach it either, "unproven" where fewer than four rounds of five agree
# or none was steady.
#
# Prints medians, spread and ratios, and writes target/compare-tcp/*.json. Needs root. Five rounds take some three minutes: leave the
# machine alone meanwhile. Exits with 1 if a run failed.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/measure.sh"
measure compare-tcp.py rustmx-fi -- "$@"
