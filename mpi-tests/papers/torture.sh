#!/usr/bin/env bash
# Runs the engine's torture tests, and prints what they counted, a JSON object a line (see run.sh, --torture): look-ups in the registration
# cache (provider/tests/cache) and messages in memory that peers map (provider/tests/lend), with the monitor and without it, under the libc's
# allocator and others. Some minutes. Exits with 1 if a test fails.
#
# Usage: mpi-tests/papers/torture.sh [--help]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

case $* in
  '') ;;
  *)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    [ "$*" = --help ] && exit 0 || exit 2
    ;;
esac

cd "$root"
said=$(CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target} RUSTMX_TEST_COUNTS=1 \
  cargo test -p rustmx --test cache --test lend -- --nocapture --test-threads=1 2>&1) || {
  printf '%s\n' "$said" >&2
  exit 1
}
printf '%s\n' "$said" | grep '^{"test":'
