#!/usr/bin/env bash
# Fuzzes the parsers with libFuzzer under ASan and UBSan. No input may cause a crash or a leak, or take more than 256
# MiB or a second.
#   scripts/fuzz.sh [SECONDS] [TARGET...]     default: 20 s each of test/fuzz/fuzz_*.c, two at a time
# Prints "ok TARGET: N inputs" or "not ok TARGET" with the finding, which is kept in build/fuzz/; "skip" where clang has no libFuzzer.
set -u
. "$(dirname "$0")/env.sh"
seconds=${1:-20}; [ $# -gt 0 ] && shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for source in test/fuzz/fuzz_*.c; do source=${source##*/fuzz_}; targets+=("${source%.c}"); done
out=build/fuzz
mkdir -p "$out"

compile=(clang -std=c11 -D_GNU_SOURCE -I. -O2 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
         -DBACKEND_cpu -DNO_MPI)
# Sources that are built without the fuzzer's counters. In faults.c the comparisons of the edit distance would take two
# thirds of the time and do not help the fuzzer.
untraced=" run/config/faults.c "
if ! echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }' |
    clang -x c - -fsanitize=fuzzer,address -o "$out/probe" 2>/dev/null; then
    for target in "${targets[@]}"; do echo "skip $target: no clang with libFuzzer here"; done
    exit 0
fi

# Parsers, and the code that they call, are compiled with the fuzzer's counters. All other code is from the plain CPU
# build.
make -s BACKEND=cpu build/cpu/train_gpt || exit 1
rest=(build/cpu/run/config/presets.o build/cpu/run/checkpoint.a build/cpu/{model,layers,comm,data,core}.a)
read -ra mpi <<<"$(pkg-config --libs ompi-c 2>/dev/null)"
sources=(comm/{channel,frame,key,tls}.c run/outer/messages.c
         core/{device,error,format,io,json,simd,tensor,terminal,thread}.c data/shard.c
         data/{blend,bpe,bpe_file,json_line,parquet,split,text_file}.c
         run/config/*.c
         run/checkpoint/{manifest,safetensors}.c run/guard/guard.c
         run/log/run_log.c run/text/tasks.c)
objects=()
for source in "${sources[@]}"; do
    object=$out/$(echo "${source%.c}" | tr / _).o
    objects+=("$object")
    if [ "$object" -nt "$source" ] && [ -z "$(find core comm data run -name '*.h' -newer "$object" -print -quit)" ]; then continue; fi
    untrace=(); [[ $untraced != *" $source "* ]] || untrace=(-fno-sanitize=fuzzer-no-link)
    "${compile[@]}" "${untrace[@]}" -c -o "$object" "$source" || exit 1
done

# Sets a small quarantine for ASan, in which freed memory is kept to detect late uses: the memory limit includes it.
export ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=16
fuzz() { # TARGET
    local log=$out/$1.log corpus=$out/corpus_$1 count
    mkdir -p "$corpus"
    "$out/fuzz_$1" -max_total_time="$seconds" -rss_limit_mb=256 -timeout=1 -print_final_stats=1 -artifact_prefix="$out/$1-" "$corpus" "test/fuzz/seeds/$1" >"$log" 2>&1
    local status=$?
    count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if [ $status = 0 ]; then echo "ok $1: ${count:-0} inputs in $seconds s"; else echo "not ok $1: after ${count:-?} inputs"; tail -n 30 "$log"; fi
    return $status
}

failed=0 running=()
finish() { wait "${running[0]}" || failed=1; running=("${running[@]:1}"); }
for target in "${targets[@]}"; do
    "${compile[@]}" -fsanitize=fuzzer -o "$out/fuzz_$target" "test/fuzz/fuzz_$target.c" "${objects[@]}" "${rest[@]}" "${mpi[@]}" -ldnnl -lcjson -lxxhash -lssl -lcrypto -lpcre2-8 -lonig -lutf8proc -larchive -lsnappy -lzstd -lz -lm -fopenmp || exit 1
    [ ${#running[@]} -lt 2 ] || finish
    fuzz "$target" & running+=($!)
done
while [ ${#running[@]} -gt 0 ]; do finish; done
exit $failed
