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
#                            ci/netlab-agent.sh for their ssh
#   kill HOST|all            kill what runs on a host, or on all; the lab stays
#   hosts [--json]           names and addresses
#   status [--json]          what runs, and which faults are in force
#   traffic HOST             bytes from it and to it through its cables so far
#   probe                    what of all this can be done here; exits with 1 if there can be no lab
#   self-test                proves that the lab does what is said here (ci/netlab-test.sh)
#
#   link HOST down|up        pull or plug in its cables: HOST sees "no carrier" and keeps its addresses
#   flap HOST [SECONDS]      pull, wait (default 1), plug in
#   drop HOST on|off         lose all its packets in silence, both ways; its carrier stays
#   loss HOST PERCENT        lose that part of them, each by chance (0: none; decimals may be: 0.1)
#   rate HOST RATE           what its cables carry, each way, in tc's words: 100mbit (0: no limit)
#   delay HOST MS [options]  hold its packets up by a relay, each way, also reorder or lose some: ci/netlab-relay.py --help (0: none)
#   mend HOST                end all its faults
#
# Everywhere: --name LAB for more than one lab (default "lab", or $NETLAB), --help. Needs root, iproute2 and util-linux, the faults
# nftables and Python. One process space: ps and kill reach across hosts, so rustmx must not take "same kernel" for "same host".
#
# A job, with its mpirun on a host, as a user's would be (mpi-tests/run.sh --hosts 2 knows all four MPIs):
#   ci/netlab.sh up --hosts 2
#   ci/netlab.sh exec h1 mpirun --prtemca plm_ssh_agent $PWD/ci/netlab-agent.sh --host h1:2,h2:2 --map-by ppr:2:node:OVERSUBSCRIBE …
#   ci/netlab.sh exec h1 mpiexec -launcher ssh -launcher-exec $PWD/ci/netlab-agent.sh -hosts h1,h2 -ppn 2 …
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
      exec | ssh | delay | --inside)
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

# ---- what is there ----

# holder NODE: the process that keeps a node's namespaces; fails if there is none.
holder() {
  local pid name=
  read -r pid 2>/dev/null <"$state/$1.pid" || return
  # The process is who it says it is: numbers come again, and the file may be older than the machine's last start.
  read -r -d '' name 2>/dev/null <"/proc/$pid/cmdline" || return
  [ "$name" = "netlab:$lab:$1" ] && echo "$pid"
}

# enter NODE NSENTER-OPTIONS… -- COMMAND…
enter() {
  local node=$1 pid
  shift
  pid=$(holder "$node") || die "no host '$node' in lab '$lab': ci/netlab.sh up --name $lab"
  nsenter -t "$pid" "$@"
}

in_net() { enter "$1" --net -- "${@:2}"; }

names() { sed -n 's/^hosts=\([0-9]*\) .*/\1/p' "$state/lab" 2>/dev/null | xargs -r seq | sed 's/^/h/'; }

network_of() { stat -Lc %i "/proc/$1/ns/net" 2>/dev/null || true; }

