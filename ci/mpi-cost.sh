#!/usr/bin/env bash
# What one small message costs in instructions under Open MPI 5, and whose they are: MPI's own layers (pml/cm and mtl/ofi)
# or the provider's; next to Open MPI's own shared memory (pml/ob1, btl/sm), where all are MPI's. The counts do not depend on
# the machine's load. It tells how far a provider can get: pml/cm alone may cost as much as btl/sm does in all.
#
# Usage: ci/mpi-cost.sh [BYTES]   (at most 256, default 8; a window of longer ones makes sm wait. Needs ci/setup.sh and a
#                                  release build)
set -euo pipefail

case ${1:-} in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -le 1 ] || {
  echo "mpi-cost: unknown argument '$2' (see --help)" >&2
  exit 2
}
bytes=${1:-8}
[[ $bytes =~ ^[0-9]+$ && $bytes -le 256 ]] || {
  echo "mpi-cost: '$bytes' is not a number of bytes up to 256 (see --help)" >&2
  exit 2
}
venv=$PWD/target/venv/ompi5
work=$PWD/target/mpi-cost
for need in "$venv/bin/mpirun" target/release/librustmx_fi.so; do
  [ -e "$need" ] || {
    echo "mpi-cost: $need is missing: run ci/setup.sh and cargo build --release" >&2
    exit 2
  }
done
mkdir -p "$work"
OPAL_PREFIX=$venv "$venv/bin/mpicc" -O2 -g -o "$work/window" mpi-tests/bench/window.c
export FI_PROVIDER_PATH=$PWD/target/release FI_PROVIDER=rustmx
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec python3 ci/mpi-cost.py "$venv/bin/mpirun" "$work" "$bytes"
