#!/usr/bin/env bash
# make gpu-check: runs the checks of the CUDA build that need a GPU. It prints a line for each step, "ok|FAIL|skip NAME:
# detail (seconds)", and never stops at a failure. Logs are in build/gpu-check/. Files that this machine lacks come from
# build/gpu-bundle (make gpu-bundle on another machine).
#   scripts/gpu_check.sh [WORD...]     only the steps named: build sass calibration ops turns bits curve memcheck resume comm ranks
#                                      visible exchange stages beside lost copies archs memory device torch transformers initcheck racecheck
set -u
. "$(dirname "$0")/env.sh"
. scripts/gpu_env.sh
wanted=" ${*:-build sass calibration ops turns bits curve memcheck resume comm ranks visible exchange stages beside lost copies archs memory device torch transformers initcheck racecheck} "
# Steps that test what only a GPU, several GPUs, or another nvcc can show: a step and its claim on each line. With
# BACKEND=emu a step only shows that the step itself works.
claims='
visible   ranks that see one GPU each, by CUDA_VISIBLE_DEVICES, have all of its memory, and NCCL connects them
exchange  messages between any two ranks: the matrices of Muon, and sums in the order of a tree
stages    two stages with four micro-batches take their first step: every graph is made before the first message
beside    products beside gradients on their way: tokens/s where NCCL has 1, 16 and 32 blocks; 16 should be the best, or near it
lost      a rank that stands still ends the job with 77, within the time of the watchdog
copies    a copy in memory every step: tokens/s with it and without; pinned memory keeps them near
archs     this nvcc compiles every architecture that is supported, or says which it leaves out'
echo "what only GPUs, or another nvcc, can show:$claims"
if [ "$BACKEND" = cuda ] && ! has_gpu; then
    echo "gpu-check: needs an NVIDIA GPU and its driver, and nvidia-smi shows none here. The same kernels run without one: make BACKEND=emu test" >&2
    exit 69
fi
work=$PWD/build/gpu-check
program=$PWD/$B/train_gpt
passed=0 failed=0 skipped=0
mkdir -p "$work"

skip() { echo "$1"; return 200; } # the step's reason
step() { # step NAME COMMAND...: runs a step of the check. The last line of its output is printed as the detail.
    local name=$1 at=$SECONDS status word; shift
    case $wanted in *" ${name%%-*} "* | *" $name "*) ;; *) return ;; esac
    "$@" > "$work/$name.log" 2>&1; status=$?
    case $status in
    0)   word=ok passed=$((passed + 1)) ;;
    200) word=skip skipped=$((skipped + 1)) ;;
    *)   word=FAIL failed=$((failed + 1)) ;;
    esac
    printf '%-4s %s: %s (%d s)\n' $word "$name" "$(grep -v '^$' "$work/$name.log" | tail -n 1 | cut -c 1-300)" $((SECONDS - at))
    [ $word != FAIL ] || tail -n 30 "$work/$name.log" | sed 's/^/     | /'
}

