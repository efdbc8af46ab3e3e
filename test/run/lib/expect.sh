# expect.sh - what every test script begins with: the environment, a folder $WORK, and the functions that print "ok" and
# "not ok". A script ends with "exit $STATUS". Sourced; tiny.sh adds a small model.
. "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
WORK=$(mktemp -d); trap 'rm -rf "$WORK"' EXIT
STATUS=0

ok()   { if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; STATUS=1; fi; }
# expect NAME COMMAND...: prints ok if the command succeeds.
expect() { local name=$1; shift; if "$@"; then ok 0 "$name"; else ok 1 "$name"; fi; }

# sanitized WHAT WHY: succeeds for a build with a sanitizer, and prints that WHAT is skipped and why.
sanitized() { case $B in *-asan* | *-tsan*) echo "skip $1: a sanitizer $2" ;; *) return 1 ;; esac; }

quiet() { "$@" > /dev/null; }
# exits CODE PATTERN COMMAND...: checks that the command ends with the code and that exactly one line on stderr matches.
exits() {
    local code=$1 pattern=$2; shift 2
    "$@" > "$WORK/out" 2> "$WORK/err"; local status=$?
    [ "$status" -eq "$code" ] && [ "$(grep -cE "$pattern" "$WORK/err")" -eq 1 ] && return 0
    echo "exit $status, expected $code with one line like: $pattern"; head -20 "$WORK/err"; return 1
}
# says FILE PATTERN [TIMES]: waits at most 60 s until FILE has TIMES matching lines (1 if not given).
says() { within 60 has_lines "$@" || { echo "$1 has no line like '$2'"; tail -n 5 "$1"; return 1; }; }
has_lines() { [ "$(grep -csE -- "$2" "$1")" -ge "${3:-1}" ] 2> /dev/null; }
# ends PROCESS CODE: waits for a background job of this script, and checks its exit code.
ends() { wait "$1"; local code=$?; [ $code -eq "$2" ] || { echo "exit $code, not $2"; return 1; }; }
# within SECONDS COMMAND...: repeats the command until it succeeds. Fails if it does not within that time.
within() {
    local end=$((SECONDS + $1)); shift
    until "$@"; do [ $SECONDS -le $end ] || return 1; sleep 0.05; done
}
