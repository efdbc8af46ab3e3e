#!/usr/bin/env bash
# `doctor` checks the machine and prints a line for each item: ok, or what to do. It never hangs, and exits with 69 if
# training cannot work.
# Timed: doctor must answer while a command hangs.
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
unset OMP_NUM_THREADS
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
doctor() { timeout 60 "$TRAIN" doctor "$@" 2>&1; }
# line NAME PATTERN COMMAND...: checks that the output line of item NAME matches
line() { local text; text=$("${@:3}" 2> /dev/null | grep -E "^(ok|warn|mend) +$1 "); grep -qE "$2" <<< "$text" || { echo "  $text"; return 1; }; }

text=$(doctor run.dir="$WORK"); status=$?
expect "exit 0 here" [ $status -eq 0 ]
expect "each line is ok, warn or mend" [ "$(grep -vcE '^(ok   |warn |mend ) [A-Za-z/].* ' <<< "$text")" -eq 0 ]
for what in CPU "CPU bf16" binding threads load memory GPU "/dev/shm" disk; do expect "a line for $what" grep -qE "^(ok|warn|mend) +$what " <<< "$text"; done
expect "nothing is written" [ -z "$(find "$WORK" -newer "$WORK/tiny.json" -type f -not -name tiny.json)" ]
expect "a processor's instruction set is capped by TRAIN_GPT_ISA" line "CPU bf16" "none: precision=auto is fp32" env TRAIN_GPT_ISA=avx2 "$TRAIN" doctor
expect "too many threads" line threads "^warn .*OMP_NUM_THREADS=999 .*unset it" env OMP_NUM_THREADS=999 "$TRAIN" doctor
expect "a number of threads that is none" line threads "^warn .*no number" env OMP_NUM_THREADS=many "$TRAIN" doctor
if [ "$(nproc)" -gt 1 ]; then
    expect "a process bound to one processor" line binding "^warn +binding +1 of [0-9]+ processors.*taskset" taskset -c 0 "$TRAIN" doctor
    expect "too few threads" line threads "^warn .*idle" env OMP_NUM_THREADS=1 "$TRAIN" doctor
fi
expect "a folder for the run that does not exist yet" line disk "^ok .*GiB free under $WORK" "$TRAIN" doctor run.dir="$WORK/a/b/c"
expect "a folder alone is that of the run" line disk "^ok .*GiB free under $WORK/data$" "$TRAIN" doctor "$WORK/data"
mkdir -p "$WORK/large/checkpoints/step_00000005" && truncate -s 2T "$WORK/large/checkpoints/step_00000005/optimizer.safetensors"
no_room() { doctor "$WORK/large" > "$WORK/said"; [ $? -eq 69 ] && grep -qE '^mend +disk .* free under .*, and a checkpoint takes 2048.* GiB: make room' "$WORK/said"; }
expect "a disk without room for one more checkpoint: exit 69" no_room
cannot() { doctor run.dir=/proc/self/nowhere > "$WORK/said"; [ $? -eq 69 ] && grep -qE '^mend +disk .*cannot be written' "$WORK/said"; }
expect "a folder that cannot be written: exit 69" cannot

# Other programs that doctor calls hang, fail or are missing. A stub of the same name replaces each.
if [ "$("$TRAIN" --version | grep -c 'MPI: Open MPI')" -eq 1 ]; then
    mkdir "$WORK/bin"
    stub() { printf '#!/bin/sh\n%s\n' "$2" > "$WORK/bin/$1"; chmod +x "$WORK/bin/$1"; }
    stubbed() { PATH=$WORK/bin:$PATH doctor; }
    expect "MPI as it is" line MPI "^ok .*Open MPI [0-9]" doctor
    expect "mpirun refuses root" line MPI "$([ "$(id -u)" -eq 0 ] && echo 'export OMPI_ALLOW_RUN_AS_ROOT=1' || echo '^ok')" env -u OMPI_ALLOW_RUN_AS_ROOT "$TRAIN" doctor
    stub mpirun 'echo "HYDRA build details:"'
    expect "the mpirun of another MPI" line MPI "^warn .*each rank would run alone" stubbed
    stub mpirun 'echo no; exit 3'
    expect "an mpirun that fails" line MPI "^warn .*ends with 3: no" stubbed
    stub srun 'echo "MPI plugin types are..."; echo pmix_v4'
    expect "srun with PMIx" line PMIx "^ok .*srun --mpi=pmix" stubbed
    stub srun 'echo "MPI plugin types are..."; echo none'
    expect "srun without" line PMIx "^warn .*mpirun" stubbed
    stub mpirun 'sleep 100 & echo $! > '"$WORK"'/sleeper; sleep 100'
    stub srun 'sleep 100'
    at=$(date +%s); said=$(stubbed); took=$(($(date +%s) - at))
    expect "programs that hang are left after 3 seconds each" [ $took -lt 60 ]
    expect "  and named" [ "$(grep -cE '^warn +(MPI|PMIx) .*no answer within 3 s' <<< "$said")" -eq 2 ]
    gone() { [ ! -e "/proc/$(cat "$WORK/sleeper")" ] || grep -q '^State:.*Z' "/proc/$(cat "$WORK/sleeper")/status"; }
    expect "  with what they had started" gone
    expect "no mpirun" line MPI "^warn .*no mpirun in PATH" env PATH="$WORK/empty" "$TRAIN" doctor
fi
expect "an unknown word" exits 64 'doctor: everything is no folder: give one' "$TRAIN" doctor everything
exit $STATUS
