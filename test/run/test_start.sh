# Tests the start of the program: threads that do not spin, at most as many as processors, a large stack, a known
# instruction set. Also unusual machines and users: limits, a config inside the run folder, thousands of damaged
# checkpoints.
# Timed: a start has a limit of seconds.
. "$(dirname "$0")/lib/tiny.sh"

# environment_of VARIABLE [NAME=VALUE...]: starts a run and prints the variable in its environment.
environment_of() {
    local variable=$1; shift
    rm -rf "$WORK/env"
    env "$@" "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/env" run.steps=1000000 schedule.name=constant eval.every=0 checkpoint.every=0 > /dev/null 2>&1 & local job=$!
    await_step "$WORK/env"
    tr '\0' '\n' < /proc/$job/environ | sed -n "s/^$variable=//p"
    strike KILL $job; wait $job 2> /dev/null
}
expect "libgomp spins 1000 times, not forever" [ "$(environment_of GOMP_SPINCOUNT -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY)" = 1000 ]
expect "the user's setting stays" [ "$(environment_of GOMP_SPINCOUNT GOMP_SPINCOUNT=77)" = 77 ]
expect "a wait policy of the user's stays alone" [ -z "$(environment_of GOMP_SPINCOUNT -u GOMP_SPINCOUNT OMP_WAIT_POLICY=passive)" ]

short() { train run.steps=2 eval.every=0 run.dir="$WORK/short" "$@" > /dev/null; local status=$?; rm -rf "$WORK/short"; return $status; }
for threads in 20000 200000; do
    expect "OMP_NUM_THREADS=$threads: as many as processors, in one line" env OMP_NUM_THREADS=$threads bash -c '. test/run/lib/tiny.sh
        at=$SECONDS; exits 0 "OMP_NUM_THREADS .* '$threads' threads: $(nproc --all) " train run.steps=2 run.dir="$WORK/x" && [ $((SECONDS - at)) -le 30 ]'
done
expect "a stack of 64 KiB: works, or 71 and the command to type" bash -c '. test/run/lib/tiny.sh; ulimit -s 64; train run.dir="$WORK/x" > /dev/null 2> "$WORK/err"; status=$?
    [ $status = 0 ] || { [ $status = 71 ] && grep -q "ulimit -s 8192" "$WORK/err"; }'
if [ "$(id -u)" = 0 ] && command -v setpriv > /dev/null; then
    chmod 777 "$WORK"
    (ulimit -u 1; OMP_NUM_THREADS=2 setpriv --reuid=65533 --clear-groups "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/nobody" > /dev/null 2> "$WORK/err"); status=$?
    if [ $status = 0 ]; then echo "skip no more threads than allowed: this system counts no processes of a user"
    else expect "no thread can be started: 71, and our message" [ $status = 71 -a "$(grep -c '^train_gpt: cannot start .*thread' "$WORK/err")" = 1 ]; fi
else echo "skip no thread can be started: needs root"; fi

# Tries limits of address space, from hardly enough to load the program to enough for a run. Every run must end with 0
# or 71, none by a signal. `least` is the first limit, in KiB, at which --version ends so. Below it the loader ends with
# 127. At the limits of two bands, each less than 100 KiB wide, the loader dies of signal 11 (139), or libgomp ends with
# 1, before any code of ours (glibc 2.36, GCC 12). So the search passes over at most two limits with these two codes.
least=90000 others=0
while (ulimit -v $least; "$TRAIN" --version > /dev/null 2>&1); status=$?; [ $least -lt 200000 ]; do
    case $status in 127) ;; 1 | 139) [ $((others += 1)) -le 2 ] || break ;; *) break ;; esac
    least=$((least + 1000))
done 2> /dev/null
if ! sanitized "address space that runs out" "needs more than there is"; then
for precision in fp32 bf16; do
    bad=$(for kib in $(seq "$least" 9000 300000); do
        (ulimit -v $kib; short precision=$precision model.vocab_size=5000 2> /dev/null); status=$?
        [ $status = 0 ] || [ $status = 71 ] || echo "$kib KiB: $status"
    done)
    expect "address space that runs out, $precision: 71 wherever it does" [ -z "$bad" ]; [ -z "$bad" ] || echo "$bad"
