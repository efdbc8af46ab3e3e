#!/usr/bin/env bash
# Two commands with the same out= must not write at once. The second ends with 73 and changes nothing, for any path to
# the same place. The lock of a killed process refuses nobody, and no lock file stays. The first writer is stopped
# before it renames its file.
# Timed: a writer is stopped before it renames.
. "$(dirname "$0")/lib/tiny.sh"
sanitized outputs "comes before preloaded libraries" && exit 0
gcc -O1 -shared -fPIC -o "$WORK/hold.so" test/preload/hold.c || { echo "not ok the preloaded library"; exit 1; }
cd "$WORK" || exit 1
sed 's/the /die /g' text.txt > other.txt
train run.dir=run checkpoint.every=0 eval.every=0 > /dev/null 2>&1 || { echo "not ok a run"; exit 1; }
train run.dir=run2 run.seed=5 checkpoint.every=0 eval.every=0 > /dev/null 2>&1
locks() { find "$WORK" -name '*.lock' -o -name '*.tmp*'; }
state_of() { find "$1" -printf '%p %y %s %m %T@ %C@\n' 2> /dev/null | sort; find "$1" -type f -exec cat {} + 2> /dev/null | cksum; }
# held END VERB...: runs the subcommand in the background. A preloaded library stops the process before it renames a
# file to a name that ends with END.
held() {
    local end=$1; shift
    rm -f out.first
    (HOLD_AT=$end LD_PRELOAD=$WORK/hold.so exec "$TRAIN" "$@" > out.first 2>&1) & job=$!
    for _ in $(seq 600); do
        case $(sed -nE 's/^State:[[:space:]]*(.).*/\1/p' /proc/$job/status 2> /dev/null) in T) return 0 ;; Z | X | "") break ;; esac
        sleep 0.1
    done
    echo "it was not held at $end:"; cat out.first; return 1
}
# one_writer VERB OUT END ALIAS FIRST... -- SECOND...: tests that of two commands VERB only one writes to OUT at a time.
# FIRST and SECOND are their arguments without out=. ALIAS is another path to OUT. END is the name before which the
# first is stopped.
one_writer() {
    local verb=$1 out=$2 end=$3 alias=$4 first=() lock; shift 4
    while [ "$1" != -- ]; do first+=("$1"); shift; done; shift
    lock=$out.lock; [ -d "$(dirname "$out")" ] || mkdir -p "$(dirname "$out")"
    expect "$verb: the first one is stopped before its last rename" held "$end" "$verb" "${first[@]}" out="$out"
    state_of "$(dirname "$out")" > before
    expect "$verb: the second one is refused" exits 73 "$verb: $alias is in use by another job \(host .*, process $job\); wait for it, or choose another out" "$TRAIN" "$verb" "$@" out="$alias"
    expect "$verb: it has changed nothing" diff before <(state_of "$(dirname "$out")")
    strike CONT $job; wait $job; ok $? "$verb: the first one ends well"
    expect "$verb: no lock stays" [ -z "$(locks)" ]
    cp -r "$out" "$out.whole"; rm -rf "$out"
    "$TRAIN" "$verb" "${first[@]}" out="$out" > out.alone 2>&1; ok $? "$verb: alone"
    expect "$verb: what the first one wrote is what it writes alone" diff -r "$out" "$out.whole"; rm -rf "$out" "$out.whole"
    { held "$end" "$verb" "${first[@]}" out="$out" && strike KILL $job; wait $job; } 2> /dev/null
    expect "$verb: it was killed with its lock" [ -n "$(locks)" ]
    "$TRAIN" "$verb" "$@" out="$out" > out.next 2>&1; ok $? "$verb: the next one is not refused"
    rm -rf "$out".tmp-*
    expect "$verb: nor does its lock stay" [ -z "$(locks)" ]
}
mkdir w; ln -s w/tokens link
one_writer tokenize w/tokens .bin ./link text.txt val=0.2 -- other.txt val=0
one_writer train-tokenizer w/bpe tokenizer.json w//bpe text.txt vocab_size=280 -- other.txt vocab_size=300
one_writer export w/model model w/../w/model run -- run2
one_writer plot w/all.svg all.svg w/./all.svg run -- run2
one_writer eval w/scores scores w/./scores run data="data/val_*.bin" tokens=400 json=true -- run2 data="data/val_*.bin" tokens=400
one_writer sample w/said said ./w/said run tokens=5 -- run2 tokens=6
held a.csv plot run out=w/a.svg csv=w/a.csv
expect "plot: a csv= that another plot writes" exits 73 "plot: w/a.csv is in use by another job" "$TRAIN" plot run2 out=w/b.svg csv=w/a.csv
expect "it has written no picture, and the lock of its own out= is gone" [ ! -e w/b.svg -a ! -e w/b.svg.lock ]
strike CONT $job; wait $job; ok $? "plot: the first one ends well"

