#!/usr/bin/env bash
# Runs other people's test suites over rustmx.
#
# Usage: ci/conformance.sh SUITE [PART...] [options]
#        ci/conformance.sh all|short [options]
#        ci/conformance.sh table
#
#   SUITE        fabtests, mpich, mpi4py, imb, hpcc or netpipe; without a PART, all that --list does not
#                mark "not in all"
#   short        most of the parts that ci/test.sh runs: some minutes with 2 cores, much of it what is built first
#   table        write mpi-tests/CONFORMANCE.md from the results kept last
#   --list       suites and parts
#   --baseline   run each part over another transport first (mpich and fabtests: libfabric's tcp; mpi4py:
#                what the MPI uses by itself inside a machine) and show what only one of the two passes
#   --network    every peer is reached by TCP, also on this machine (FI_RUSTMX_SHM=0): results are kept apart, in
#                results-network, and what differs from those by shared memory is shown
#   --missing    only the parts without a result of this very library: goes on where a run was interrupted
#   --no-build   use what ci/setup.sh suites installed, and the library, as they are
#   --help
#
# The last line of a part is "SUITE PART: P passed, F failed, X excluded". Exits with 2 if a part could not
# be run at all (nothing is kept of it, the others are run) or the arguments make no sense, else with 1 if
# any F is not 0, else with 0. More than one part end in a line with their sums. Excluded are the tests that the suite itself skips because the provider refuses
# what they need, those in mpi-tests/conformance/*.exclude (each with a reason), and those that fail in the
# last kept baseline of the part, too; the table tells the three apart.
#
# Every test, or the whole part where a suite runs them in one program, has a time limit. Where the ranks stood
# when it came is in the result (their stacks, if eu-stack or gdb is there), and one line of it is printed. A part runs
# alone: other load makes what spins in turns slow. The result says what load there was before.
#
# Each part first proves that what it runs uses rustmx. Programs run in PID and network namespaces of
# their own, if the machine allows that: nothing is left behind, nothing leaves the machine.
# Sources, builds, logs and results (target/conformance/results/SUITE/PART.TRANSPORT.json) are under
# target/, or CONFORMANCE_TARGET if that is set (another worktree's); the library is that of target/release,
# or of CARGO_TARGET_DIR, or with --no-build of CONFORMANCE_LIB_DIR. The machine decides the time: with 2
# cores, all takes some two hours, most of it mpich.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=1
arguments=()

[ $# -gt 0 ] || set -- --help
for argument; do
  case $argument in
    -h | --help)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --no-build) build= ;;
    --network) export CONFORMANCE_NETWORK=1 ;;
    --list | table)
      build=
      arguments+=("$argument")
      ;;
    *) arguments+=("$argument") ;;
  esac
done

. "$root/ci/measure.sh"
checked "$root/ci/conformance.py" "${arguments[@]}"
library=${CARGO_TARGET_DIR:-$root/target}
export CONFORMANCE_LIB_DIR=${CONFORMANCE_LIB_DIR:-$library/release}
if [ -n "$build" ]; then
  "$root/ci/setup.sh" suites >&2 || exit 2
  (cd "$root" && CARGO_TARGET_DIR=$library cargo build --release -p rustmx-fi >&2) || exit 2
  CONFORMANCE_LIB_DIR=$library/release
  arguments+=(--stamp)
fi
exec python3 "$root/ci/conformance.py" "${arguments[@]}"
