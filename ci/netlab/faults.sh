# What can go wrong on the cables of a lab of ci/netlab.sh.
# shellcheck shell=bash disable=SC2154 # the variables are of ci/netlab.sh, which reads this file

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
  set_delay "$1" 0
}

# delay HOST MS…: puts a relay into each of its cables: host, bridge, TAP, relay, TAP, the common bridge.
set_delay() {
  local node=$1 port tries
  shift
  # Wrong options are told before anything is changed.
  "$here/netlab/relay.py" "$@" || exit 2
  for port in $(ports "$node"); do unrelay "$port"; done
  note "$node" delay
  [ "$*" != 0 ] || return 0
  [ -e /dev/net/tun ] || die "a delay needs /dev/net/tun"
  for port in $(ports "$node"); do
    # The names are as long as names of interfaces may be.
    in_net switch ip -batch - <<END
tuntap add $port-i mode tap
tuntap add $port-o mode tap
link add $port-b type bridge stp_state 0 forward_delay 0 mcast_snooping 0
link set $port-i mtu $(settled mtu) master $port-b up
link set $port-o mtu $(settled mtu) master br${port#*.} up
link set $port master $port-b
link set $port-b up
END
    in_net switch setsid "$here/netlab/relay.py" --cable "$port-i" "$port-o" "$@" </dev/null >"$state/$port.relay" 2>&1 9>&- &
    for tries in {1..100}; do
      ! grep -qs relaying "$state/$port.relay" || break
      sleep 0.05
    done
    grep -q relaying "$state/$port.relay" || die "the relay does not start: $(tail -n 1 "$state/$port.relay")"
  done
  note "$node" delay "$*"
}

# Takes the relay out of a cable and tells what it did.
unrelay() {
  local port=$1 end tries
  [ -f "$state/$port.relay" ] || return 0
  in_net switch ip link set "$port" master "br${port#*.}"
  # It ends when its interfaces are gone.
  for end in i o b; do in_net switch ip link del "$port-$end"; done
  for tries in {1..40}; do
    ! grep '^{' "$state/$port.relay" >&2 || break
    sleep 0.05
  done
  rm "$state/$port.relay"
}
