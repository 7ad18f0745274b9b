#!/usr/bin/env bash
# A laboratory of several hosts on one machine, for jobs that span hosts: each host is a network namespace with a name, a
# hosts file, /dev/shm, a TMPDIR and System V memory of its own; a virtual cable leads from it to a bridge. The bridge is in
# a namespace, too: the network of this machine is not touched, and nothing leaves the lab.
#
# Usage: ci/netlab.sh COMMAND [options]
#
#   up [options]             make the lab; one that is there already and alike is left as it is, any other is made anew
#     --hosts N              hosts h1 … hN (default 4, at most 200)
#     --ipv6-only, --dual    addresses fd77:6d78:: instead of 10.77.0.0/24, or besides it (names mean the IPv4 ones then);
#                            link-local addresses there are always
#     --nics N               cables of each host, eth0 …, to different bridges (default 1); its name means eth0
#     --mtu N                of all cables (default 1500)
#     --no-offload           packets no longer than the MTU also between sender and receiver (else the kernel passes on up to
#                            64 KiB as one "packet", which is then lost, delayed or reordered as one)
#     --decoys               each host also has, before eth0, a docker0, which has the same address on all hosts, a
#                            point-to-point ptp0, and a down0 that is down: the wrong choices of software that chooses
#   down [--all]             kill all that runs in the lab and undo everything; of an interrupted `up`, too (--all: all labs)
#   exec HOST COMMAND…       run a command on a host, in this directory and with this environment
#   ssh [options] HOST COMMAND…  the same as ssh would: in the home directory, by a shell, with a fresh environment. MPIs take
#                            ci/netlab/agent.sh for their ssh
#   kill HOST|all            kill what runs on a host, or on all; the lab stays
#   hosts [--json]           names and addresses
#   status [--json]          what runs, and which faults are in force
#   traffic HOST             bytes from it and to it through its cables so far
#   probe                    what of all this can be done here; exits with 1 if there can be no lab
#   self-test [--only …]     proves that the lab does what is said here (ci/netlab/test.sh)
#   matrix [--only …]        what MPI jobs notice of faults, and when: a table for provider/docs/network.md (ci/netlab/matrix.py)
#
#   link HOST down|up        pull or plug in its cables: HOST sees "no carrier" and keeps its addresses
#   flap HOST [SECONDS]      pull, wait (default 1), plug in
#   drop HOST on|off         lose all its packets in silence, both ways; its carrier stays
#   loss HOST PERCENT        lose that part of them, each by chance (0: none; decimals may be: 0.1)
#   rate HOST RATE           what its cables carry, each way, in tc's words: 100mbit (0: no limit)
#   delay HOST MS [options]  hold its packets up by a relay, each way, also reorder or lose some, or limit the rate: see delay HOST --help (0: none)
#   mend HOST                end all its faults
#
# Everywhere: --name LAB for more than one lab (default "lab", or $NETLAB), --help. Needs root, iproute2 and util-linux, the faults
# nftables and Python. One process space: ps and kill reach across hosts, so rustmx must not take "same kernel" for "same host".
#
# A job, with its mpirun on a host, as a user's would be (mpi-tests/run.sh --hosts 2 knows all four MPIs):
#   ci/netlab.sh up --hosts 2
#   ci/netlab.sh exec h1 mpirun --prtemca plm_ssh_agent $PWD/ci/netlab/agent.sh --host h1:2,h2:2 --map-by ppr:2:node:OVERSUBSCRIBE …
#   ci/netlab.sh exec h1 mpiexec -launcher ssh -launcher-exec $PWD/ci/netlab/agent.sh -hosts h1,h2 -ppn 2 …
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
this=$here/$(basename "${BASH_SOURCE[0]}")
labs=${NETLAB_STATE:-/run/rustmx-netlab}
lab=${NETLAB:-lab}
words=()
# What `up` was told.
hosts=4 family=v4 nics=1 mtu=1500 offload=on decoys=no
json= all=
started=$SECONDS

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