done
# A preloaded C++ library throws std::bad_alloc, in a call or already when it is loaded (-DAT_LOAD). The program must
# end with 71 and a message.
for at in "" -DAT_LOAD; do
    expect "a library that throws" gcc -O1 -shared -fPIC $at -o "$WORK/exception.so" test/preload/exception.c
    expect "std::bad_alloc${at:+ before main}: 71, and what to type" exits 71 "out of memory in a C\+\+ library.*ulimit -v" env GOMP_SPINCOUNT=1000 LD_PRELOAD="$WORK/exception.so" \
        "$TRAIN" "$WORK/tiny.json" run.dir="$WORK/exception"
done
fi

for ranks in 1 2; do
    TRAIN_GPT_ISA=avx1024 expect "an unknown instruction set, $ranks ranks" exits 64 'TRAIN_GPT_ISA is .avx1024.' train_ranks $ranks run.dir="$WORK/x"
done
for isa in sse2 avx2 avx512 avx512bf16; do expect "TRAIN_GPT_ISA=$isa" quiet env TRAIN_GPT_ISA=$isa "$TRAIN" plan "$WORK/tiny.json"; done

# A config inside the run folder is never overwritten.
mkdir "$WORK/own"; sed "s#\"dir\": \"[^\"]*\"#\"dir\": \".\"#" "$WORK/tiny.json" > "$WORK/own/config.json"; cp "$WORK/own/config.json" "$WORK/config.before"
(cd "$WORK/own" && "$TRAIN" config.json > /dev/null); status=$?
expect "run.dir=. and a config.json of the user's: trained, not a byte of it changed" [ $status = 0 -a "$(cmp "$WORK/own/config.json" "$WORK/config.before")" = "" -a -s "$WORK/own/metrics.jsonl" ]
mkdir "$WORK/log"; for name in metrics.jsonl loss.svg; do
    cp "$WORK/config.before" "$WORK/log/$name"
    expect "run.dir=. and a config called $name" bash -c "cd '$WORK/log' && '$TRAIN' $name 2>&1 | grep -q 'another name' && cmp $name '$WORK/config.before'"
done
"$TRAIN" "$WORK/tiny.json" run.dir="$WORK/resumed" > /dev/null
expect "a run goes on from its own config.json" quiet "$TRAIN" "$WORK/resumed/config.json" run.steps=14 run.allow_change='["schedule"]'

# With many damaged checkpoints, the message has a few lines and the number of the others.
mkdir -p "$WORK/many/checkpoints"; for i in $(seq 101 150); do mkdir "$WORK/many/checkpoints/step_00000$i"; done
cp -r "$WORK/resumed/checkpoints/step_00000012" "$WORK/many/checkpoints/"
train run.dir="$WORK/many" run.steps=12 > /dev/null 2> "$WORK/err"; status=$?
expect "50 folders that do not verify: three lines and a count" [ $status = 0 -a "$(wc -l < "$WORK/err")" -eq 4 -a "$(grep -c '47 more folders' "$WORK/err")" -eq 1 ]
# If OMP_NUM_THREADS is not a number, the OpenMP library alone would use all processors for each rank. The program
# ignores the value, warns once, and divides the processors.
share=$(unset OMP_NUM_THREADS; train_ranks 2 run.dir="$WORK/share" run.steps=1 2>&1 | grep -oE '[0-9]+ threads?( each)?' | head -n 1)
for value in '' '1x' '-2' '0' '3;4' '1.5' 2147483648 4294967298 99999999999999999999; do
    OMP_NUM_THREADS=$value train_ranks 2 run.dir="$WORK/threads" run.steps=1 run.resume=never > "$WORK/out" 2>&1; rm -rf "$WORK/threads"
    expect "OMP_NUM_THREADS='$value' is ignored, and named once" [ "$(grep -oE '[0-9]+ threads?( each)?' "$WORK/out" | head -n 1)" = "$share" -a "$(grep -c 'OMP_NUM_THREADS=".*" is not a number of threads' "$WORK/out")" -eq 1 ]
done
OMP_NUM_THREADS=' 1, 4' train run.dir="$WORK/list" run.steps=1 > "$WORK/out" 2>&1
expect "a list of OpenMP: its first number counts" [ "$(grep -oE ' [0-9]+ threads?;' "$WORK/out" | head -n 1)" = ' 1 thread;' -a "$(grep -c 'no number' "$WORK/out")" -eq 0 ]
exit $STATUS
