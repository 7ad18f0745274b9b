#!/usr/bin/env bash
# Counts the instructions of each hot path under callgrind and compares with the table of
# provider/docs/hot-paths.md; fails if one is over its budget or does what its row forbids.
#
# Usage: ci/budget.sh [--help]
#
# Every `budget_*` function of provider/benches/hotpath.rs is a path. What is forbidden is checked so:
#   allocation  the functions of malloc and free that ran inside the path (growth in the first
#               rounds is let pass: less than one instruction a call)
#   lock        the executed addresses that objdump shows as `lock`, `xchg` with memory or `mfence`
#   syscall     callgrind's count of system calls, in the functions that ran inside the path
# Instruction counts do not depend on the machine's load: the endpoints of budget_network_* live by a clock that
# the program sets. Needs valgrind and binutils (ci/setup.sh).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

case $* in
  '') ;;
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
  *)
    echo "budget: unknown argument '$*' (see --help)" >&2
    exit 2
    ;;
esac

for tool in valgrind objdump nm; do
  command -v $tool >/dev/null || {
    echo "budget: $tool is missing: run ci/setup.sh" >&2
    exit 2
  }
done
exec python3 "$here/budget.py"
