#!/usr/bin/env bash
# Runs a command in a network namespace of its own that has one address, if that can be done here,
# else runs it as it is.
#
# Usage: mpi-tests/private-net.sh COMMAND [ARGUMENT...]
#
# Why: libfabric's tcp provider does not work with the loopback interface alone under Open MPI
# (FI_TCP_IFACE=lo: "socket listen failed"); it takes the machine's real address. In the namespace
# it finds one end of a virtual cable instead, and no test traffic can leave the machine. rustmx
# does not need this.
set -euo pipefail

case ${1:-} in
  '' | -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

if [ "$1" = --inside ]; then
  shift
  ip link set lo up
  ip link add mpi0 type veth peer name mpi1
  ip addr add 10.77.0.1/24 dev mpi0
  ip link set mpi0 up
  ip link set mpi1 up
  exec "$@"
fi

# Tried first as a whole, so that a machine that lacks any part of it just does without.
if unshare -n "${BASH_SOURCE[0]}" --inside true 2>/dev/null; then
  exec unshare -n "${BASH_SOURCE[0]}" --inside "$@"
fi
exec "$@"
