# What runs on the hosts of a lab of ci/netlab.sh, and what is told of them.
# shellcheck shell=bash disable=SC2154 # the variables are of ci/netlab.sh, which reads this file

# ---- commands on hosts ----

# Each host has a TMPDIR of its own: mpirun's sessions are there, and two hosts must not find each other's.
# It becomes the command, so that signals, and the exit code, are between that and whoever called.
on_host() {
  local node=$1 pid
  shift
  pid=$(holder "$node") || die "no host '$node' in lab '$lab': ci/netlab.sh up --name $lab"
  # Paths are the same on all hosts, but this directory has to be found again in the host's tree.
  exec env TMPDIR="$state/tmp" NETLAB="$lab" NETLAB_HOST="$lab/$node/" nsenter -t "$pid" --net --uts --ipc --mount -- \
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
  on_host "$node" env -i HOME="$HOME" USER=root LOGNAME=root SHELL=/bin/sh NETLAB="$lab" NETLAB_HOST="$lab/$node/" NETLAB_STATE="$labs" TMPDIR="$state/tmp" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/sh -c "$*"
}

# Until nothing new comes: what is killed may just have started something.
kill_on() {
  local node pid left tries chosen=("$1")
  outside
  [ "$1" != all ] || mapfile -t chosen < <(names)
  for node in "${chosen[@]}"; do
    pid=$(holder "$node")
    for tries in {1..100}; do
      left=$(processes "$node" "$pid" | grep -vx "$pid" || true)
      [ -n "$left" ] || break
      # shellcheck disable=SC2086 # several words are wanted
      kill -KILL $left 2>/dev/null || true
      sleep 0.02
    done
    [ -z "$left" ] || die "these processes on $node do not end: ${left//$'\n'/ }"
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
    running=$(($(processes "$node" "$pid" | wc -l) - 1))
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
    mapfile -t bytes < <(in_net switch ip -s -j link show dev "$port" | grep -oE '"bytes":[0-9]+' | cut -d: -f2)
    from=$((from + bytes[0])) to=$((to + bytes[1]))
  done
  echo "$from $to"
}
