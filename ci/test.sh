#!/usr/bin/env bash
# The whole test run, from a clean clone. Last line: "N passed, N failed, N skipped".
#
# Usage: ci/test.sh [--only STEP[,STEP]] [--list] [--quick] [--help]
#
#   --only STEP[,STEP]  these steps only, in the order below
#   --list              the steps, one a line
#   --quick             a shorter mpi step (mpi-tests/run.sh --quick)
#
# Every step has a log under target/ci; a step that fails shows the end of it, and the run goes on.
# Counted are the tests that a step reports, or the step itself if it reports none. A step that the
# machine cannot run (no miri, no nightly, no aarch64 standard library: nothing of this kind is
# downloaded) is skipped with the reason. Exits with 1 if anything failed.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
logs=$root/target/ci
started=$SECONDS
quick=
passed=0
failed=0
skipped=0
failures=()
child= # the step that runs

export CARGO_TERM_COLOR=never CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
export RUSTUP_AUTO_INSTALL=0 # a missing toolchain is a reason to skip
unset RUSTFLAGS
# As the test harness does: programs and libraries that tests start would else be compiled, with all below them, a second time. Where C calls us a panic ends
# the process in any case; one in a thread of ours ends that thread, and the test by its watchdog.
export CARGO_PROFILE_DEV_PANIC=unwind
# What a later build could take over is worth nothing to a clean clone, whose builds are the first and last. A tree that has
# such things goes on with them: the other way is another build of everything.
[ -n "$(ls "$CARGO_TARGET_DIR/debug/incremental" 2>/dev/null)" ] || export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
# Tests are of the shipped table, whatever this user measured.
export FI_RUSTMX_PROFILE=off

all_steps=(setup fmt clippy floors scripts build test network loom miri asan tsan benches aarch64 budget cli papers mpi suites netlab)

describe() {
  case $1 in
    setup) echo "what the rest needs: Debian packages and the MPIs (ci/setup.sh)" ;;
    fmt) echo "rustfmt --check of all files" ;;
    clippy) echo "clippy on all targets, warnings are errors" ;;
    floors) echo "who imports whom, the fence around unsafe, sizes (ci/check-floors.py) and its self-test" ;;
    scripts) echo "the arithmetic of ci/compare-mpi.py, ci/bench.py, ci/turns.py, ci/compare-tcp.py, mpi-tests/papers and the laboratory's relay" ;;
    test) echo "cargo test of the workspace; through real libfabric too (capi/tests), and programs on the heap as it is shipped" ;;
    network) echo "the engine's tests with all peers reached by TCP, and some of them encrypted" ;;
    build) echo "what is shipped (the provider, the heap, the command) and what is counted; the tests beside it, if they are to come" ;;
    loom) echo "every interleaving of the ring, the bell, stances, split copies, invitations, hands, and the registration cache's news" ;;
    miri) echo "undefined behaviour in the parts that make no system call" ;;
    asan) echo "the engine's tests under the address and leak sanitizers" ;;
    tsan) echo "the engine's tests, and many threads through the C ABI, under the thread sanitizer" ;;
    benches) echo "benches compile, and criterion's run once" ;;
    aarch64) echo "the workspace compiles for aarch64" ;;
    budget) echo "instructions of the hot paths (ci/budget.sh)" ;;
    cli) echo "the command rustmx as it is shipped: explain, a short comparison with its page, a short tune and its table" ;;
    papers) echo "a quick look at what mpi-tests/papers measures: every section has figures, and the page is written" ;;
    mpi) echo "stock MPIs over the release library (mpi-tests/run.sh), and short runs of ci/compare-mpi.sh and ci/turns.sh with them" ;;
    suites) echo "other people's suites: the parts that take seconds (ci/conformance.sh short), and some of them by TCP" ;;
    netlab) echo "several hosts on this machine: the laboratory itself, and stock MPIs over it" ;;
  esac
}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