# processes [PID…]: all processes in the network namespaces of these, but never those in this script's own.
processes() {
  local pid own inode path wanted=' '
  own=$(network_of self)
  for pid; do wanted+="$(network_of "$pid") "; done
  wanted=${wanted//" $own "/ }
  { stat -Lc '%i %n' /proc/[0-9]*/ns/net 2>/dev/null || true; } | while read -r inode path; do
    [[ $wanted != *" $inode "* ]] || { path=${path#/proc/} && echo "${path%%/*}"; }
  done
}

v4_of() { echo "10.77.$2.${1#h}"; }
v6_of() { printf 'fd77:6d78:0:%x::%x\n' "$2" "${1#h}"; }
# Follows from the address of the card, which this script gives.
local_of() { printf 'fe80::ff:fe%02x:%x\n' "$2" "${1#h}"; }
card_of() { printf '02:00:00:00:%02x:%02x\n' "$2" "${1#h}"; }

# ---- up ----

need() {
  [ "$(id -u)" = 0 ] || die "needs root (namespaces, virtual cables)"
  local program
  for program in ip:iproute2 pgrep:procps unshare:util-linux nsenter:util-linux setsid:util-linux flock:util-linux; do
    command -v "${program%:*}" >/dev/null || die "no program '${program%:*}': apt-get install ${program#*:} (or ci/setup.sh)"
  done
}

# The only one who changes a lab. Holders do not inherit the lock.
lock() {
  mkdir -p "$labs"
  local file=$labs/.$lab.lock tries
  # Again if whoever had it took the file away.
  for tries in {1..100}; do
    exec 9>"$file"
    flock -w 60 9 || die "another ci/netlab.sh has been busy with lab '$lab' for a minute"
    [ "$(stat -c %i "$file" 2>/dev/null)" != "$(stat -Lc %i /proc/self/fd/9)" ] || return 0
  done
  die "cannot lock $file"
}

hosts_file() {
  echo '127.0.0.1 localhost'
  echo '::1 localhost ip6-localhost ip6-loopback'
  local i
  for ((i = 1; i <= hosts; i++)); do
    [ $family = v6 ] || echo "$(v4_of h$i 0) h$i"
    [ $family = v4 ] || echo "$(v6_of h$i 0) h$i"
  done
}

# What a node does to its own namespaces before it sleeps for as long as the lab is there.
inside() {
  local node=$1
  if [ "$node" != switch ]; then
    echo "$node" >/proc/sys/kernel/hostname
    mount --bind "$state/hosts" /etc/hosts
    # No name server: one that cannot be reached would be waited for.
    [ ! -e /etc/resolv.conf ] || mount --bind /dev/null /etc/resolv.conf
    mount -t tmpfs -o mode=1777 netlab /dev/shm
    mount -t tmpfs -o mode=1777 netlab "$state/tmp"
    # A /sys that shows this host's interfaces.
    mount -t sysfs sysfs /sys
  fi
  ip link set lo up
  # Addresses count at once, and none comes by itself but the link-local one.
  local key
  for key in accept_dad accept_ra router_solicitations; do
    [ ! -e /proc/sys/net/ipv6/conf/default/$key ] || echo 0 >/proc/sys/net/ipv6/conf/default/$key
  done
  # Where bridged packets go through the firewall of hosts, they are slower.
  [ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] ||
    echo 0 | tee /proc/sys/net/bridge/bridge-nf-call-{ip,ip6,arp}tables >/dev/null
  # Only now is it a node.
  echo $$ >"$state/$node.new"
  mv "$state/$node.new" "$state/$node.pid"
  exec -a "netlab:$lab:$node" sleep infinity
}

start_nodes() {
  local node waited=0
  for node; do
    NETLAB_STATE=$labs setsid unshare --net --uts --ipc --mount --propagation private -- \
      "$this" --name "$lab" --inside "$node" </dev/null >"$state/$node.log" 2>&1 9>&- &
  done
  for node; do
    until holder "$node" >/dev/null; do
      [ $waited -lt 200 ] || die "$node does not start: $(tail -n 3 "$state/$node.log")"
      sleep 0.05
      waited=$((waited + 1))
    done
  done
}

# For `ip -batch` on the switch: bridges, and a cable to each host.
cables() {
  local i k pid
  for ((k = 0; k < nics; k++)); do
    echo "link add br$k type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
    echo "link set br$k mtu $mtu up"
    for ((i = 1; i <= hosts; i++)); do
      pid=$(holder h$i)
      echo "link add h$i.$k mtu $mtu type veth peer name eth$k mtu $mtu address $(card_of h$i $k) netns $pid"
      echo "link set h$i.$k master br$k up"
    done
  done
}

# For `ip -batch` on a host. Decoys come before the cards, because some software takes the first.
decoys_of() {
  local i=${1#h}
  echo "link add docker0 type bridge"
  echo "link add docker0p type veth peer name docker0c" # a container's, so that it has a carrier
  echo "link set docker0p master docker0 up"
  echo "link set docker0c up"
  echo "addr add 172.17.0.1/16 dev docker0"
  echo "link set docker0 up"
  echo "tuntap add ptp0 mode tun"
  echo "addr add 10.78.0.$i peer 10.78.1.$i dev ptp0"
  echo "link set ptp0 up"
  echo "link add down0 type bridge"
  echo "addr add 10.79.0.$i/24 dev down0"
}

cards_of() {
  local k
  for ((k = 0; k < nics; k++)); do
    [ $family = v6 ] || echo "addr add $(v4_of "$1" $k)/24 dev eth$k"
    [ $family = v4 ] || echo "addr add $(v6_of "$1" $k)/64 dev eth$k nodad"
    [ $offload = on ] || echo "link set eth$k gso_max_segs 1"
    echo "link set eth$k up"
  done
}

settings() { echo "hosts=$hosts family=$family nics=$nics mtu=$mtu offload=$offload decoys=$decoys"; }

up() {
  need
  lock
  local wanted node nodes=(switch)
  wanted=$(settings)
  if [ -f "$state/ready" ] && [ "$(cat "$state/lab")" = "$wanted" ] && alive; then
    say "lab '$lab' is up already: $wanted"
    return
  fi
  if [ -n "$(everything)" ] || [ -d "$state" ]; then
    say "removing what is left of another lab '$lab'"
    remove
    lock
  fi
  trap 'code=$?; trap - EXIT; [ $code = 0 ] || { say "failed: removing what there is"; remove; rmdir "$labs" 2>/dev/null; }; exit $code' EXIT
  trap 'exit 130' INT TERM
  mkdir -p "$state/tmp"
  hosts_file >"$state/hosts"
  echo "$wanted" >"$state/lab"
  for node in $(names); do nodes+=("$node"); done
  say "namespaces of $hosts hosts and a switch"
  start_nodes "${nodes[@]}"
  say "cables"
  [ $decoys = no ] || for node in $(names); do decoys_of "$node" | in_net "$node" ip -batch -; done
  cables | in_net switch ip -batch -
  for node in $(names); do cards_of "$node" | in_net "$node" ip -batch -; done
  touch "$state/ready"
  say "lab '$lab' is up: h1 … h$hosts, $wanted"
}

# ---- down ----

alive() {
  local node
  for node in switch $(names); do holder "$node" >/dev/null || return; done
}

# The processes of the lab, found without the files that `up` wrote: its nodes, those that are starting, and all inside.
everything() {
  local nodes
  mapfile -t nodes < <(pgrep -u 0 -f "^netlab:$lab:")
  pgrep -u 0 -f -- "--name $lab --inside " || true
  [ ${#nodes[@]} = 0 ] || processes "${nodes[@]}"
}

remove() {
  local left tries
  for tries in {1..100}; do
    left=$(everything)
    [ -n "$left" ] || break
    # shellcheck disable=SC2086 # several words are wanted
    kill -KILL $left 2>/dev/null || true
    sleep 0.05
  done
  [ -z "$left" ] || die "these processes of lab '$lab' do not end:" $left
  rm -rf "$state" "$labs/.$lab.lock"
}

down() {
  need
  local every=("$lab") path
  if [ -n "$all" ]; then
    every=()
    for path in "$labs"/*/; do [ ! -d "$path" ] || every+=("$(basename "$path")"); done
  fi
  for lab in "${every[@]}"; do
    state=$labs/$lab
    lock
    ! pgrep -u 0 -f "^netlab:$lab:" | xargs -r -I{} stat -Lc %i /proc/{}/ns/net | grep -qx "$(network_of self)" ||
      die "this is a host of lab '$lab': run it outside"
    remove
    say "lab '$lab' is down"
  done
  rmdir "$labs" 2>/dev/null || true
}

# ---- commands on hosts ----

# Each host has a TMPDIR of its own: mpirun's sessions are there, and two hosts must not find each other's.
on_host() {
  local node=$1
  shift
  # Paths are the same on all hosts, but this directory has to be found again in the host's tree.
  TMPDIR=$state/tmp NETLAB=$lab enter "$node" --net --uts --ipc --mount -- \
    sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

as_ssh() {
  local node
  while [[ ${1:-} = -* ]]; do
    # Of ssh's options, these have a value.
    case $1 in -[bceDEeFIiJLlmOopQRSWw]) shift ;; esac
    shift
  done
  [ $# -gt 0 ] || die "ssh needs a host"
  # An address will do, too.
  node=$(awk -v name="$1" '$1 == name && $2 ~ /^h[0-9]+$/ { print $2 }' "$state/hosts" 2>/dev/null | head -n 1)
  [ -n "$node" ] || node=$1
  shift
  [ $# -gt 0 ] || set -- 'exec "$SHELL" -l'
  cd
  on_host "$node" env -i HOME="$HOME" USER=root LOGNAME=root SHELL=/bin/sh NETLAB="$lab" NETLAB_STATE="$labs" TMPDIR="$state/tmp" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/sh -c "$*"
}

# Until nothing new comes: what is killed may just have started something.
kill_on() {
  local node pid left tries chosen=("$1")
  [ "$1" != all ] || mapfile -t chosen < <(names)
  for node in "${chosen[@]}"; do
    pid=$(holder "$node")
    for tries in {1..100}; do
      left=$(processes "$pid" | grep -vx "$pid" || true)
      [ -n "$left" ] || break
      # shellcheck disable=SC2086 # several words are wanted
      kill -KILL $left 2>/dev/null || true
      sleep 0.02
    done
    [ -z "$left" ] || die "these processes on $node do not end:" $left
  done
}

# ---- telling ----

settled() { sed -n "s/.*$1=\([^ ]*\).*/\1/p" "$state/lab"; }

list_hosts() {
  local node k separator='' cards card v4 v6
  family=$(settled family)
  [ -z "$json" ] || printf '['
  for node in $(names); do
    cards=
    for ((k = 0; k < $(settled nics); k++)); do
      v4= v6=
      [ "$family" = v6 ] || v4=$(v4_of "$node" $k)
      [ "$family" = v4 ] || v6=$(v6_of "$node" $k)
      if [ -n "$json" ]; then
        card=$(printf '{"name":"eth%d","ipv4":"%s","ipv6":"%s","local":"%s%%eth%d"}' $k "$v4" "$v6" "$(local_of "$node" $k)" $k)
        cards+=${cards:+,}${card//\"\"/null}
      else
        cards+="  eth$k $v4 $v6 $(local_of "$node" $k)"
      fi
    done
    if [ -n "$json" ]; then printf '%s{"host":"%s","interfaces":[%s]}' "$separator" "$node" "$cards"; else echo "$node$cards"; fi
    separator=,
  done
  [ -z "$json" ] || echo ']'
}

# Faults in force, as the commands that made them wrote them down.
faults_of() {
  local kind
  for kind in link drop loss rate delay; do
    [ ! -f "$state/$1.$kind" ] || echo "$kind=$(cat "$state/$1.$kind")"
  done
}

status() {
  local node pid running faults separator=''
  if [ ! -f "$state/ready" ] || ! alive; then
    [ -z "$json" ] || printf '{"lab":"%s","up":false}\n' "$lab"
    [ -n "$json" ] || echo "lab '$lab' is not up"
    return 1
  fi
  [ -z "$json" ] || printf '{"lab":"%s","up":true,"settings":"%s","hosts":[' "$lab" "$(cat "$state/lab")"
  [ -n "$json" ] || echo "lab '$lab': $(cat "$state/lab")"
  for node in $(names); do
    pid=$(holder "$node")
    # Besides the one that holds the namespaces.
    running=$(($(processes "$pid" | wc -l) - 1))
    faults=$(faults_of "$node")
    if [ -n "$json" ]; then
      faults=$(sed -n 's/\(.*\)=\(.*\)/"\1":"\2"/p' <<<"$faults" | paste -sd, -)
      printf '%s{"host":"%s","pid":%d,"processes":%d,"faults":{%s}}' "$separator" "$node" "$pid" "$running" "$faults"
    else
      echo "$node: holder $pid, $running processes, faults: ${faults:-none}" | paste -sd' ' -
    fi
    separator=,
  done
  [ -z "$json" ] || echo ']}'
}

traffic() {
  local port from=0 to=0 bytes
  for port in $(ports "$1"); do
    # As the switch sees it.
    mapfile -t bytes < <(enter switch --net -- ip -s -j link show dev "$port" | grep -oE '"bytes":[0-9]+' | cut -d: -f2)
    from=$((from + bytes[0])) to=$((to + bytes[1]))
  done
  echo "$from $to"
}

# ---- faults ----

# note HOST KIND [VALUE]: for status; no value: no fault.
note() { if [ -n "${3:-}" ]; then echo "$3" >"$state/$1.$2"; else rm -f "$state/$1.$2"; fi; }

ports() {
  local k
  for ((k = 0; k < $(settled nics); k++)); do echo "$1.$k"; done
}

set_link() {
  local port tries
  [[ $2 = up || $2 = down ]] || die "link takes up or down"
  # The switch's end: the host's own stays up, and keeps its addresses and routes, as with a real cable.
  for port in $(ports "$1"); do in_net switch ip link set "$port" "$2"; done
  note "$1" link "${2#up}"
  # The host's kernel believes it a little later.
  for port in $(ports "$1"); do
    for tries in {1..100}; do
      in_net "$1" ip -o link show dev "eth${port#*.}" | grep -qE "state $([ "$2" = up ] && echo UP || echo '(LOWERLAYER)?DOWN')" && break
      sleep 0.05
    done
  done
}

# sieve HOST KIND EXPRESSION: packets for which the expression holds are dropped at the switch, both ways; none if it is empty.
sieve() {
  command -v nft >/dev/null || die "no program 'nft': apt-get install nftables"
  local set
  set="{ $(ports "$1" | sed 's/.*/"&"/' | paste -sd, -) }"
  {
    echo "table bridge $2_$1"
    echo "delete table bridge $2_$1"
    [ -z "$3" ] || echo "table bridge $2_$1 { chain sieve { type filter hook forward priority 0
      iifname $set $3 drop
      oifname $set $3 drop
      }
    }"
  } | in_net switch nft -f - || die "this kernel cannot do it: nftables for bridges is needed (CONFIG_NF_TABLES_BRIDGE, CONFIG_NFT_NUMGEN)"
}

set_drop() {
  case $2 in
    on) sieve "$1" drop 'counter' && note "$1" drop on ;;
    off) sieve "$1" drop '' && note "$1" drop ;;
    *) die "drop takes on or off" ;;
  esac
}

set_loss() {
  [[ $2 =~ ^[0-9]{1,3}(\.[0-9]{1,4})?$ ]] || die "loss takes a part in percent, not '$2'"
  local millionth
  millionth=$(awk -v p="$2" 'BEGIN { printf "%d", p * 10000 }')
  [ "$millionth" -le 1000000 ] || die "loss takes at most 100 %"
  if [ "$millionth" = 0 ]; then
    sieve "$1" loss '' && note "$1" loss
  else
    # numgen counts to a million less one.
    [ "$millionth" != 1000000 ] || { sieve "$1" loss counter && note "$1" loss 100 && return; }
    sieve "$1" loss "numgen random mod 1000000 < $millionth" && note "$1" loss "$2"
  fi
}

set_rate() {
  local port node=$1 rate=$2 way
  for port in $(ports "$node"); do
    for way in "switch $port" "$node eth${port#*.}"; do
      # shellcheck disable=SC2086 # two words are wanted
      set -- $way
      in_net "$1" tc qdisc del dev "$2" root 2>/dev/null || true
      # A bucket of some milliseconds, and a queue behind it that is short enough to be noticed by the sender.
      [ "$rate" = 0 ] || in_net "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 256kb latency 20ms ||
        die "tc refused: is the rate as in 100mbit, and has the kernel CONFIG_NET_SCH_TBF?"
    done
  done
  note "$node" rate "${rate#0}"
}

mend() {
  set_link "$1" up
  set_drop "$1" off
  set_loss "$1" 0
  set_rate "$1" 0
}

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

# fault COUNT: what the words after the command must be: a host, and COUNT more.
fault() {
  need
  [ ${#words[@]} -ge $(($1 + 2)) ] || die "${words[0]} needs a host and $1 more (see --help)"
  [[ ${words[0]} = kill && ${words[1]} = all ]] || holder "${words[1]}" >/dev/null || die "no host '${words[1]}' in lab '$lab' (see ci/netlab.sh hosts)"
  lock
}

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
    self-test) exec "$here/netlab-test.sh" ;;
    link) fault 1 && set_link "$2" "$3" ;;
    flap)
      fault 0
      set_link "$2" down
      sleep "${3:-1}"
      set_link "$2" up
      ;;
    drop) fault 1 && set_drop "$2" "$3" ;;
    loss) fault 1 && set_loss "$2" "$3" ;;
    rate) fault 1 && set_rate "$2" "$3" ;;
    traffic) fault 0 && traffic "$2" ;;
    kill) fault 0 && kill_on "$2" ;;
    mend) fault 0 && mend "$2" ;;
    --inside) inside "$2" ;;
    '') usage >&2; exit 2 ;;
    *) die "unknown command '$1' (see --help)" ;;
  esac
}

main "$@"
