# How a lab of ci/netlab.sh is made and undone.
# shellcheck shell=bash disable=SC2154 # the variables are of ci/netlab.sh, which reads this file

# ---- up ----

need() {
  [ "$(id -u)" = 0 ] || die "needs root (namespaces, virtual cables)"
  local program
  for program in ip:iproute2 pgrep:procps ps:procps unshare:util-linux nsenter:util-linux setsid:util-linux flock:util-linux; do
    command -v "${program%:*}" >/dev/null || die "no program '${program%:*}': apt-get install ${program#*:} (or ci/setup.sh)"
  done
}

# The only one who changes a lab. Holders do not inherit the lock.
lock() {
  local file=$labs/.$lab.lock tries
  # Again if whoever had it took the file away, or the directory.
  for tries in {1..100}; do
    mkdir -p "$labs"
    exec 9>"$file" || continue
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
      [ $waited -lt 600 ] || die "$node does not start: $(tail -n 3 "$state/$node.log")"
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
  trap 'exit 130' INT TERM
  lock
  trap 'code=$?; trap - EXIT; [ $code = 0 ] || { say "failed: removing what there is"; remove; rmdir "$labs" 2>/dev/null; }; exit $code' EXIT
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
  processes '' "${nodes[@]}"
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
  [ -z "$left" ] || die "these processes of lab '$lab' do not end: ${left//$'\n'/ }"
  rm -rf "$state" "$labs/.$lab.lock"
}

# A host cannot kill what runs on it, and live.
outside() {
  local network
  network=$(stat -Lc %i /proc/self/ns/net)
  # shellcheck disable=SC2046 # several words are wanted
  [[ " $(namespaces $(pgrep -u 0 -f "^netlab:$lab:") | paste -sd' ') " != *" $network "* ]] || die "this is a host of lab '$lab': run it outside"
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
    outside
    remove
    say "lab '$lab' is down"
  done
  rmdir "$labs" 2>/dev/null || true
}