say() { printf '[test %4ds] %s\n' $((SECONDS - started)) "$*"; }

# A step calls this with the reason, and returns what it returns.
skip() {
  echo "SKIP: $*"
  return 77
}

# ---- steps: each prints to its log; exit code 77 means skipped ----

step_setup() { "$root/ci/setup.sh"; }

# Not cargo fmt: it does not see the modules that a macro of provider/src/lib.rs declares.
step_fmt() { find provider capi cli heap -name '*.rs' -print0 | xargs -0 rustfmt --edition 2024 --check --color never; }

step_clippy() { CLIPPY_CONF_DIR=$root/ci cargo clippy --workspace --all-targets -- -D warnings; }

step_floors() { ci/check-floors.py --self-test && ci/check-floors.py; }

step_scripts() { python3 ci/compare_test.py && python3 ci/goals_test.py && python3 ci/turns_test.py && python3 ci/tcp_goals_test.py && python3 mpi-tests/papers/figures_test.py && python3 ci/netlab/relay_test.py; }

# ran [--each FILTERS] COMMAND…: what runs tests; fails if it ran none, or none of one of these filters: to cargo, a filter that matches nothing is a success.
ran() {
  local each='' filter out=$logs/ran code=0
  [ "$1" != --each ] || { each=$2 && shift 2; }
  "$@" | tee "$out" || code=$?
  [ $code = 0 ] || return $code
  grep -qE '^Success$|^test result: ok\. [1-9]' "$out" || { echo "FAIL: no test ran: $*" && return 1; }
  for filter in $each; do
    grep -qE "^test .*$filter.* \.\.\. ok" "$out" || { echo "FAIL: no test ran of $filter: $*" && return 1; }
  done
}

# Always the whole workspace, also for some of its tests: with other features of their dependencies for one package, cargo
# would compile the engine and its tests again.
tests() { ran cargo test --workspace "$@"; }

# What tests may need and this machine has: who misses it there fails, and leaves out nothing.
there() {
  echo heap
  [ "$(nproc)" -lt 2 ] || echo cores
  ! command -v valgrind >/dev/null || echo valgrind
  [ "$(find "$root/target/stamps" -name 'venv-ompi5' -o -name 'venv-mpich' -o -name 'venv-impi' 2>/dev/null | wc -l)" != 3 ] || echo wheels
  awk '/^MemAvailable:/ { if ($2 > 6 * 2 ^ 20) print "memory"; if ($2 > 12 * 2 ^ 20) print "much_memory" }' /proc/meminfo
  ! grep -qw avx /proc/cpuinfo || echo avx
  ! unshare --net --pid --fork true 2>/dev/null || echo namespaces
  ! unshare --user true 2>/dev/null || echo user_namespaces
  [ -z "$(ip -o link show lo up 2>/dev/null)" ] || echo loopback
  python3 "$root/ci/there.py"
  # CAP_IPC_LOCK
  [ $((0x$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status) >> 14 & 1)) = 0 ] || echo lock
}

# The heap is tested as it is shipped.
step_test() {
  release && RUSTMX_TEST_COMPLETE=$(there | paste -sd' ') RUSTMX_HEAP_LIBRARY=$CARGO_TARGET_DIR/release/librustmx_heap.so tests --no-fail-fast
}

