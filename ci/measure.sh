# Sourced by the scripts that measure: builds what is needed, and hands over to the Python program that does the rest.
# shellcheck shell=bash

# measure PROGRAM PACKAGE... -- OPTION...: ci/PROGRAM with the options of the script that sources this, after a release build of the
# packages. --no-build leaves that out, --help prints the head of the script.
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
  if [ -n "$build" ]; then
    "$root/ci/setup.sh" >&2
    (cd "$root" && CARGO_TARGET_DIR="$root/target" cargo build --release "${packages[@]}" >&2)
  fi
  exec python3 "$root/ci/$program" "${options[@]}"
}
