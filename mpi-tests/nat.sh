#!/usr/bin/env bash
# A job in containers behind NAT: two on one host, of which the others know only the host's address and ports, and a rank on another host.
#
# Usage: mpi-tests/nat.sh [--lib-dir DIR] [--mpi NAME[,NAME]]
#
#   --lib-dir DIR        where the rustmx provider library is (default: target/release)
#   --mpi NAME[,NAME]    ompi5, mpich (default: both)
#
# Needs root, what ci/setup.sh installs, and programs that mpi-tests/run.sh has built. The hosts are those of a laboratory (ci/netlab.sh), which is made and
# removed. Host h1 has a bridge with two containers, c1 and c2, and publishes one port of each, under its number; what comes from them it sends on
# under its own address, also what they say to each other by that address. Each container's environment says which port it has, and where others find it:
# FI_RUSTMX_PORT_RANGE=20001-20001 FI_RUSTMX_IFACE=@10.77.0.1.
#
# Prints one line for each run and, last, "N passed, N failed"; exits with 1 if any run failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
venvs=$root/target/venv
lib_dir=$root/target/release
mpis=(ompi5 mpich)
netlab=("$root/ci/netlab.sh" --name "nat-tests-$$")
job= # the run that goes on

# What an MPI takes for ssh: nat.sh --agent HOST WORDS...
if [ "${1:-}" = --agent ]; then
  shift
  while [[ ${1:-} = -* ]]; do shift; done
  host=$1
  shift
  case $host in
    c[12]) exec nsenter -t "$(cat "$NAT_STATE/$host")" --net --uts -- env \
      FI_RUSTMX_PORT_RANGE="2000${host#c}-2000${host#c}" FI_RUSTMX_IFACE=@10.77.0.1 TMPDIR="$NAT_STATE/$host.tmp" sh -c "$*" ;;
    *) exec "$root/ci/netlab/agent.sh" "$host" "$*" ;;
  esac
fi

while [ $# -gt 0 ]; do
  case $1 in
    --lib-dir) lib_dir=$(cd "$2" && pwd) && shift ;;
    --mpi) IFS=, read -ra mpis <<<"$2" && shift ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" && exit 2 ;;
  esac
  shift
done

NAT_STATE=$(mktemp -d)
export NAT_STATE
trap '"${netlab[@]}" down; rm -rf "$NAT_STATE"' EXIT
trap 'stop 130' INT
trap 'stop 143' TERM

# stop CODE: ends the run that goes on, and this script. Of a terminal's signals `timeout` hears nothing: it has left the group, with all that it started.
stop() {
  trap '' INT TERM
  # shellcheck disable=SC2086 # if there is one
  kill $job 2>/dev/null || true
  wait
  exit "$1"
}

