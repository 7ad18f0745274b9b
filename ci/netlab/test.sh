#!/usr/bin/env bash
# Tests ci/netlab.sh: that hosts are hosts, that faults do what they say, and that nothing is left. Needs root, and a minute.
#
# Usage: ci/netlab/test.sh [--only GROUP[,GROUP]] [--help]
#
# Groups: hosts network faults relay down shapes
# Prints a line for each test and, last, "N passed, N failed"; exits with 1 if any failed.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export NETLAB=test-$$
netlab=$(dirname "$here")/netlab.sh
groups=(hosts network faults relay down shapes)
passed=0
failed=0
work=
nap= # how long what is to be ended sleeps, at most
all= # the processes of the lab before it was taken down

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# check WHAT COMMAND…: one test; a failed one shows what the command said.
check() {
  local what=$1 said
  shift
  if said=$("$@" 2>&1); then
    passed=$((passed + 1))
    echo "PASS $group: $what"
  else
    failed=$((failed + 1))
    echo "FAIL $group: $what"
    sed 's/^/    /' <<<"$said" | tail -n 5
  fi
}

fails() { ! "$@"; }
# ends CODE COMMAND…: it ends with this one, and not with the one of a time limit.
ends() { local code=0 && "${@:2}" || code=$?; echo "exit code $code" && [ $code = "$1" ]; }
says() { local wanted=$1 said && shift && { said=$("$@" 2>/dev/null) || [ -z "$wanted" ]; } && echo "$said" && [ "$said" = "$wanted" ]; }
contains() { local wanted=$1 said && shift && said=$("$@") && echo "$said" && [[ $said == *"$wanted"* ]]; }
# holds EXPRESSION: of awk, in numbers that were measured.
holds() { echo "$1" && awk "BEGIN { exit !($1) }"; }
# within MIN MAX COMMAND…: the command prints a number between these.
within() { local said && said=$("${@:3}") && holds "$1 < $said && $said < $2"; }
# What is slow once may have been so for want of a core.
eventually() { "$@" || "$@" || "$@"; }
# What takes a moment; but not for ever.
soon() {
  local tries
  for tries in {1..400}; do
    ! "$@" || return 0
    sleep 0.05
  done
  echo "not after $tries looks"
  return 1
}
on() { "$netlab" exec "$@"; }
# Python is what talks here: there may be no ping.
talk() { on "$1" python3 "$work/talk.py" "${@:2}"; }

talk_program() {
  cat <<'END'
"""Small talk between two hosts.
   listen: answers each connection: sends back what comes, or swallows it and tells at its end how much.
   echo HOST [FAMILY]: true if a message comes back. flow HOST BYTES: megabytes a second.
   datagrams HOST COUNT: how many of so many come back in order, how many at all, and the median time of a round trip."""
import socket, statistics, struct, sys, threading, time

PORT = 7077
what, arguments = sys.argv[1], sys.argv[2:]

def serve(link):
    with link:
        kind, total = link.recv(1), 0
        while data := link.recv(1 << 20):
            total += len(data)
            if kind == b"e":
                link.sendall(data)
        if kind == b"f":
            link.sendall(struct.pack("Q", total))

def mailbox(family):
    """Holds all datagrams of a test: those that find no room because nobody had a core to take them would count as lost."""
    box = socket.socket(family, socket.SOCK_DGRAM)
    box.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    return box

def connect(host, family=socket.AF_UNSPEC, patience=2):
    family, kind, _, _, address = socket.getaddrinfo(host, PORT, family, socket.SOCK_STREAM)[0]
    link = socket.socket(family, kind)
    link.settimeout(patience)
    link.connect(address)
    link.settimeout(60)
    return link

if what == "listen":
    box = mailbox(socket.AF_INET6)
    box.bind(("::", PORT))
    def answer():
        while True:
            data, sender = box.recvfrom(2000)
            box.sendto(data, sender)
    threading.Thread(target=answer, daemon=True).start()
    with socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        print("listening", flush=True)
        while True:
            threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
elif what == "echo":
    families = {"4": socket.AF_INET, "6": socket.AF_INET6}
    with connect(arguments[0], families.get(arguments[1], 0) if arguments[1:] else 0) as link:
        link.sendall(b"e" + b"hello")
        sys.exit(link.recv(5) != b"hello")
elif what == "flow":
    left, block = int(arguments[1]), bytes(1 << 16)
    with connect(arguments[0], patience=20) as link:
        begun = time.monotonic()
        link.sendall(b"f")
        while left > 0:
            left -= link.send(block[:left])
        link.shutdown(socket.SHUT_WR)
        total = struct.unpack("Q", link.recv(8))[0]
        print(f"{total / (time.monotonic() - begun) / 1e6:.2f}")
elif what == "datagrams":
    host, count = arguments[0], int(arguments[1])
    family, _, _, _, address = socket.getaddrinfo(host, PORT, type=socket.SOCK_DGRAM)[0]
    box = mailbox(family)
    box.settimeout(2)
    def send():
        for number in range(count):
            box.sendto(struct.pack("Id", number, time.monotonic()), address)
            time.sleep(0.0005)
    threading.Thread(target=send, daemon=True).start()
    seen, ordered, last, times = 0, 0, -1, []
    try:
        while seen < count:
            number, sent = struct.unpack("Id", box.recv(100))
            times.append(time.monotonic() - sent)
            seen, ordered, last = seen + 1, ordered + (number > last), max(number, last)
    except TimeoutError:
        pass
    print(ordered, seen, f"{1e3 * statistics.median(times) if times else -1:.3f}")
END
}