# --- a file system without flock: the text of the lock decides
export NO_FLOCK=1
no_flock() { LD_PRELOAD=$WORK/hold.so "$TRAIN" "$@"; }
held tokenizer.json train-tokenizer text.txt out=w/bpe2 vocab_size=280
expect "without flock: the second one is refused, too" exits 73 "w/bpe2 is in use by another job \(host .*, process $job\)" no_flock train-tokenizer other.txt out=w/bpe2 vocab_size=300
strike CONT $job; wait $job; ok $? "without flock: the first one ends well"
expect "without flock: no lock stays" [ -z "$(locks)" ]
unset NO_FLOCK

# --- a process that was taken for dead, and finds another's name in its lock
held x.svg plot run out=w/x.svg csv=w/x.csv
sed -i.old 's/^nonce .*/nonce 0000000000000001/' w/x.csv.lock; rm w/x.csv.lock.old
strike CONT $job; wait $job; status=$?
expect "a plot that lost its csv= ends with 73" [ $status = 73 ]
expect "and writes none" [ ! -e w/x.csv -a -e w/x.csv.lock ]; rm -f w/x.*

# --- a signal that ends a verb takes the lock away; a name may be as long as that of a .tmp
for signal in TERM HUP; do
    held tokenizer.json train-tokenizer text.txt out=w/bpe3 vocab_size=280
    kill -$signal $job; { strike CONT $job; wait $job; } 2> /dev/null; status=$?
    expect "SIG$signal ends it as it ends a program" [ $status -gt 128 ]
    expect "and leaves no lock" [ ! -e w/bpe3/.out.lock -a -e w/bpe3/tokenizer.json.tmp ]; rm -r w/bpe3
done
long=$(printf 'l%.0s' $(seq 251))
"$TRAIN" plot run out="w/$long" > out.alone 2>&1; ok $? "a picture of a name of 251 bytes"
expect "no lock of it stays" [ -e "w/$long" -a -z "$(locks)" ]; rm "w/$long"

# --- faults leave no lock and no folder behind
fault() { local name=$1 code=$2 pattern=$3; shift 3; expect "$name" exits "$code" "$pattern" "$TRAIN" "$@"; }
fault "tokenize: no such text" 65 "nothing.txt" tokenize nothing.txt out=w/new/er
fault "train-tokenizer: a pattern that is none" 64 "pattern" train-tokenizer text.txt out=w/new/bpe vocab_size=300 'pattern=('
fault "export: no such run" 65 "w/no is neither a checkpoint" export w/no out=w/new/model
fault "plot: no such run" 65 "w/no is not the folder of a run" plot w/no out=w/new.svg csv=w/new.csv
fault "a folder that is a file" 74 "tokenize: cannot write text.txt: .*; give another out=" tokenize other.txt out=text.txt
fault "no folder for a picture" 74 "plot: cannot write w/none/a.svg: w/none/a.svg.lock: No such file or directory; give another out=" plot run out=w/none/a.svg
expect "nothing is left of any of them" [ -z "$(locks)$(ls w | grep new)" ]
echo mine > w/b.svg.lock
fault "a file of the lock's name" 64 "w/b.svg.lock has the name of a lock of this program but is something else; move it away" plot run out=w/b.svg
expect "it stays as it is" [ "$(cat w/b.svg.lock)" = mine ]
mkdir shut; chmod 555 shut; chmod 755 "$WORK"
if setpriv --reuid=65534 --regid=65534 --clear-groups test -r "$WORK/text.txt" -a -x "$TRAIN" 2> /dev/null; then
    fault_of_other() { exits 74 "$1" setpriv --reuid=65534 --regid=65534 --clear-groups "$TRAIN" "${@:2}"; }
    expect "a folder that may not be written" fault_of_other "tokenize: cannot write .*shut: .*Permission denied; give another out=" tokenize "$WORK/text.txt" out="$WORK/shut"
    expect "a parent that may not be written" fault_of_other "shut/a: Permission denied; give another out=" train-tokenizer "$WORK/text.txt" out="$WORK/shut/a" vocab_size=280
    expect "a picture there" fault_of_other "plot: cannot write .*shut/a.svg: .*Permission denied" plot "$WORK/run" out="$WORK/shut/a.svg"
else
    echo "skip folders that may not be written: no other user can run the program here"
fi
exit $STATUS