# What those tests ask of shared memory alone they leave out.
step_network() {
  RUSTMX_TEST_NETWORK=1 tests --no-fail-fast --test pair --test memory --test contact --test sleep \
    --test shared_context --test deferred --test processes &&
    RUSTMX_TEST_NETWORK=1 FI_RUSTMX_TCP_LANES=4 tests --no-fail-fast --test pair &&
    RUSTMX_TEST_NETWORK=1 FI_RUSTMX_ENCRYPT=1 FI_RUSTMX_AUTH_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') \
      tests --no-fail-fast --test pair --test memory &&
    RUSTMX_TEST_NETWORK=1 FI_RUSTMX_TCP_ZEROCOPY=always tests --no-fail-fast --test pair &&
    RUSTMX_TEST_NETWORK=1 FI_RUSTMX_TCP_ZEROCOPY=uring tests --no-fail-fast --test pair &&
    RUSTMX_TEST_NETWORK=1 FI_RUSTMX_TCP_ZEROCOPY=pages tests --no-fail-fast --test pair --test memory &&
    RUSTMX_TEST_NETWORK=1 FI_RUSTMX_TCP_ZEROCOPY=always FI_RUSTMX_TCP_LANES=4 tests --no-fail-fast --test pair &&
    RUSTMX_TEST_NETWORK=1 FI_RUSTMX_TCP_ZEROCOPY=uring FI_RUSTMX_TCP_LANES=4 tests --no-fail-fast --test pair
}

# Always all together: with other features of their dependencies for each, cargo would compile all of it again. With what ci/budget.py counts, by the same words.
release() { cargo build --release -p rustmx-fi -p rustmx-heap -p rustmx-cli -p rustmx-benches --features rustmx-benches/counted; }

# What is linked for a minute or two keeps one core busy. The tests, if they are to come, are compiled meanwhile; what is wrong with them their own step tells.
step_build() {
  local code=0
  [[ " ${steps[*]} " != *" test "* ]] || cargo test --workspace --no-run --quiet &
  release || code=$?
  wait
  return $code
}

step_loom() {
  # Not optimized across packages: even so it takes as long to compile as to run.
  CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=none RUSTFLAGS="--cfg loom" \
    ran cargo test -p rustmx --lib --release --target-dir "$CARGO_TARGET_DIR/loom"
}

# The first installed toolchain of which a command works.
toolchain_with() {
  local toolchain
  command -v rustup >/dev/null || return
  while read -r toolchain _; do
    if cargo "+$toolchain" "$@" >/dev/null 2>&1; then
      echo "$toolchain"
      return
    fi
  done < <(rustup toolchain list)
}

step_miri() {
  local toolchain parts=(mem:: matching:: wire:: completion:: peer::name shm::ring select:: cache::ranges cache::recent cache::watches)
  toolchain=$(toolchain_with miri --version)
  [ -n "$toolchain" ] || skip "no installed toolchain has miri" || return
  # Its standard library must be there or be built from rust-src that is there.
  CARGO_NET_OFFLINE=true cargo "+$toolchain" miri setup ||
    skip "miri of $toolchain has no standard library (rust-src)" || return
  # The rest makes system calls that miri does not know.
  PROPTEST_CASES=8 MIRIFLAGS=-Zmiri-disable-isolation ran --each "${parts[*]}" cargo "+$toolchain" miri test -p rustmx --lib \
    --target-dir "$CARGO_TARGET_DIR/miri" -- "${parts[@]}"
}

# sanitized NAME FLAGS TESTS...: some tests, compiled with a sanitizer.
sanitized() {
  local name=$1 flags=$2 toolchain host library
  shift 2
  toolchain=$(rustup toolchain list 2>/dev/null | sed -n 's/^\(nightly[^ ]*\).*/\1/p' | head -n 1)
  [ -n "$toolchain" ] || skip "no nightly toolchain is installed" || return
  host=$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')
  library=$(rustc "+$toolchain" --print sysroot)/lib/rustlib/$host/lib
  compgen -G "$library/librustc*_rt.$name.a" >/dev/null ||
    skip "$toolchain has no runtime of $name" || return
  # An own target directory, one for all of them: what runs while compiling is the same. What a sanitizer finds it finds in few random cases, too; step_test has all of them.
  PROPTEST_CASES=${PROPTEST_CASES:-64} CARGO_INCREMENTAL=0 RUSTFLAGS="$flags" \
    ran cargo "+$toolchain" test --target "$host" --target-dir "$CARGO_TARGET_DIR/sanitized" "$@"
}

