#!/usr/bin/env bash
# What an MPI's launcher takes for ssh inside a lab of ci/netlab.sh: runs a command on another host of the lab.
#
# Usage: ci/netlab/agent.sh [ssh's options] HOST COMMAND…
set -euo pipefail

case ${1:-} in
  '' | -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
exec "$(dirname "${BASH_SOURCE[0]}")/../netlab.sh" ssh "$@"