# Starts a listener on a host and waits until it listens.
listen() {
  : >"$work/$1.out" # of the one before
  on "$1" python3 "$work/talk.py" listen >"$work/$1.out" 2>&1 &
  ! soon grep -q listening "$work/$1.out" || return 0
  echo "no listener on $1: $(cat "$work/$1.out")"
  return 1
}

up() { "$netlab" up "$@" 2>"$work/up.log" || { cat "$work/up.log" && return 1; }; }

# All processes of the lab, each with when it started: numbers come again.
inmates() {
  local holders wanted inode path
  holders=$(pgrep -f "^netlab:$NETLAB:")
  wanted=" $(for pid in $holders; do stat -Lc %i "/proc/$pid/ns/net"; done | paste -sd' ') "
  stat -Lc '%i %n' /proc/[0-9]*/ns/net 2>/dev/null | while read -r inode path; do
    [[ $wanted != *" $inode "* ]] || age "$(cut -d/ -f3 <<<"$path")"
  done
}

# A zombie is nothing that a lab could end.
age() { awk '{ sub(/.*\) /, "") } $1 != "Z" { print "'"$1"'", $20 }' "/proc/$1/stat" 2>/dev/null; }

# What can keep a namespace alive are processes, mounts and open files, and the last are of processes.
nothing_left() {
  local pid when
  while read -r pid when; do
    [ -z "$pid" ] || [ "$(age "$pid")" != "$pid $when" ] || { echo "there still is $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline")" && return 1; }
  done <<<"$all"
  diff <(echo "$before") <(machine)
}

# Where else a lab could leave something.
machine() {
  pgrep -f "$NETLAB( |:)" -l | grep -v netlab/test
  ip -o link | cut -d: -f2 | sort
  grep -E "nsfs|$NETLAB" /proc/self/mountinfo
  find "${NETLAB_STATE:-/run/rustmx-netlab}" -name "*$NETLAB*" ! -name '*.lock' 2>/dev/null
  true
}

# ---- tests ----

