#!/usr/bin/env bash
# A copied run folder that is continued becomes a separate run, whose metadata name the original as parent. A folder
# that was moved, or is seen under another path, does not.
. "$(dirname "$0")/lib/tiny.sh"
go() { "$TRAIN" "$WORK/tiny.json" eval.every=0 checkpoint.every=0 "$@" > "$WORK/out" 2> "$WORK/err"; } # 75 at run.stop_step
state() { sed -n "s/^\"$2\":\"\\([^\"]*\\)\".*/\\1/p" "$1/checkpoints/$3/state.json"; }
parent() { sed -n 's/^"parent":{"run_id":"\([^"]*\)","step":"\([0-9]*\)"},$/\1 \2/p' "$1/checkpoints/$2/state.json"; }
said_copy() { grep -q '^copy  ' "$WORK/out"; }
not() { ! "$@"; }

cd "$WORK" || exit
go run.dir=a run.stop_step=3
id=$(state a run_id step_00000003)
expect "a run names its folder, and has no parent" [ ${#id} = 16 -a "$(state a folder step_00000003)" = "$(realpath a)" -a -z "$(parent a step_00000003)" ]

cp -r a b
go run.dir=b run.stop_step=5
expect "cp -r: it says so" grep -qE "^copy +of run $id at step 3: " out
copy=$(state b run_id step_00000005)
expect "a new run_id, and the parent" [ -n "$copy" -a "$copy" != "$id" -a "$(parent b step_00000005)" = "$id 3" ]
go run.dir=b
expect "the copy stays what it is" not said_copy
expect "with the same parent" [ "$(state b run_id step_00000012) $(parent b step_00000012)" = "$copy $id 3" ]
go run.dir=a
expect "the original is none" [ "$(state a run_id step_00000012)" = "$id" -a -z "$(parent a step_00000012)" ]
expect "weights are those of a run without a copy" same_weights a b step_00000012

go run.dir=c run.stop_step=3
mkdir d; cp -r c/checkpoints d
go run.dir=d run.stop_step=4
expect "the checkpoints alone, copied" grep -qE '^copy +of run' out
go run.dir=c run.stop_step=4; id=$(state c run_id step_00000004)
mv c e
go run.dir=e run.stop_step=5
expect "moved: the same run" [ "$(state e run_id step_00000005)" = "$id" -a "$(state e folder step_00000005)" = "$(realpath e)" ]
expect "  without a word" not said_copy
ln -s e f
go run.dir=f run.stop_step=6
expect "under another path: the same run" [ "$(state e run_id step_00000006)" = "$id" ]
cp -r e backup; rm -r e; mv backup e
go run.dir=e run.stop_step=7
expect "restored from a copy: the same run" [ "$(state e run_id step_00000007)" = "$id" ]
mv e g; go run.dir=e run.stop_step=3
go run.dir=g run.stop_step=8
expect "moved, and another run in its old place: the same run" [ "$(state g run_id step_00000008)" = "$id" ]
cp -r g h
expect "copied, on two ranks" eval 'run_ranks 2 "$TRAIN" tiny.json run.dir=h eval.every=0 > out 2>&1 && grep -qE "^copy +of run $id at step 8" out'
exit $STATUS
