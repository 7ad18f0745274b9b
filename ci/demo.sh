#!/usr/bin/env bash
# Shows what rustmx does: latency and bandwidth between two ranks of an unchanged Open MPI 5,
# 1 B to 4 MiB, next to Open MPI's own shared memory and to libfabric's tcp provider.
#
# Usage: ci/demo.sh [--quick] [--help]
#
# Installs what it needs (ci/setup.sh demo), builds the provider, measures, prints one table. Takes
# about a minute after the build; --quick about half of that. Exits with 1 if the messages of the
# rustmx column did not go over rustmx.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/target/venv/ompi5
out=$root/target/demo
job= # the run that goes on
scale=1
started=$SECONDS

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

say() { printf '[demo %3ds] %s\n' $((SECONDS - started)) "$*"; }

die() {
  echo "demo: $*" >&2
  exit 1
}

misused() {
  usage >&2
  echo "demo: $*" >&2
  exit 2
}

build() {
  say "building rustmx"
  # Where the library is looked for.
  (cd "$root" && CARGO_TARGET_DIR=$root/target cargo build --release -p rustmx-fi)
  say "building the benchmark"
  mkdir -p "$out"
  "$venv/bin/mpicc" -std=c99 -D_GNU_SOURCE -O2 -Wall -Wextra -o "$out/sweep" \
    "$root/mpi-tests/bench/sweep.c"
}

# stop CODE: ends the run that goes on, and this script. Of a terminal's signals `timeout` hears nothing: it has left the group, with all that it started.
stop() {
  trap '' INT TERM
  # shellcheck disable=SC2086 # if there is one
  kill $job 2>/dev/null || true
  wait
  exit "$1"
}

# sweep NAME [ENVIRONMENT...] -- MPIRUN-OPTION...: one sweep into target/demo/NAME.json.
sweep() {
  local name=$1 environment=() wrap=() code=0
  shift
  while [ "$1" != -- ]; do
    environment+=("$1")
    shift
  done
  shift
  [ "$(id -u)" != 0 ] ||
    environment+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
  # tcp takes the machine's real network address; give it one that leads nowhere else.
  [ "$name" != tcp ] || wrap=("$root/mpi-tests/private-net.sh")
  say "measuring $name"
  # Map by core and bind to core: ranks 0 and 1 stay on cores 0 and 1.
  env "${environment[@]}" "${wrap[@]}" timeout -k 5 120 "$venv/bin/mpirun" "$@" \
    --map-by core --bind-to core -n 2 "$out/sweep" --json --iters-scale "$scale" \
    >"$out/$name.json" 2>"$out/$name.err" </dev/null &
  job=$!
  wait $job || code=$?
  job=
  [ $code = 0 ] || {
    cat "$out/$name.err" >&2
    die "the $name run failed (log: $out/$name.err)"
  }
}

# Without this proof the table might show whatever Open MPI fell back to.
check_rustmx_used() {
  awk '/^rustmx stats:/ && match($0, / sent=[0-9]+/) {
         if (substr($0, RSTART + 6, RLENGTH - 6) + 0 > 0) endpoints++
       }
       END { exit !(endpoints >= 2) }' "$out/rustmx.err" ||
    die "no message went over rustmx: expected a 'rustmx stats:' line with sent=N from both ranks" \
      "in $out/rustmx.err"
}

measure() {
  trap 'stop 130' INT
  trap 'stop 143' TERM
  sweep rustmx FI_PROVIDER=rustmx FI_PROVIDER_PATH="$root/target/release" FI_RUSTMX_STATS=1 -- \
    --mca pml cm --mca mtl ofi -x FI_PROVIDER -x FI_PROVIDER_PATH -x FI_RUSTMX_STATS
  check_rustmx_used
  sweep sm -- --mca pml ob1 --mca btl sm,self
  # Open MPI leaves tcp out unless it is asked for by name.
  sweep tcp FI_PROVIDER=tcp OMPI_MCA_opal_common_ofi_provider_include=tcp -- \
    --mca pml cm --mca mtl ofi -x FI_PROVIDER
}

table() {
  python3 - "$out" <<'PYTHON'
import json
import sys

NAMES = ("rustmx", "sm", "tcp")


def load(name):
    with open(f"{sys.argv[1]}/{name}.json", encoding="utf-8") as lines:
        points = [json.loads(line) for line in lines if line.startswith("{")]
    return {point["size"]: point for point in points}


def human(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


columns = [load(name) for name in NAMES]
heads = [f"{name} us" for name in NAMES] + [f"{name} MB/s" for name in NAMES]
widths = [9, 10, 10, 10, 12, 12, 12]
rows = [["size"] + heads]
for size in sorted(columns[0]):
    points = [column[size] for column in columns]
    rows.append(
        [human(size)]
        + [f"{point['latency_us']:.2f}" for point in points]
        + [f"{point['bandwidth_mbs']:.0f}" for point in points]
    )
print()
for row in rows:
    print("".join(cell.rjust(width) for cell, width in zip(row, widths)))
print()
PYTHON
  echo "us: half a round trip. MB/s: 64 messages under way. Medians of 5 batches."
  echo "sm: Open MPI's own shared memory. tcp: libfabric's tcp provider. Both on this machine, now."
}

main() {
  case ${1:-} in
    '') ;;
    --quick) scale=0.3 ;;
    -h | --help)
      usage
      return
      ;;
    *) misused "unknown argument '$1'" ;;
  esac
  [ $# -le 1 ] || misused "unknown argument '$2'"
  "$root/ci/setup.sh" demo
  build
  measure
  table
  say "done"
}

main "$@"
