#!/usr/bin/env bash
# test_suite.sh - scripts/test.sh on a simulated tree: what it counts, and that no process of a test outlives it.
# Timed: processes that linger must be gone within seconds.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/expect.sh"
expect() { local name=$1; shift; if "$@"; then echo "ok $name"; else echo "not ok $name"; cat "$WORK/out"; STATUS=1; fi; }
mkdir -p "$WORK/scripts" "$WORK/test/core" "$WORK/build/cpu/test/core"
cp scripts/test.sh scripts/env.sh "$WORK/scripts/"
script() { cat > "$WORK/test/core/test_$1.sh"; }
program() { touch "$WORK/test/core/test_$1.c"; { echo '#!/usr/bin/env bash'; cat; } > "$WORK/build/cpu/test/core/test_$1"; chmod +x "$WORK/build/cpu/test/core/test_$1"; }
sed -i "s/seq 50/seq 10/" "$WORK/scripts/test.sh" # a second for what is on its way out
suite() { B=build/cpu "$WORK/scripts/test.sh" "$@" > "$WORK/out" 2>&1; }
last() { tail -n 1 "$WORK/out"; }
anew() { rm -rf "$WORK"/test/core/* "$WORK"/build/cpu/test/core/*; }
# gone FILE: succeeds if the processes whose ids are in FILE end within 3 s.
gone() {
    [ -s "$1" ] || { echo "no process was noted"; return 1; }
    for _ in $(seq 30); do kill -0 $(cat "$1") 2> /dev/null || return 0; sleep 0.1; done
    echo "there is still $(cat "$1")"; return 1
}
# lasting: shell code for a simulated test that leaves two processes running, a child and one in its own session. It
# writes their ids to the file `pids`.
lasting="sleep 1000 & echo \$! >> $WORK/pids; setsid sh -c 'echo \$\$ >> $WORK/pids; exec sleep 1000' & sleep 0.3; while [ \$(wc -l < $WORK/pids) -lt 2 ]; do sleep 0.1; done"

# --- what is counted --------------------------------------------------------------------------------------------------
script lines <<< $'echo "ok a"; echo "ok b"; echo "skip c: no tool"'
suite; status=$?
expect "a script's lines are counted" [ "$status $(last)" = "0 2 passed, 0 failed, 1 skipped" ]
expect "and what is skipped is named" grep -q '^ *skip c: no tool$' "$WORK/out"
script dies <<< 'echo "ok a"; exit 3'
suite; status=$?
expect "an exit code counts, without a line" [ "$status $(last)" = "1 3 passed, 1 failed, 1 skipped" ]
anew; program tap <<< $'[ "$CMOCKA_MESSAGE_OUTPUT" = TAP ] || exit 9\nprintf "1..3\\nok 1 - a\\nok 2 - b\\nnot ok 3 # SKIP c\\n# ok - group\\n1..1\\nok 1 - d\\n"'
suite; expect "TAP of two groups, a skip as cmocka 1.1.5 has it" [ "$(last)" = "3 passed, 0 failed, 1 skipped" ]
anew; program tap <<< $'printf "1..2\\nok 1 # SKIP a\\nok 2 - b # SKIP\\n"'
suite; status=$?; expect "a program whose tests are all skipped, as later ones have it" [ "$status $(last)" = "0 0 passed, 0 failed, 2 skipped" ]
anew; program tap <<< $'printf "1..5\\nok 1 - a\\nnot ok 2 - b\\n"; kill -ABRT $$'
suite; status=$?; expect "a program that breaks off: what it had planned has failed" [ "$status $(last)" = "1 1 passed, 4 failed, 0 skipped" ]
anew; program tap <<< $'printf "1..5\\nok 1 - a\\n"'
suite; expect "though it says it ended well" [ "$(last)" = "1 passed, 4 failed, 0 skipped" ]
anew; program tap <<< 'exit 0'
suite; expect "a program that ran nothing has not passed" [ "$(last)" = "0 passed, 1 failed, 0 skipped" ]

# --- what is not built: the command that builds it
for build in cpu:BACKEND=cpu cpu-asan:"BACKEND=cpu SAN=-asan" cpu-tsan-clang:"BACKEND=cpu SAN=-tsan CC=clang" cpu-nompi:"BACKEND=cpu MPI=0" cuda:BACKEND=cuda; do
    anew; mkdir -p "$WORK/test/layers"; touch "$WORK/test/layers/test_missing.c"
    B=build/${build%%:*} "$WORK/scripts/test.sh" missing > "$WORK/out" 2>&1; status=$?
    expect "a test that is not built, ${build%%:*}" eval '[ "$status $(last)" = "1 0 passed, 1 failed, 0 skipped" ] && grep -q "test_missing is not built; type: make ${build#*:} tests$" "$WORK/out"'
    expect "is built by that command" eval '[ "${build%%:*}" = cuda ] || make -n DEPS=0 ${build#*:} tests 2>&1 | grep -q "build/${build%%:*}/train_gpt"'
    rm -r "$WORK/test/layers"
done

# --- lanes: timed scripts one at a time, unknown ones first, then long ones; what a script needs is made before it -----
anew; mkdir "$WORK/test/emu"
for name in a b c; do script $name <<< $'# Timed: yes.\nmkdir alone || exit 1; sleep 0.3; rmdir alone\necho '$name$' >> order; echo "ok it is alone"'; done
printf 'test/core/test_a.sh\t1\ntest/core/test_b.sh\t20\n' > "$WORK/test/seconds.tsv"
printf 'all:\n\t@mkdir making && sleep 0.5 && rmdir making && echo made >> made\n' > "$WORK/Makefile"
for name in d e; do printf 'needs() { grep -q made made && echo "ok %s"; }\nneeds BACKEND=emu all\n' $name > "$WORK/test/emu/test_$name.sh"; done
RENEW=1 suite; status=$?
expect "all scripts of three lanes pass" [ "$status $(last)" = "0 5 passed, 0 failed, 0 skipped" ]
expect "in order" [ "$(tr '\n' ' ' < "$WORK/order")" = "c b a " ]
expect "and their times are kept" [ "$(grep -cE '^test/(core/test_[abc]|emu/test_[de])\.sh'$'\t''[0-9]+$' "$WORK/test/seconds.tsv")" -eq 5 ]
script a <<< 'exit 1'; cp "$WORK/test/seconds.tsv" "$WORK/before"
RENEW=1 suite; expect "but not those of a run that fails" cmp "$WORK/test/seconds.tsv" "$WORK/before"
rm -r "$WORK/test/emu" "$WORK/test/seconds.tsv" "$WORK/Makefile"

# --- figures: a commit that the branch does not have is refused by file and line ------------------------------------------
mkdir -p "$WORK/clone/scripts" "$WORK/clone/test/results" "$WORK/clone/test/soak" "$WORK/clone/docs"
cp scripts/env.sh scripts/check.sh "$WORK/clone/scripts"; cp test/results/*.py "$WORK/clone/test/results"; touch "$WORK/clone/README.md" "$WORK/clone/docs/measured.md"
in_clone() { git -C "$WORK/clone" -c user.name=a -c user.email=a@b -c init.defaultBranch=main "$@" > /dev/null 2>&1; }
in_clone init; in_clone add -A; in_clone commit -m one
mine=$(git -C "$WORK/clone" rev-parse --short=8 HEAD)
in_clone checkout -b other; in_clone commit --allow-empty -m two; other=$(git -C "$WORK/clone" rev-parse --short=8 HEAD); in_clone checkout main
figures() { (cd "$WORK/clone" && scripts/check.sh figures) > "$WORK/out" 2>&1; }
row() { printf '{"what": "a", "commit": "%s"}\n' "$1" >> "$WORK/clone/test/results/bench_ops.jsonl"; }
row "$mine"; expect "a figure of this branch" figures
row "$other"
expect "one of another branch is refused by its line" eval '! figures && grep -q "^test/results/bench_ops.jsonl:2: $other is not an ancestor of HEAD" "$WORK/out"'
sed -i 2d "$WORK/clone/test/results/bench_ops.jsonl"; echo "| a | 1 s | b | c | 2026-01-01 | 0123abc |" > "$WORK/clone/docs/measured.md"
expect "so is one on the page" eval '! figures && grep -q "^docs/measured.md:1: 0123abc is not an ancestor" "$WORK/out"'
: > "$WORK/clone/docs/measured.md"; row "$mine-dirty"
expect "and one of a tree with changes" eval '! figures && grep -q "bench_ops.jsonl:2: $mine-dirty is not" "$WORK/out"'
sed -i 2d "$WORK/clone/test/results/bench_ops.jsonl"; in_clone add -A; in_clone commit -m three
expect "without the cured row all is well" figures
git clone -q --depth 1 "file://$WORK/clone" "$WORK/shallow" 2> /dev/null
expect "a shallow clone skips the check" eval '(cd "$WORK/shallow" && scripts/check.sh figures) > "$WORK/out" 2>&1 && grep -q "^skip figures: " "$WORK/out"'
rm -rf "$WORK/clone/.git"; expect "so does a folder without git" eval 'figures && grep -q "^skip figures: " "$WORK/out"'

# --- what is left behind ----------------------------------------------------------------------------------------------
anew; script leaves <<< "$lasting; echo 'ok a'"; script next <<< 'echo "ok b"'
rm -f "$WORK/pids"; suite; status=$?
expect "a script that leaves processes fails by name" eval '[ "$status $(last)" = "1 2 passed, 1 failed, 0 skipped" ] && grep -q "^failed: test/core/test_leaves.sh" "$WORK/out"'
expect "each is named" [ "$(grep -cE '^left behind: process [0-9]+, sleep 1000' "$WORK/out")" -eq 2 ]
expect "and ended" gone "$WORK/pids"
script leaves <<< "$lasting; echo 'not ok a'; exit 1"
rm -f "$WORK/pids"; suite; expect "so where the script fails" gone "$WORK/pids"
script leaves <<< $'sleep 0.4 &\necho "ok a"'
suite; status=$?; expect "one that is on its way out is waited for" [ "$status $(last)" = "0 2 passed, 0 failed, 0 skipped" ]
sed -i 's/limit=[0-9]*/limit=2/' "$WORK/scripts/test.sh"
script leaves <<< "$lasting; wait"
rm -f "$WORK/pids"; suite; status=$?
expect "a script that runs out of time fails" eval '[ "$status $(last)" = "1 1 passed, 1 failed, 0 skipped" ] && grep -q "stopped after its limit of 2 s" "$WORK/out"'
expect "and so ends all of it" gone "$WORK/pids"
cp scripts/test.sh "$WORK/scripts/"
for signal in INT TERM HUP; do
    rm -f "$WORK/pids"
    B=build/cpu env --default-signal=INT "$WORK/scripts/test.sh" leaves > "$WORK/out" 2>&1 & job=$!
    for _ in $(seq 100); do [ "$(cat "$WORK/pids" 2> /dev/null | wc -l)" -eq 2 ] && break; sleep 0.1; done
    kill -$signal $job; wait $job; status=$?
    expect "$signal ends the suite" [ $status -eq $((128 + $(kill -l $signal))) ]
    expect "and all that its script started" gone "$WORK/pids"
done
script leaves <<< $'trap "echo \'ok it heard it\'; exit 0" INT; kill -INT $$; sleep 5; echo "not ok it is deaf"'
suite leaves; expect "a test hears Ctrl-C, though in the background" [ "$(last)" = "1 passed, 0 failed, 0 skipped" ]
exit $STATUS