# A container on the bridge of h1: a network and a name of its own.
container() {
  local name=$1 ip=192.168.50.$2
  mkdir "$NAT_STATE/$name.tmp"
  "${netlab[@]}" exec h1 sh -ec "
    unshare --net --uts sleep 1000 >/dev/null 2>&1 & p=\$!
    until [ \"\$(readlink /proc/\$p/ns/net)\" != \"\$(readlink /proc/\$\$/ns/net)\" ]; do sleep 0.05; done
    ip link add v$name type veth peer name eth0 netns \$p; ip link set v$name master br0; ip link set v$name up
    nsenter -t \$p --net --uts sh -ec 'hostname $name; ip link set lo up; ip addr add $ip/24 dev eth0; ip link set eth0 up
      ip route add default via 192.168.50.1'
    echo \$p >$NAT_STATE/$name"
}

# Bytes to the containers so far, by their cables, and to the other host.
wires() {
  local name
  for name in c1 c2; do "${netlab[@]}" exec h1 cat "/sys/class/net/v$name/statistics/tx_bytes"; done
  "${netlab[@]}" traffic h2 | cut -d' ' -f2
}

# The program's ranks 0 and 1 are in the containers, 2 on the other host.
run() {
  local mpi=$1 program=$2 code=0 log=$root/target/mpi-tests/$1/logs/nat-$2.log launcher start=$SECONDS i why='' before after
  local agent=$NAT_STATE/agent hosts=c1,c2,h2
  case $mpi in
    ompi5) launcher=("$venvs/ompi5/bin/mpirun" --prtemca plm_ssh_agent "$agent" --host c1:1,c2:1,h2:1 --map-by ppr:1:node:OVERSUBSCRIBE --bind-to none
      --prtemca prte_if_include eth0 --mca pml cm --mca mtl ofi -x FI_PROVIDER -x FI_PROVIDER_PATH -x FI_RUSTMX_STATS) ;;
    mpich) launcher=("$venvs/mpich/bin/mpiexec" -launcher ssh -launcher-exec "$agent" -hosts $hosts -ppn 1) ;;
  esac
  mkdir -p "$(dirname "$log")"
  mapfile -t before < <(wires)
  "${netlab[@]}" exec h1 env FI_PROVIDER=rustmx FI_PROVIDER_PATH="$lib_dir" FI_RUSTMX_STATS=1 NAT_STATE="$NAT_STATE" \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 \
    timeout -k 5 60 "${launcher[@]}" -n 3 "$root/target/mpi-tests/$mpi/$program" --scale 5 >"$log.out" 2>"$log.err" </dev/null &
  job=$!
  wait $job || code=$?
  job=
  mapfile -t after < <(wires)
  # Two files, so that no line of standard error can come into the middle of one of the other.
  [ $code = 0 ] || why="exit code $code"
  [ -n "$why" ] || grep -qaxF "OK $program" "$log.out" || why="no OK line"
  [ -n "$why" ] || [ "$(grep -ac '^rustmx stats:.* sent=[1-9]' "$log.err")" -ge 3 ] || why="rustmx was not used by all ranks"
  # All have one kernel, and who takes that for one host could hand messages over in memory. Launchers alone send some ten thousand bytes.
  for i in 0 1 2; do
    echo "proof: $((after[i] - before[i])) bytes to rank $i" >>"$log.err"
    # With the third rank pingpong has nothing to do.
    [ "$program$i" = pingpong2 ] || [ $((after[i] - before[i])) -gt 200000 ] || why=${why:-only $((after[i] - before[i])) bytes went to rank $i by the network}
  done
  cat "$log.out" "$log.err" >"$log"
  rm "$log.out" "$log.err"
  if [ -z "$why" ]; then
    passed=$((passed + 1))
    echo "PASS $mpi nat $program $((SECONDS - start))s"
  else
    failed=$((failed + 1))
    echo "FAIL $mpi nat $program $why log: $log"
  fi
}

passed=0 failed=0
"${netlab[@]}" up --hosts 2
printf '#!/bin/sh\nexec %q --agent "$@"\n' "${BASH_SOURCE[0]}" >"$NAT_STATE/agent"
chmod +x "$NAT_STATE/agent"
"${netlab[@]}" exec h1 sh -ec "
  ip link add br0 type bridge; ip addr add 192.168.50.1/24 dev br0; ip link set br0 up; echo 1 >/proc/sys/net/ipv4/ip_forward
  nft 'table ip nat {
    chain pre { type nat hook prerouting priority -100
      ip daddr 10.77.0.1 tcp dport 20001 dnat to 192.168.50.11; ip daddr 10.77.0.1 tcp dport 20002 dnat to 192.168.50.12; }
    chain post { type nat hook postrouting priority 100
      oifname eth0 masquerade; ip saddr 192.168.50.0/24 ip daddr 192.168.50.0/24 masquerade; }
  }'"
container c1 11
container c2 12
for mpi in "${mpis[@]}"; do
  for program in pingpong collectives; do run "$mpi" "$program"; done
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