# run_curve NAME [OPTION...]: trains the model of the loss curve (test/gpu/curve.json) on its text, from step 0, in
# build/gpu-check/NAME. If $gemm is set, the run uses the matrix product algorithms that run $gemm chose, because they
# decide the bits of the result.
run_curve() {
    local name=$1; shift
    rm -rf "${work:?}/$name"; mkdir -p "$work/$name"
    if [ -n "${gemm:-}" ] && [ -e "$work/$gemm/gemm.json" ]; then cp "$work/$gemm/gemm.json" "$work/$name/"; fi
    go_on "$name" "$@"
}
go_on() { # go_on NAME [OPTION...]: starts or resumes training run NAME, under mpirun if `ranks` is set
    local run=("$program" test/gpu/curve.json run.dir="$work/$1" "${@:2}")
    if [ -n "${ranks:-}" ]; then run_ranks "$ranks" "${run[@]}"; else timeout 300 "${run[@]}"; fi
}
losses() { sed -n 's/^{"kind":"train",.*"loss":\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
# compare_losses FOLDER1 FOLDER2 LIMIT: checks that both runs have as many steps, and that the relative difference of
# their losses is at most LIMIT in each step.
compare_losses() {
    paste -d' ' <(losses "$1") <(losses "$2") | awk -v limit="$3" '
        NF != 2 || $1 !~ /^[0-9]/ { odd++; next } { d = ($1 - $2) / $2; if (d < 0) d = -d; if (d >= most) { most = d; at = NR } }
        END { printf "%d steps, largest difference of the loss %.2g at step %d, limit %g%s\n", NR, most, at, limit, odd ? "; " odd " steps without a pair" : ""
              exit !(NR > 0 && !odd && most <= limit) }'
}
same_files() { # FOLDER FOLDER STEP
    local file
    for file in model.safetensors optimizer.safetensors; do
        cmp "$work/$1/checkpoints/$3/$file" "$work/$2/checkpoints/$3/$file" || return 1
    done
    cmp <(losses "$work/$1") <(losses "$work/$2") || { echo "the losses differ"; return 1; }
}
need_text() { compgen -G 'build/gpu-bundle/data/train_*.bin' > /dev/null || scripts/gpu_bundle.sh data || skip "no tokens: make gpu-bundle where the CPU build is at home"; }

build() {
    local at=$SECONDS
    if make tests; then
        echo "$B in $((SECONDS - at)) s, MPI=${MPI:-ompi-c}; $("$program" --version | head -n 1)"
    elif [ -d "$BUNDLE/programs" ] && [ "$B" = build/cuda ]; then
        mkdir -p "$B" && cp -r "$BUNDLE/programs/." "$B/" && "$program" --version && echo "the build failed here: the bundle's programs are used"
        return 1
    else return 1
    fi
}
# ops: runs the tests of layers. They read results as soon as the operation has returned, so launches must block.
ops() { CUDA_LAUNCH_BLOCKING=1 scripts/test.sh test/layers; }
# turns_of_ops: runs tests of layers with few multiprocessors, so that a block computes several tiles one after another.
# In a large model it does; with the small shapes of these tests a GPU gives each block at most one tile.
turns_of_ops() {
    local word
    for word in test_gemm test_linear test_attention test_documents; do
        CUDA_LAUNCH_BLOCKING=1 TRAIN_GPT_MULTIPROCESSORS=4 scripts/test.sh "layers/$word.c" || return 1
    done
}
# turns_of_curve: trains with several tiles for each block, early launches and graphs. It uses the program's own matrix
# products, and attention's backward pass with one block per head.
turns_of_curve() (
    export TRAIN_GPT_MULTIPROCESSORS=4 TRAIN_GPT_GEMM=own
    curve bf16 0.01
)
# comm: tests the ring through pinned memory at 1 to 4 ranks, and NCCL if each rank has a GPU. On a machine with one GPU
# NCCL runs with one rank.
comm() {
    [ "${MPI:-}" != 0 ] || { skip "no Open MPI here (make gpu-bundle packs it)"; return; }
    scripts/test.sh test/comm
}

# sanitize TOOL PRECISION: runs compute-sanitizer on two layers and three steps: queued, recorded as a graph, replayed.
# Matrix product algorithms are timed before, without the tool, because under it hundreds of cuBLASLt's kernels would
# take minutes.
sanitize() { # TOOL PRECISION
    local small=(run.steps=3 model.n_layer=2 model.n_head=1 model.n_embd=64 batch.global_tokens=384 schedule.warmup_steps=1 precision="$2")
    [ "$BACKEND" = cuda ] || { skip "for CUDA"; return; }
    command -v compute-sanitizer > /dev/null || { skip "compute-sanitizer is not installed"; return; }
    need_text || return
    run_curve timed "${small[@]}" || return 1
    rm -rf "$work/sanitize"; mkdir -p "$work/sanitize"; cp "$work/timed/gemm.json" "$work/sanitize/"
    timeout 240 compute-sanitizer --tool "$1" --error-exitcode 9 "$program" test/gpu/curve.json run.dir="$work/sanitize" "${small[@]}" || return 1
    grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$work/$1-$2.log" | tail -n 1
}

# calibration: compares the results of core/ptx.cuh's functions (GPU instructions) on this GPU with the emulator's. One
# test program is built for both.
calibration() {
    [ "$BACKEND" = cuda ] || { skip "for CUDA"; return; }
    [ -e "$BUNDLE/calibrate.txt" ] || scripts/gpu_bundle.sh calibration
    [ -e "$BUNDLE/calibrate.txt" ] || { skip "no dump of the emulator in the bundle"; return; }
    local cases=$B/test/emu/cases/cases
    { make -s "$cases" || [ -x "$cases" ]; } && timeout -k 10 90 "$cases" calibrate > "$work/calibrate.txt" &&
        python3 test/emu/compare_calibration.py "$work/calibrate.txt" "$BUNDLE/calibrate.txt"
}

# multiplies PRECISION: succeeds if this GPU has matrix products in PRECISION. fp8 needs compute capability 8.9.
multiplies() { [ "$1" != fp8 ] || [ "$BACKEND" != cuda ] || nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader | awk '{ exit !($1 >= 8.9) }'; }
curve() { # PRECISION LIMIT
    multiplies "$1" || { skip "this GPU has no $1"; return; }
    need_text || return
    [ -e "$BUNDLE/curve/metrics.jsonl" ] || scripts/gpu_bundle.sh curve || { skip "no curve of the CPU build: make gpu-bundle where it is at home"; return; }
    run_curve "curve-$1" precision="$1" && compare_losses "$work/curve-$1" "$BUNDLE/curve" "$2"
}

bits() { # PRECISION
    multiplies "$1" || { skip "this GPU has no $1"; return; }
    need_text || return
    run_curve "bits-$1" precision="$1" && gemm=bits-$1 run_curve "again-$1" precision="$1" && same_files "bits-$1" "again-$1" step_00000200 || return 1
    # Compares a run without early launches as well. A kernel that starts early and does not wait for its inputs could
    # compute the same wrong bits in every other run.
    TRAIN_GPT_LAUNCH=serial gemm=bits-$1 run_curve "serial-$1" precision="$1" && same_files "bits-$1" "serial-$1" step_00000200 &&
        echo "weights, moments and 200 losses are the same bits, with kernels one after the other, too"
}

# resume: kills a run once its second checkpoint exists, then resumes it. If the run ended before the signal, it is
# tried again with more steps.
resume() {
    local steps job last
    need_text || return
    for steps in 200 1000 5000; do
        last=$(printf 'step_%08d' $steps)
        run_curve whole precision=bf16 run.steps=$steps || return 1
        rm -rf "$work/broken"; mkdir -p "$work/broken"; cp "$work/whole/gemm.json" "$work/broken/"
        "$program" test/gpu/curve.json run.dir="$work/broken" precision=bf16 run.steps=$steps checkpoint.every=20 checkpoint.keep=100 & job=$!
        until [ -d "$work/broken/checkpoints/step_00000040" ] || ! kill -0 $job 2>/dev/null; do sleep 0.01; done
        kill -9 $job 2>/dev/null
        wait $job
        [ ! -d "$work/broken/checkpoints/$last" ] && break
    done
    [ ! -d "$work/broken/checkpoints/$last" ] || { echo "every run ended before it could be killed"; return 1; }
    local reached; reached=$(losses "$work/broken" | wc -l)
    go_on broken precision=bf16 run.steps="$steps" checkpoint.every=20 checkpoint.keep=100 && same_files broken whole "$last" &&
        echo "killed after step $reached of $steps, resumed: the same bits as unbroken"
}

ranks() { # N
    local ranks
    [ "${MPI:-}" != 0 ] || { skip "no Open MPI here (make gpu-bundle packs it)"; return; }
    need_text || return
    run_curve ranks-1 run.steps=20 && ranks=$1 run_curve "ranks-$1" run.steps=20 && compare_losses "$work/ranks-$1" "$work/ranks-1" 1e-6
}

# gpus: prints the number of GPUs that ranks can have. With the emulator that is 2, because it has one GPU for each
# process.
gpus() { if [ "$BACKEND" = emu ]; then echo 2; else nvidia-smi -L | grep -c '^GPU'; fi; }
two_gpus() {
    [ "${MPI:-}" != 0 ] || { skip "no Open MPI here (make gpu-bundle packs it)"; return; }
    [ "$(gpus)" -ge 2 ] || { skip "it takes two GPUs, and one is here"; return; }
    need_text
}
said_by() { grep -oE "$2" "$work/$1.log" | tail -n 1; }
tokens_per_s() { sed -nE 's/^\{"kind":"train",.*"tokens_per_s":([0-9.e+]*).*/\1/p' "$work/$1/metrics.jsonl" | tail -n 10 | sort -n | sed -n 5p; }
few=(run.steps=4 schedule.warmup_steps=1 precision=bf16 parallel.comm=nccl)

visible() {
    two_gpus || return
    rm -rf "$work/visible"
    # shellcheck disable=SC2016
    run_ranks 2 bash -c 'export CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK; exec "$@"' - "$program" test/gpu/curve.json run.dir="$work/visible" "${few[@]}" || return 1
    echo "two ranks, each with one GPU in sight, trained by NCCL"
}
exchange() {
    two_gpus || return
    ranks=2 run_curve exchange "${few[@]}" optimizer.name=muon && ranks=2 run_curve exchange-tree "${few[@]}" parallel.deterministic=true &&
        echo "the matrices of Muon, and sums in the order of a tree, on two ranks"
}
stages() {
    two_gpus || return
    local parts
    for parts in 1 2; do
        ranks=2 run_curve stages-$parts "${few[@]}" parallel.pipeline=2 parallel.interleave=$parts batch.global_tokens=1536 || return 1
    done
    echo "two stages of one part and of two"
}
beside() {
    two_gpus || return
    [ "$BACKEND" = cuda ] || { skip "for CUDA: speed"; return; }
    local blocks all=""
    for blocks in 1 4 16 32; do
        NCCL_MAX_CTAS=$blocks ranks=2 run_curve beside-$blocks run.steps=40 precision=bf16 parallel.comm=nccl model.preset=gpt2-124m model.n_layer=12 \
            model.n_head=12 model.n_embd=768 model.n_positions=1024 model.vocab_size=50257 batch.seq_len=128 batch.micro_batch=96 batch.global_tokens=24576 || return 1
        all+=" $blocks blocks $(tokens_per_s beside-$blocks) tokens/s,"
    done
    echo "NCCL with${all%,}"
}
lost() {
    two_gpus || return
    local job status last
    rm -rf "$work/lost"
    run_ranks 2 "$program" test/gpu/curve.json run.dir="$work/lost" "${few[@]}" run.steps=100000 run.watchdog_seconds=20 & job=$!
    for _ in $(seq 1200); do [ -s "$work/lost/metrics.jsonl" ] && break; sleep 0.1; done
    last=$(pgrep -f "^[^ ]*train_gpt .*run.dir=$work/lost " | tail -n 1)
    kill -STOP "$last" || return 1
    wait $job; status=$?
    kill -KILL "$last" 2> /dev/null
    [ $status -eq 77 ] || { echo "exit $status, expected 77"; return 1; }
    echo "exit 77 $(said_by lost 'no progress for [0-9.]+ s')"
}
copies() {
    need_text || return
    run_curve copies-none run.steps=40 precision=bf16 && run_curve copies run.steps=40 precision=bf16 checkpoint.memory_every=1 &&
        echo "$(tokens_per_s copies) tokens/s with a copy in memory every step, $(tokens_per_s copies-none) without"
}
archs() { make archs && grep -c '^archs: ' "$work/archs.log" | sed 's/$/ architectures compile with this nvcc/'; }

transformers() {
    with_plain_python -c 'import torch, transformers' 2>/dev/null || { skip "transformers is not installed (make check-hf installs it)"; return; }
    interop test/interop/check_hf.sh transformers
}
# interop SCRIPT NAME: runs the script. If the log of step NAME has a line "skip REASON", the step is skipped with that
# reason.
interop() {
    PYTHON=$(for python in python3 /usr/bin/python3; do $python -c 'import torch' 2>/dev/null && echo $python && break; done)
    PYTHON=${PYTHON:-python3} bash "$1"; local status=$?
    ! grep -q '^skip' "$work/${2}.log" || { skip "$(sed -n 's/^skip[a-z]*:* *//p' "$work/${2}.log" | tail -n 1)"; return; }
    return $status
}

# refuses CODE "WORDS" COMMAND...: checks that the command ends with exit code CODE, and that all WORDS are in its log.
refuses() {
    local code=$1 words=$2 word status; shift 2
    timeout 120 "$@"; status=$?
    [ $status -eq "$code" ] || { echo "exit $status, expected $code"; return 1; }
    for word in $words; do grep -qF "$word" "$work/$refusal.log" || { echo "exit $status, but nothing said of $word"; return 1; }; done
    echo "exit $status: $(grep -F "${words%% *}" "$work/$refusal.log" | tail -n 1)"
}
memory() {
    [ "$BACKEND" = cuda ] || { skip "for CUDA"; return; }
    need_text || return
    refusal=memory
    rm -rf "$work/memory"
    refuses 71 "micro_batch recompute" "$program" test/gpu/curve.json run.dir="$work/memory" run.steps=1 schedule.warmup_steps=0 model.preset=gpt2-1558m model.n_layer=48 \
        model.n_head=25 model.n_embd=1600 model.n_positions=1024 batch.seq_len=1024 batch.micro_batch=512 batch.global_tokens=524288 precision=bf16
}
device() {
    [ "$BACKEND" = cuda ] || { skip "for CUDA"; return; }
    need_text || return
    refusal=device
    refuses 69 "GPU BACKEND=cpu" env CUDA_VISIBLE_DEVICES= "$program" test/gpu/curve.json run.dir="$work/device"
}

[ "$BACKEND" != cuda ] || nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
step build build
if [ ! -x "$program" ]; then build > "$work/build.log" 2>&1; fi # a single step was asked for
[ -x "$program" ] || { echo "gpu-check: no $B/train_gpt: see build/gpu-check/build.log" >&2; exit 1; }
# The steps that others rely on come first, because a GPU may be available for only half an hour. The step sass is the
# first, because another nvcc may spill registers, or warn that it serializes wgmma.
step sass make -s BACKEND=cuda sass
step calibration calibration
step ops ops
step turns-ops turns_of_ops
for precision in fp32 bf16 fp8; do step bits-$precision bits $precision; done
step curve-fp32 curve fp32 1e-5
step turns-curve turns_of_curve
for precision in bf16 fp8; do step curve-$precision curve $precision 0.01; done
for precision in fp32 bf16; do step memcheck-$precision sanitize memcheck $precision; done
step resume resume
step comm comm
for n in 2 4; do step ranks-$n ranks $n; done
for claim in visible exchange stages beside lost copies archs; do step $claim $claim; done
step memory memory
step device device
step torch interop test/interop/test_gpt2_torch.sh torch
step transformers transformers
for tool in initcheck racecheck; do
    for precision in fp32 bf16; do step $tool-$precision sanitize $tool $precision; done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