test_hosts() {
  check "addresses count at once" says '' bash -c "'$netlab' exec h1 ip -6 addr show tentative"
  check "up again changes nothing" contains "up already" bash -c "'$netlab' up --hosts 3 --dual --nics 2 2>&1"
  check "names differ" says "h1 h2 h3" bash -c "for h in h1 h2 h3; do '$netlab' exec \$h uname -n; done | paste -sd' '"
  check "the machine keeps its name" fails grep -qx 'h[123]' /proc/sys/kernel/hostname
  check "the hosts file counts" contains 10.77.0.3 on h1 getent ahostsv4 h3
  check "its own name is a real address" contains 10.77.0.1 on h1 getent ahostsv4 h1
  check "IPv6 names" contains fd77:6d78::3 on h1 getent ahostsv6 h3
  check "no name server is waited for" ends 2 timeout 2 "$netlab" exec h1 getent hosts nobody.invalid
  check "/sys shows its own interfaces" says "eth0 eth1 lo" bash -c "'$netlab' exec h1 ls /sys/class/net | paste -sd' '"
  check "the same directory" says "$PWD" on h2 pwd
  check "the environment goes along" says b env A=b "$netlab" exec h2 printenv A
  check "exit codes come back" bash -c "'$netlab' exec h2 sh -c 'exit 7'; [ \$? = 7 ]"
  check "ssh: by a shell, at home" says "$HOME h2" "$netlab" ssh -q -x -l root h2 'echo $HOME' '$(uname -n)'
  check "ssh: a fresh environment" says none env A=b "$netlab" ssh h2 'echo ${A:-none}'
  check "ssh: addresses will do" says h3 "$netlab" ssh 10.77.0.3 uname -n
  check "ssh: from one host to another" says h3 on h1 "$here/agent.sh" h3 uname -n
  check "a name of no host is an error" contains "no host 'h9'" bash -c "! '$netlab' exec h9 true 2>&1"
  on h1 touch /dev/shm/netlab-test
  check "/dev/shm is a host's own" fails on h2 test -e /dev/shm/netlab-test
  check "/dev/shm is not this machine's" fails test -e /dev/shm/netlab-test
  on h1 sh -c 'touch $TMPDIR/netlab-test'
  check "TMPDIR is a host's own" fails on h2 sh -c 'test -e $TMPDIR/netlab-test'
  check "System V memory is a host's own" bash -c "'$netlab' exec h1 ipcmk -M 4096 >/dev/null && [ \$('$netlab' exec h2 ipcs -m | grep -c 4096) = 0 ]"
  check "hosts --json" python3 -c 'import json,sys; h=json.loads(sys.argv[1]); assert [x["host"] for x in h]==["h1","h2","h3"] and h[2]["interfaces"][1]["ipv6"]=="fd77:6d78:0:1::3", h' \
    "$("$netlab" hosts --json)"
}

test_network() {
  check "a listener" listen h2
  check "by name" talk h1 echo h2
  check "IPv4" talk h1 echo 10.77.0.2 4
  check "IPv6" talk h3 echo fd77:6d78::2 6
  check "link-local" talk h1 echo fe80::ff:fe00:2%eth0
  check "the second cable" talk h1 echo 10.77.1.2
  check "a host reaches itself" talk h2 echo h2
  check "loopback is a host's own" fails talk h1 echo 127.0.0.1
  check "nobody listens on h3" fails talk h1 echo h3
  check "the machine outside sees nothing" fails timeout 5 python3 "$work/talk.py" echo 10.77.0.2
  local before after
  before=$("$netlab" traffic h2 | cut -d' ' -f2)
  talk h1 flow h2 10000000 >/dev/null
  after=$("$netlab" traffic h2 | cut -d' ' -f2)
  check "traffic counts" holds "$after - $before > 10000000 && $after - $before < 12000000"
}