say() { printf '[netlab %2ds] %s\n' $((SECONDS - started)) "$*" >&2; }

die() {
  echo "netlab: $*" >&2
  exit 2
}

number() { [[ $2 =~ ^[0-9]{1,5}$ ]] && [ "$2" -ge "$3" ] && [ "$2" -le "$4" ] || die "$1 takes a number of $3 to $4, not '$2'"; }

# Options may stand anywhere; those of a command to be run, and of the relay, are not ours.
parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        exit 0
        ;;
      --ipv6-only) family=v6 ;;
      --dual) family=dual ;;
      --no-offload) offload=off ;;
      --decoys) decoys=yes ;;
      --json) json=1 ;;
      --all) all=1 ;;
      --hosts | --nics | --mtu | --name)
        [ $# -ge 2 ] || die "$1 needs a value"
        case $1 in
          --hosts) number "$1" "$2" 1 200; hosts=$2 ;;
          --nics) number "$1" "$2" 1 4; nics=$2 ;;
          --mtu) number "$1" "$2" 1280 65521; mtu=$2 ;;
          --name) lab=$2 ;;
        esac
        shift
        ;;
      exec | ssh | delay | self-test | matrix | --inside)
        words+=("$@")
        break
        ;;
      -*) die "unknown option '$1' (see --help)" ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  [[ $lab =~ ^[a-z0-9-]{1,20}$ ]] || die "a lab's name has up to 20 of a-z, 0-9 and -: '$lab'"
  state=$labs/$lab
}

# shellcheck source-path=SCRIPTDIR
source "$here/netlab/make.sh"
source "$here/netlab/hosts.sh"
source "$here/netlab/faults.sh"

# ---- what is there ----

# holder NODE: the process that keeps a node's namespaces; fails if there is none.
holder() {
  local pid name=
  read -r pid 2>/dev/null <"$state/$1.pid" || return
  # The process is who it says it is: numbers come again, and the file may be older than the machine's last start.
  read -r -d '' name 2>/dev/null <"/proc/$pid/cmdline" || return
  [ "$name" = "netlab:$lab:$1" ] && echo "$pid"
}

# in_net NODE COMMAND…: in its network, but with the files of this machine.
in_net() { nsenter -t "$(holder "$1")" --net -- "${@:2}"; }

names() { sed -n 's/^hosts=\([0-9]*\) .*/\1/p' "$state/lab" 2>/dev/null | xargs -r seq | sed 's/^/h/'; }

# namespaces PROCESS…: the numbers of theirs.
namespaces() {
  local process
  for process; do stat -Lc %i "/proc/$process/ns/"{net,mnt,uts,ipc} 2>/dev/null || true; done
}

# processes HOST PID…: all processes that share a namespace with one of these, what descends from them, and what was started on
# the host (of all, if it is empty) and has gone into namespaces of its own, as a container does; but never those of this script's
# namespaces.
processes() {
  local all=/proc/[0-9]* mark=NETLAB_HOST=$lab/${1:+$1/}
  shift
  {
    namespaces self | sed 's/^/own /'
    namespaces "$@" | sed 's/^/lab /'
    # shellcheck disable=SC2086 # the pattern is to be expanded
    stat -Lc 'at %i %n' $all/ns/net $all/ns/mnt $all/ns/uts $all/ns/ipc 2>/dev/null || true
    ps -e -o pid=,ppid= | sed 's/^/child /'
    # shellcheck disable=SC2086
    { grep -lszF "$mark" $all/environ || true; } | sed 's/^/marked 0 /'
  } | awk '
    $1 == "own" { own[$2] }
    $1 == "lab" && !($2 in own) { lab[$2] }
    $1 == "at" && $2 in lab { split($3, part, "/"); found[part[3]] }
    $1 == "marked" { split($3, part, "/"); found[part[3]] }
    $1 == "at" && $2 in own { split($3, part, "/"); outside[part[3]]++ }
    $1 == "child" { parent[$2] = $3 }
    END {
      # As long as anything new is found.
      do {
        more = 0
        for (pid in parent) if (!(pid in found) && parent[pid] in found) { found[pid]; more = 1 }
      } while (more)
      # Who has nothing of its own has only just been started from here.
      for (pid in found) if (outside[pid] < 4) print pid
    }'
}

