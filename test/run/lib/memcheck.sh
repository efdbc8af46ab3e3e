#!/usr/bin/env bash
# Runs tests of parsers, files and threads, and a whole run, under valgrind. The instruction sets are limited, because
# valgrind 3.19 does not know AVX-512, and oneDNN's AVX2 code reads past the end of one of its own buffers.
export TRAIN_GPT_ISA=sse2 DNNL_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=SSE41
. "$(dirname "${BASH_SOURCE[0]}")/tiny.sh"
watched() { valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --child-silent-after-fork=yes "$@" > "$WORK/out" 2>&1 || { grep '^==' "$WORK/out" | head -30; return 1; }; }
# Leaks are not reported here: child processes of this test end in the middle, by fail(), and never free their memory.
expect "data/test_dataset under valgrind" watched --leak-check=no "$B/test/data/test_dataset"
for test in core/test_{json,io,exact} data/test_{loader,shard} run/config/test_config run/checkpoint/test_{manifest,safetensors,checkpoint} run/log/test_metrics; do
    expect "$test under valgrind" watched "$B/test/$test"
done
expect "a run under valgrind" watched "$TRAIN" "$WORK/tiny.json" run.steps=2 checkpoint.every=1 eval.tokens=40 batch.global_tokens=40
expect "its resume under valgrind" watched "$TRAIN" "$WORK/tiny.json" run.steps=3 checkpoint.every=1 eval.tokens=40 batch.global_tokens=40
[ $STATUS -eq 0 ] && echo "valgrind: nothing to report"
exit $STATUS
