#!/bin/sh
# canary.sh BUILD: each sanitizer lets sound code pass and stops what was planted.
check() {
  "$1/canary-$2" "$3" >"$1/canary.log" 2>&1
  code=$?
  if { [ "$3" = sound ] && [ $code -eq 0 ]; } || { [ "$3" != sound ] && grep -q "$4" "$1/canary.log"; }; then
    echo "ok $2 canary: $3"
  else
    echo "FAILED $2 canary: '$3' ended with exit code $code, '$4' was expected; it printed:"
    cat "$1/canary.log"
  fi
}

check "$1" tsan sound
check "$1" tsan race "ThreadSanitizer: data race"
check "$1" asan sound
check "$1" asan overflow "AddressSanitizer: heap-buffer-overflow"
check "$1" asan undefined "signed integer overflow"