test_faults() {
  local said
  "$netlab" kill h2
  listen h2
  # Else h1 would ask in vain where h2 is while the cable is pulled, and believe the answer for a moment longer.
  check "reachable" talk h1 echo h2
  "$netlab" link h2 down
  check "link down: no carrier" says 0 on h2 cat /sys/class/net/eth0/carrier
  check "link down: unreachable" fails talk h1 echo h2
  check "link down: the host keeps its addresses" contains fd77:6d78::2 on h2 ip addr
  check "status tells it" contains '"link":"down"' "$netlab" status --json
  "$netlab" link h2 up
  check "link up: carrier" says 1 on h2 cat /sys/class/net/eth0/carrier
  check "link up: reachable" talk h1 echo h2
  "$netlab" rate h2 400mbit # so that it takes two seconds
  (sleep 0.5 && "$netlab" flap h2 1) &
  check "flap: a long message survives it" within 0 1e6 talk h1 flow h2 100000000
  wait $!
  "$netlab" rate h2 0
  "$netlab" drop h2 on
  check "drop: carrier" says 1 on h2 cat /sys/class/net/eth0/carrier
  check "drop: silence, not refusal" contains "timed out" bash -c "! '$netlab' exec h1 python3 '$work/talk.py' echo h2 2>&1"
  check "drop: others go on" bash -c "'$netlab' exec h1 true"
  "$netlab" drop h2 off
  check "drop off: reachable" talk h1 echo h2
  "$netlab" loss h2 20
  read -r _ said _ < <(talk h1 datagrams h2 1000)
  # Both ways: 64 % come back.
  check "loss 20: two of three come back" holds "$said > 560 && $said < 720"
  "$netlab" loss h2 0
  read -r _ said _ < <(talk h1 datagrams h2 1000)
  check "loss 0: all come back" says 1000 echo "$said"
  "$netlab" rate h2 80mbit
  check "rate 80mbit: 10 MB/s to it" within 4 10.5 talk h1 flow h2 20000000
  listen h1
  check "rate 80mbit: 10 MB/s from it" within 4 10.5 talk h2 flow h1 20000000
  "$netlab" rate h2 0
  check "rate 0: much more" eventually within 20 1e6 talk h1 flow h2 200000000
  check "a rate that is none is an error" contains "tc refused" bash -c "! '$netlab' rate h2 nonsense 2>&1"
  for fault in "link h2 down" "drop h2 on" "loss h2 100" "rate h2 1mbit"; do
    # shellcheck disable=SC2086 # several words are wanted
    "$netlab" $fault
  done
  check "status tells them all" contains "link=down drop=on loss=100 rate=1mbit" "$netlab" status
  "$netlab" mend h2
  check "mend ends them all" eventually within 20 1e6 talk h1 flow h2 200000000
  check "mended: status tells none" contains "h2: holder" bash -c "'$netlab' status | grep 'h2.*faults: none'"
  "$netlab" kill h2
  check "kill: nobody listens" contains refused bash -c "! '$netlab' exec h1 python3 '$work/talk.py' echo h2 2>&1"
  check "kill: the host is there" says h2 on h2 uname -n
}

test_relay() {
  local ordered seen time first
  "$netlab" kill h2
  listen h2
  check "wrong options change nothing" fails "$netlab" delay h2 10 --reorder 101
  "$netlab" delay h2 20 --jitter 2
  read -r ordered seen time < <(talk h1 datagrams h2 500)
  # Both ways, and half of the jitter on average.
  check "delay 20: a round trip takes 40 ms" holds "$time >= 40 && $time < 60"
  check "delay: nothing is lost" says 500 echo "$seen"
  check "jitter keeps the order" says 500 echo "$ordered"
  check "the second cable, too" within 40 1e4 slowness h1 10.77.1.2
  check "a listener elsewhere" listen h3
  check "h1 and h3 do not notice" eventually within 0 20 slowness h1 h3
  check "link-local and IPv6" talk h1 echo fe80::ff:fe00:2%eth0
  "$netlab" delay h2 1 --reorder 20 --hold 5 2>/dev/null
  read -r ordered seen time < <(talk h1 datagrams h2 500)
  check "reorder: nothing is lost" says 500 echo "$seen"
  check "reorder: some come late" holds "$ordered < 450 && $ordered > 50"
  check "reorder: a long message arrives" eventually within 5 1e6 talk h1 flow h2 100000000
  "$netlab" delay h2 0 --loss 20 --seed 7 2>/dev/null
  read -r _ first _ < <(talk h1 datagrams h2 1000)
  check "loss 20: two of three come back" holds "$first > 560 && $first < 720"
  "$netlab" delay h2 1 --rate 80 2>/dev/null
  check "rate 80: 10 MB/s" within 4 10.5 talk h1 flow h2 20000000
  "$netlab" link h2 down
  check "link down counts" fails talk h1 echo h2
  "$netlab" link h2 up
  check "link up again" talk h1 echo h2
  "$netlab" delay h2 0.05 2>/dev/null
  check "100 MB/s go through it" eventually within 100 1e6 talk h1 flow h2 400000000
  "$netlab" delay h2 0 2>/dev/null
  check "delay 0: no relay" fails pgrep -f "relay.py --cable h2.0-i"
  check "delay 0: fast again" eventually within 0 5 slowness h1 h2
}