# With the hostile peers: what they write must not make anybody read past a mapping or a buffer.
step_asan() {
  # What a peer costs in memory is not what it costs here: freed memory is kept.
  sanitized asan -Zsanitizer=address -p rustmx --lib --test pair --test memory --test simulation --test hostile --test network -- --skip cost:: &&
    RUSTMX_TEST_NETWORK=1 sanitized asan -Zsanitizer=address -p rustmx --test pair --test memory
}

step_tsan() {
  # The standard library is not instrumented (that would take rust-src): see ci/tsan.supp. rustix goes
  # through libc, else mappings come and go unseen, and two tests that get the same address one after
  # the other look like a race. This sanitizer sees one process: the rings between two are loom's.
  local flags="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg=rustix_use_libc"
  export TSAN_OPTIONS="suppressions=$root/ci/tsan.supp halt_on_error=1"
  sanitized tsan "$flags" -p rustmx --lib --test pair --test memory --test simulation || return
  RUSTMX_TEST_NETWORK=1 sanitized tsan "$flags" -p rustmx --test pair || return
  sanitized tsan "$flags" -p rustmx-fi --test threads
}

step_benches() {
  local bench names=()
  # The other benches measure by themselves, in more than one process.
  for bench in provider/benches/*.rs; do
    ! grep -q criterion_main "$bench" || names+=(--bench "$(basename "$bench" .rs)")
  done
  # As tests are compiled: the time of a release build would be spent on nothing that is looked at here.
  cargo test -p rustmx-benches --benches --no-run && ran cargo test -p rustmx-benches "${names[@]}" -- --test
}

step_aarch64() {
  local target=aarch64-unknown-linux-gnu
  rustup target list --installed 2>/dev/null | grep -qx "$target" ||
    skip "no standard library for $target is installed" || return
  cargo check --workspace --target "$target"
}

step_budget() { ci/budget.sh; }

step_cli() {
  local command=$CARGO_TARGET_DIR/release/rustmx page=$logs/compare.html
  release && "$command" explain || return
  [ "$(nproc)" -ge 2 ] || skip "rustmx compare and rustmx tune need two cores" || return
  "$command" compare --quick --max 256k --html "$page" && grep -q '^</html>' "$page" || return
  # The heap lies beside the command.
  grep -q 'mapped-shared' "$page" || return
  # Caches can be emptied on x86-64 only.
  [ "$(uname -m)" != x86_64 ] ||
    { "$command" compare --quick --sources cold --memory exported --min 1m --max 1m | tee "$logs/cold.txt" && grep -q mapped-shared "$logs/cold.txt"; } || return
  "$command" tune --quick --output "$logs/profile.toml" &&
    FI_RUSTMX_PROFILE=$logs/profile.toml "$command" explain | tee "$logs/tuned.txt" && grep -q '(profile)' "$logs/tuned.txt"
}

step_papers() {
  local engine
  [ "$(nproc)" -ge 2 ] || skip "two cores are needed" || return
  ci/setup.sh papers || skip "ci/setup.sh papers cannot get what draws the plots, see the lines above in the log" || return
  release || return
  # As benches are compiled in their step.
  engine=$(cargo test -p rustmx-benches --bench reuse --no-run --message-format=json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\/reuse-[^"]*\)".*/\1/p') || return
  mpi-tests/papers/run.sh --quick --no-build --rustmx "$CARGO_TARGET_DIR/release/rustmx" --engine "$engine" --output "$logs/papers" &&
    grep -q 'mapped-alone' "$logs/papers/README.md" && ! grep -q 'Not measured: .*engine' "$logs/papers/README.md"
}

