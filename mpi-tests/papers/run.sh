#!/usr/bin/env bash
# Measures again, on this machine and with this Linux, what the papers behind rustmx claim, and writes a page about it.
#
# Usage: mpi-tests/papers/run.sh [options]
#
#   --rounds N       rounds (default 9; with --quick: 1)
#   --only SECTIONS  these only, by comma: zero-copy, calls, non-temporal, offload, registration, cache, monitor; the page keeps what
#                    was measured of the others before (target/papers/latest.json)
#   --output DIR     figures, page and plots into this directory (default: figures into target/papers, page and plots here)
#   --quick          seconds: to see that everything works, not to believe; needs --output
#   --rustmx FILE    the command rustmx (default: target/release/rustmx)
#   --engine FILE    the program that measures the engine's registration cache (default: provider/benches/reuse.rs is built)
#   --torture CMD    what counts wrong bytes through the engine; it prints JSON objects, a line each: {"test": what, "monitor": "on" or
#                    "off", "rounds": N, "checked": N, "wrong": N, "allocator": which} (default: torture.sh beside this, the engine's own
#                    torture tests, which take some minutes; with --quick or --no-build none)
#   --page           measures nothing: the page and the plots of what was measured last
#   --no-build       neither builds programs nor installs what draws the plots (ci/setup.sh papers)
#   --help
#
# Sections are measured in rounds, each once a round and in turn, on the first and the last core that may be used; within
# a program, variants take turns too. Told are medians over the rounds, and how far the middle half of the rounds is
# apart. Zero-copy is `rustmx compare`, which has rounds of its own. Takes some ten minutes: leave the machine alone
# meanwhile; the page says how steady it was. Exits with 1 if a section yields no figures.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=1
measured=1
tortured=1
arguments=()

for argument; do
  case $argument in
    -h | --help)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --no-build) build= ;;
    *)
      case $argument in
        --page) measured= ;;
        --quick | --torture*) tortured= ;;
      esac
      arguments+=("$argument")
      ;;
  esac
done

. "$root/ci/measure.sh"
checked "$here/papers.py" "${arguments[@]}"
if [ -n "$build" ]; then
  "$root/ci/setup.sh" papers >&2
fi
if [ -n "$build" ] && [ -n "$measured" ]; then
  export CARGO_TARGET_DIR=$root/target
  (cd "$root" && cargo build --release -p rustmx-cli -p rustmx-heap >&2)
  engine=$(cd "$root" && cargo build --release -p rustmx-benches --bench reuse --message-format=json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\/reuse-[^"]*\)".*/\1/p')
  # What is said later counts.
  arguments=(--engine "$engine" "${arguments[@]}")
  [ -z "$tortured" ] || arguments+=(--torture "$(printf %q "$here/torture.sh")")
fi
python=$root/target/venv/papers/bin/python3
[ -x "$python" ] || {
  echo "papers: $python is missing: leave out --no-build, or run ci/setup.sh papers" >&2
  exit 2
}
exec "$python" "$here/papers.py" "${arguments[@]}"