# The median time of a round trip.
slowness() { talk "$1" datagrams "$2" 100 | cut -d' ' -f3; }

all_are_there() { grep -q deaf "$work/deaf" && [ "$(pgrep -fxc "sleep $nap")" = 3 ]; }

test_down() {
  "$netlab" delay h2 1
  nap=1000.$$ # nobody else's
  : >"$work/deaf"
  # One that defies signals and left its session, and one that did neither.
  on h1 setsid sh -c 'trap "" HUP TERM INT; echo deaf; while :; do sleep 1; done' >"$work/deaf" 2>&1 &
  on h3 sleep "$nap" >"$work/alone" 2>&1 &
  # One in a network of its own, and one of which nothing is the host's.
  on h2 unshare --net sleep "$nap" >"$work/alone" 2>&1 &
  on h2 unshare --net --mount --ipc --uts --fork sleep "$nap" >"$work/alone" 2>&1 &
  check "they are there" soon all_are_there
  all=$({ inmates; for pid in $(pgrep -fx "sleep $nap"); do age "$pid"; done; } | sort -u)
  check "the test sees them" holds "$(wc -l <<<"$all") >= 4 + 4" # a switch, three hosts, what was started
  check "a host cannot take it down" contains "run it outside" bash -c "! '$netlab' exec h1 '$netlab' down 2>&1"
  check "down" "$netlab" down
  check "nothing is left" nothing_left
  check "down again" "$netlab" down
  check "no lock is left" says '' find "${NETLAB_STATE:-/run/rustmx-netlab}" -name "*$NETLAB*"
  check "status says so" fails "$netlab" status
  # An up that is interrupted, and one that is killed.
  timeout -s TERM 0.15 "$netlab" up --hosts 40 2>/dev/null
  check "up interrupted" nothing_left
  timeout -s KILL 0.3 "$netlab" up --hosts 40 2>/dev/null
  check "up killed, and down" "$netlab" down
  check "nothing is left" nothing_left
  up --hosts 2
  all=$(inmates)
  rm -rf "${NETLAB_STATE:-/run/rustmx-netlab}/$NETLAB"
  check "down without the lab's files" "$netlab" down
  check "nothing is left" nothing_left
}

test_shapes() {
  check "up" up --hosts 2 --ipv6-only --mtu 9000
  check "another shape: made anew" contains "mtu=9000" "$netlab" status
  check "IPv6 only" fails on h1 getent ahostsv4 h2
  listen h2
  check "by name" talk h1 echo h2
  check "MTU" says 9000 on h1 cat /sys/class/net/eth0/mtu
  check "made anew over the old one" up --hosts 2 --decoys --no-offload
  check "decoys come first" says "docker0 docker0c docker0p down0 ptp0 eth0" bash -c "'$netlab' exec h1 ip -o link | awk -F'[ @:]+' '\$2 != \"lo\" && \$2 != \"eth0\" { print \$2 } \$2 == \"eth0\" { last = \$2 } END { print last }' | { mapfile -t n; printf '%s\n' \"\${n[@]:0:5}\" | sort; echo \"\${n[5]}\"; } | paste -sd' '"
  check "64 hosts" up --hosts 64
  listen h64
  all=$(inmates)
  check "the first reaches the last" talk h1 echo h64
  check "down" "$netlab" down
  check "nothing is left" nothing_left
}

main() {
  case ${1:-} in
    -h | --help) usage && exit ;;
    --only) IFS=, read -ra groups <<<"${2:?--only needs a group}" ;;
    '') ;;
    *) echo "netlab/test.sh: unknown argument '$1'" >&2 && exit 2 ;;
  esac
  work=$(mktemp -d)
  trap '"$netlab" down 2>/dev/null; rm -rf "$work"' EXIT
  talk_program >"$work/talk.py"
  before=$(machine)
  trap 'exit 130' INT TERM
  for group in "${groups[@]}"; do
    declare -F "test_$group" >/dev/null || { echo "netlab/test.sh: no group '$group'" >&2 && exit 2; }
    check "up" up --hosts 3 --dual --nics 2
    "test_$group"
  done
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

main "$@"