step_mpi() {
  local options=(--lib-dir "$CARGO_TARGET_DIR/release")
  [ -z "$quick" ] || options+=(--quick)
  release && mpi-tests/run.sh "${options[@]}" || return
  # The same messages out of memory that both map.
  mpi-tests/run.sh "${options[@]}" --quick --np 2,4 --only pingpong,sendmodes,collectives,flood,threads \
    --heap "$CARGO_TARGET_DIR/release/librustmx_heap.so" || return
  # Ranks of two versions: refused, and both are named.
  mpi-tests/run.sh "${options[@]}" --quick --np 2,4 --only pingpong,collectives --versions || return
  # The shortest comparisons: of protocols through MPIs, and of stacks in turns; from arguments to tables.
  [ "$(nproc)" -lt 2 ] || { python3 ci/compare_run_test.py && python3 ci/turns_run_test.py; }
}

step_suites() {
  # Sources and tools that nothing else here needs; fetched once. Without them the rest is still a test run.
  ci/setup.sh suites || skip "ci/setup.sh suites cannot get what they need, see the lines above in the log" || return
  release || return
  export CONFORMANCE_LIB_DIR=$CARGO_TARGET_DIR/release
  ci/conformance.sh short --no-build || return
  # The same code by TCP: some of each kind of call.
  ci/conformance.sh mpich part topo --network --no-build &&
    ci/conformance.sh imb mpich-mpi1-2 mpich-nbc-2 impi-mpi1-2 impi-rma-2 --network --no-build
}

# measured_between_hosts DIRECTORY: what h1 says of the way to h2 must name its card, and what it keeps must, too.
measured_between_hosts() {
  local rustmx=$CARGO_TARGET_DIR/release/rustmx dir=$1 words
  "$rustmx" tune --quick >"$dir/said" || return
  # At last by an address that means nothing without its interface.
  for words in "compare --quick --to h2:7000" "tune --quick --to h2:7000" "tune --quick --json --to [fe80::ff:fe00:2%eth0]:7000"; do
    ci/netlab.sh exec h2 "$rustmx" compare --listen 7000 &
    # Until somebody listens it is refused.
    # shellcheck disable=SC2086 # several words are wanted
    timeout 300 bash -c 'until "$@"; do sleep 0.2; done' - ci/netlab.sh exec h1 "$rustmx" $words >"$dir/said" 2>"$dir/why" || return
    wait $! || return
    grep -q "eth0, MTU 1500" "$dir/said" || return
    [[ $words != tune* ]] || grep -q '= "eth0, MTU 1500' "$FI_RUSTMX_PROFILE" || return
    echo "test result: ok. 1 passed; 0 failed; rustmx $words"
  done
  python3 -m json.tool <"$dir/said" >"$dir/why"
}

# cut_between_hosts DIRECTORY: the network is cut while they measure. Both ends say so in time, and exit with 1.
cut_between_hosts() {
  local rustmx=$CARGO_TARGET_DIR/release/rustmx dir=$1 listens calls end code
  ci/netlab.sh exec h2 timeout 60 "$rustmx" compare --listen 7001 2>"$dir/there" &
  listens=$!
  timeout 20 bash -c 'until grep -q waiting "$1"; do sleep 0.1; done' - "$dir/there" || return
  ci/netlab.sh exec h1 timeout 60 "$rustmx" compare --to h2:7001 >"$dir/said" 2>"$dir/here" &
  calls=$!
  timeout 20 bash -c 'until grep -q measuring "$1"; do sleep 0.1; done' - "$dir/there" || return
  sleep 2
  ci/netlab.sh drop h2 on
  for end in "$listens" "$calls"; do
    code=0
    wait "$end" || code=$?
    [ $code = 1 ] || { echo "exit code $code" >>"$dir/here"; cat "$dir/there" >>"$dir/here"; cp "$dir/here" "$dir/why"; return 1; }
  done
  cp "$dir/there" "$dir/why"
  grep -q "Start this one again" "$dir/there" || return
  echo "test result: ok. 1 passed; 0 failed; rustmx compare --to h2:7001, and the network is cut"
}

