#!/usr/bin/env bash
# All static checks, side by side; each prints only when it finds something. Used by `make check` and by CI.
set -u
cd "$(dirname "$0")/.." || exit 3
bin=.venv/bin
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

names=()
check() {  # check NAME COMMAND…: start it, remember its output and status
  local name=$1
  shift
  names+=("$name")
  ("$@" >"$scratch/$name.out" 2>&1; echo $? >"$scratch/$name.rc") &
}
locks() {  # a lock holds versions and hashes, never an address
  ! grep -nE '://|--(extra-)?index-url|--find-links' requirements/*.lock
}

check types "$bin/pyrefly" check
check format "$bin/ruff" format --check -q .
check lint "$bin/ruff" check -q .
check layers "$bin/lint-imports"
check dependencies "$bin/deptry" src
check spelling "$bin/codespell" src tests bench tools experiments docs README.md Makefile
check size "$bin/python" tools/size.py --quiet
check locks locks
wait

failed=0
for name in "${names[@]}"; do
  if [ "$(cat "$scratch/$name.rc")" != 0 ]; then
    failed=1
    printf -- '--- %s\n' "$name"
    tail -n 40 "$scratch/$name.out"
  fi
done
[ $failed = 0 ] && echo "check: ${names[*]}: all good"
exit $failed