v4_of() { echo "10.77.$2.${1#h}"; }
v6_of() { printf 'fd77:6d78:0:%x::%x\n' "$2" "${1#h}"; }
# Follows from the address of the card, which this script gives.
local_of() { printf 'fe80::ff:fe%02x:%x\n' "$2" "${1#h}"; }
card_of() { printf '02:00:00:00:%02x:%02x\n' "$2" "${1#h}"; }

# ---- probing ----

probe() {
  local what pieces=(
    "namespaces:unshare --net --uts --ipc --mount true"
    "cables:unshare --net ip link add dev x0 type veth peer name x1"
    "bridges:unshare --net ip link add dev x0 type bridge"
    "IPv6:test -e /proc/sys/net/ipv6"
    "drop and loss:unshare --net nft add table bridge x0"
    "rate:unshare --net sh -c 'ip link add dev x0 type veth peer name x1; tc qdisc add dev x0 root tbf rate 1mbit burst 256kb latency 9ms'"
    "delay:unshare --net ip tuntap add mode tap name x0"
  ) lacking=
  [ "$(id -u)" = 0 ] || echo "not root: nothing works"
  for what in "${pieces[@]}"; do
    if eval "${what#*:}" >/dev/null 2>&1; then
      echo "${what%%:*}: yes"
    else
      echo "${what%%:*}: no"
      lacking+="${lacking:+, }${what%%:*}"
    fi
  done
  [[ $lacking != *namespaces* && $lacking != *cables* && $lacking != *bridges* ]]
}

# ---- all together ----

# of_host COUNT: what the words after the command must be: a host, and COUNT more.
of_host() {
  need
  [ ${#words[@]} -ge $(($1 + 2)) ] || die "${words[0]} needs a host and $1 more (see --help)"
  [[ ${words[0]} = kill && ${words[1]} = all ]] || holder "${words[1]}" >/dev/null || die "no host '${words[1]}' in lab '$lab' (see ci/netlab.sh hosts)"
}

fault() { of_host "$1" && lock; }

main() {
  parse "$@"
  set -- "${words[@]}"
  case ${1:-} in
    up) up ;;
    down) down ;;
    exec | ssh)
      need
      [ $# -ge 3 ] || [ "$1" = ssh ] || die "exec needs a host and a command"
      if [ "$1" = exec ]; then on_host "${@:2}"; else as_ssh "${@:2}"; fi
      ;;
    hosts) list_hosts ;;
    status) status ;;
    probe) probe ;;
    self-test) exec "$here/netlab/test.sh" "${@:2}" ;;
    matrix) exec "$here/netlab/matrix.py" "${@:2}" ;;
    link) fault 1 && set_link "$2" "$3" ;;
    flap)
      fault 0
      set_link "$2" down
      exec 9>&- # others may change the lab meanwhile
      sleep "${3:-1}"
      fault 0
      set_link "$2" up
      ;;
    drop) fault 1 && set_drop "$2" "$3" ;;
    loss) fault 1 && set_loss "$2" "$3" ;;
    rate) fault 1 && set_rate "$2" "$3" ;;
    delay)
      [[ " $* " != *" --help "* && " $* " != *" -h "* ]] || exec "$here/netlab/relay.py" --help
      fault 1 && set_delay "${@:2}"
      ;;
    traffic) of_host 0 && traffic "$2" ;;
    kill) of_host 0 && kill_on "$2" ;;
    mend) fault 0 && mend "$2" ;;
    --inside) inside "$2" ;;
    '') usage >&2; exit 2 ;;
    *) die "unknown command '$1' (see --help)" ;;
  esac
}

main "$@"