# The command from host to host, as the README says it.
between_hosts() {
  local dir=$logs/between code=0
  rm -rf "$dir"
  mkdir -p "$dir"
  export NETLAB=command-$$ FI_RUSTMX_PROFILE=$dir/profile.toml
  trap 'ci/netlab.sh down' EXIT
  ci/netlab.sh up --hosts 2 && measured_between_hosts "$dir" && cut_between_hosts "$dir" || { code=1 && tail -n 20 "$dir/said" "$dir/why"; }
  ci/netlab.sh down || code=1
  trap - EXIT
  unset NETLAB FI_RUSTMX_PROFILE
  return $code
}

step_netlab() {
  [ "$(id -u)" = 0 ] || skip "needs root: namespaces and virtual cables" || return
  local said
  said=$(ci/netlab.sh probe) || skip "no laboratory here: $(grep ': no' <<<"$said" | paste -sd, -)" || return
  ci/netlab.sh self-test || return
  RUSTMX_TEST_NETLAB=$root/ci/netlab.sh tests --test network hosts:: || return
  release && between_hosts || return
  mpi-tests/run.sh --hosts 2 --quick --lib-dir "$CARGO_TARGET_DIR/release" --only pingpong,collectives,wildcard,sendmodes,flood,perf || return
  mpi-tests/run.sh --hosts 2 --quick --np 2 --lib-dir "$CARGO_TARGET_DIR/release" --only pingpong,collectives --versions || return
  mpi-tests/nat.sh --lib-dir "$CARGO_TARGET_DIR/release" || return
  mpi-tests/run.sh --hosts 2 --quick --np 2 --lib-dir "$CARGO_TARGET_DIR/release" --only rma || return
  # Faults in the middle of jobs, hosts of different families, and what somebody on the way reads of encrypted messages.
  ci/netlab.sh matrix --lib-dir "$CARGO_TARGET_DIR/release" --only mixed_v4,mixed_v6,flap,reorder,killed,secret || return
  # With a key that all ranks have, by every launcher.
  FI_RUSTMX_ENCRYPT=1 FI_RUSTMX_AUTH_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') \
    mpi-tests/run.sh --hosts 2 --quick --np 4 --lib-dir "$CARGO_TARGET_DIR/release" --only pingpong || return
  # Two ranks on each of four hosts: in one place, and over the network, at once.
  mpi-tests/run.sh --hosts 4 --quick --np 8 --mpi mpich --lib-dir "$CARGO_TARGET_DIR/release" --only pingpong,collectives,wildcard,rma || return
  # Of the others only some: all of their ranks wait for a core of which there are too few.
  mpi-tests/run.sh --hosts 4 --quick --np 8 --timeout 180 --mpi ompi4,ompi5,impi --lib-dir "$CARGO_TARGET_DIR/release" --only pingpong,wildcard || return
  # As many ports as there are ranks on a host.
  FI_RUSTMX_PORT_RANGE=20000-20001 mpi-tests/run.sh --hosts 2 --quick --np 4 --lab --ipv6-only --lib-dir "$CARGO_TARGET_DIR/release" --only pingpong,collectives
}

# ---- running them ----

# Adds up what a log reports: cargo's "test result: ok. 3 passed; 0 failed; 1 ignored", criterion's
# "Testing x" … "Success", and the last line "3 passed, 0 failed" of our scripts.
count() {
  awk '
    /^test result: / { for (i = 3; i < NF; i++) { if ($(i + 1) ~ /^passed/) p += $i; if ($(i + 1) ~ /^failed/) f += $i } }
    /^Success$/ { p++ }
    /^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3 }
    END { print p + 0, f + 0 }' "$1"
}

