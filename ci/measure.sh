# Sourced by the scripts that measure and test: looks at the arguments, builds what is needed, and hands over to the Python program that
# does the rest.
# shellcheck shell=bash

# measure PROGRAM PACKAGE... -- OPTION...: ci/PROGRAM with the options of the script that sources this, after a release build of the
# packages, under target or CARGO_TARGET_DIR. --no-build leaves that out, --help prints the head of the script. The program is asked first (--check): a build takes minutes.
measure() {
  local root build=1 program=$1 option packages=() options=()
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  shift
  while [ "$1" != -- ]; do
    packages+=(-p "$1")
    shift
  done
  shift
  for option; do
    case $option in
      -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[1]}"
        exit 0
        ;;
      --no-build) build= ;;
      *) options+=("$option") ;;
    esac
  done
  checked "$root/ci/$program" "${options[@]}"
  if [ -n "$build" ]; then
    "$root/ci/setup.sh" >&2
    (cd "$root" && CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}" cargo build --release "${packages[@]}" >&2)
  fi
  exec python3 "$root/ci/$program" "${options[@]}"
}

# checked PROGRAM OPTION...: ends the script that sources this with 2 and its usage if its Python program cannot do anything with the
# options. Where there is no Python before ci/setup.sh has run, the program will say so itself.
checked() {
  local said
  command -v python3 >/dev/null || return 0
  said=$(python3 "$1" --check "${@:2}" 2>&1) || {
    sed -n '/^# Usage:/,/^#   --help/s/^# \{0,1\}//p' "${BASH_SOURCE[-1]}" >&2
    printf '%s\n' "$said" >&2
    exit 2
  }
}