# Those of the step that runs which have not ended; a zombie has.
running() { cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$child" '{ pid = $1; sub(/.*\) /, "") } $1 != "Z" && $4 == session { print pid }'; }

# stop CODE: ends the step that runs, and this script. What it started may have a laboratory to take down; it gets a minute for that.
stop() {
  local tries
  trap '' INT TERM
  if [ -n "$child" ]; then
    # shellcheck disable=SC2046 # several words are wanted
    kill -TERM $(running) 2>/dev/null
    for tries in {1..300}; do
      [ -n "$(running)" ] || break
      sleep 0.2
    done
    # shellcheck disable=SC2046
    [ "$tries" != 300 ] || kill -KILL $(running) 2>/dev/null
    say "stopped"
  fi
  exit "$1"
}

run_step() {
  local step=$1 log=$logs/$1.log code=0 begun=$SECONDS beat=0 good bad
  say "$step: $(describe "$step")"
  # A session of its own: by that all that it starts is found again, also what has left the process group, as what `timeout` runs does.
  setsid "$BASH" "$root/ci/test.sh" --step "$step" "$quick" "${steps[*]}" >"$log" 2>&1 </dev/null &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.2
    beat=$((beat + 1))
    [ $((beat % 150)) != 0 ] || say "$step: $((SECONDS - begun)) s, at: $(tail -n 1 "$log" | cut -c 1-90)"
  done
  wait "$child" || code=$?
  child=
  read -r good bad < <(count "$log")
  if [ $code = 77 ]; then
    skipped=$((skipped + 1))
    say "$step: skipped, $(sed -n 's/^SKIP: //p' "$log" | tail -n 1)"
    return
  fi
  if [ $code = 0 ] && [ "$bad" = 0 ]; then
    [ "$good" != 0 ] || good=1
    say "$step: ok, $good passed, $((SECONDS - begun)) s"
  else
    [ "$bad" != 0 ] || bad=1
    failures+=("$step")
    say "$step: FAILED, $good passed and $bad failed, exit code $code, $((SECONDS - begun)) s; the end of $log:"
    grep -E -A 1 '^(FAIL|error|test .* FAILED|Diff in|thread .* panicked)' "$log" | grep -v '^--$' | cut -c 1-300 | head -n 30 | sed 's/^/    /'
    echo "    ..."
    tail -n 80 "$log" | sed 's/^/    /'
  fi
  passed=$((passed + good))
  failed=$((failed + bad))
}

main() {
  local steps=("${all_steps[@]}") step known
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        usage
        exit 0
        ;;
      --list)
        for step in "${all_steps[@]}"; do printf '%-8s %s\n' "$step" "$(describe "$step")"; done
        exit 0
        ;;
      --quick) quick=1 ;;
      # What run_step starts: a step, --quick's 1, and all steps of this run.
      --step)
        quick=$3
        IFS=' ' read -ra steps <<<"$4"
        cd "$root" || exit
        # After the end of what it waits for, which was told, too; and then its laboratory is taken down.
        trap 'exit 143' TERM
        "step_$2"
        exit
        ;;
      --only)
        [ $# -ge 2 ] || { echo "test: --only needs a value" >&2; exit 2; }
        IFS=', ' read -ra known <<<"$2"
        steps=()
        for step in "${known[@]}"; do
          [ -n "$(describe "$step")" ] || { echo "test: no step '$step' (see --list)" >&2; exit 2; }
        done
        for step in "${all_steps[@]}"; do [[ " ${known[*]} " != *" $step "* ]] || steps+=("$step"); done
        shift
        ;;
      *)
        echo "test: unknown argument '$1' (see --help)" >&2
        exit 2
        ;;
    esac
    shift
  done
  mkdir -p "$logs"
  trap 'stop 130' INT
  trap 'stop 143' TERM
  for step in "${steps[@]}"; do run_step "$step"; done
  [ ${#failures[@]} = 0 ] || say "failed steps: ${failures[*]}"
  say "done"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ]
}

main "$@"
