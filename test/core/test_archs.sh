#!/usr/bin/env bash
# test_archs.sh - tests what `make BACKEND=cuda` compiles with an older or newer nvcc, for a GPU that it does not know,
# and without NCCL. It reads the commands that make -n prints on simulated machines.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/expect.sh"
expect() { local name=$1; shift; if "$@"; then echo "ok $name"; else echo "not ok $name"; tail -n 3 "$WORK/said"; STATUS=1; fi; }
mkdir -p "$WORK/cuda/bin" "$WORK/cuda/include" "$WORK/bin"
for name in cuda/bin/nvcc bin/nvidia-smi; do echo '#!/bin/sh' > "$WORK/$name"; chmod +x "$WORK/$name"; done
echo 'case $1 in --list-gpu-arch) printf "compute_%s\n" $KNOWN ;; esac' >> "$WORK/cuda/bin/nvcc"
echo '[ -z "$GPUS" ] && exit 9; printf "%s\n" $GPUS' >> "$WORK/bin/nvidia-smi"
# commands "ARCHITECTURES OF NVCC" "GPUS" [MAKE'S WORDS...]: simulates a machine with this nvcc and these GPUs. Writes
# to $WORK/said the commands with which make would compile one CUDA source and link the program.
commands() {
    local known=$1 gpus=$2; shift 2
    KNOWN=$known GPUS=$gpus PATH=$WORK/bin:$PATH make -n V=1 BACKEND=cuda CUDA_HOME="$WORK/cuda" B="$WORK/build" "$@" > "$WORK/said" 2>&1
}
# compiles ARCHITECTURES PTX: checks for which architectures the printed commands compile machine code and PTX.
compiles() {
    local line; line=$(grep -m 1 'nvcc .* -o .*/layers/activation.o' "$WORK/said")
    [ "$(grep -oE 'code=sm_[0-9a-f]+' <<< "$line" | sed 's/code=sm_//' | xargs)" = "$1" ] && [ "$(grep -oE 'code=compute_[0-9a-f]+' <<< "$line")" = "code=compute_$2" ]
}
left_out() { grep -q "left out: .*$1" "$WORK/said"; }

OLD="50 60 70 80 86 87 89 90" NEW="75 80 86 89 90 100 103 110 120 121"
commands "$NEW" ""
expect "CUDA 13: all that are supported, and PTX of the newest of them" compiles "80 90a 100" 100
expect "  nothing is left out of it" eval '! left_out "code for"'
commands "$OLD" ""
expect "CUDA 12.4, which does not know compute_100: the others" compiles "80 90a" 90
expect "  and make says so" left_out "code for sm_100"
commands "$NEW" "8.9"
expect "a GPU that nvcc knows: its own code" compiles 89 89
commands "$NEW" "9.0"
expect "an H100: with wgmma" compiles 90a 90
commands "$OLD" "12.0"
expect "a GPU newer than nvcc: PTX of the newest architecture alone" compiles "" 90
expect "  and make says so" left_out "code for sm_120.*the driver compiles compute_90"
commands "70 75 80" "8.6"
expect "an older nvcc still: PTX that is not newer than the GPU" compiles "" 80
commands "$OLD" "8.6 12.0"
expect "two GPUs, one of them newer: code and PTX" compiles 86 90
expect "an architecture that nvcc lacks, by name: refused" eval '! commands "$OLD" "" ARCHS=100'
expect "  with those that it knows" grep -qF "ARCHS=100: $WORK/cuda/bin/nvcc compiles for $OLD; leave ARCHS out" "$WORK/said"
expect "  which does" commands "$OLD" ""
commands "" ""
expect "an nvcc that lists nothing is taken at its word" compiles "80 90a 100" 100

links_nccl() { grep -q -- '-o .*/train_gpt .* -lnccl ' "$WORK/said"; }
# Without CUDA there may be no C++ compiler either. This simulated one succeeds if a folder given by -I has nccl.h.
printf '#!/bin/sh\nfor word; do [ ! -e "${word#-I}/nccl.h" ] || exit 0; done; exit 1\n' > "$WORK/bin/c++"; chmod +x "$WORK/bin/c++"
commands "$NEW" "" CXX="$WORK/bin/c++"
expect "without nccl.h: no NCCL is linked, nccl.c takes the place of nccl.cu" eval '! links_nccl && grep -q -- "-o $WORK/build/comm/nccl.o comm/nccl.c" "$WORK/said" && ! grep -q "comm/nccl.cu" "$WORK/said"'
expect "  and make says so" left_out "NCCL, since nccl.h is not here.*Install libnccl-dev"
echo '#define NCCL_MAJOR 2' > "$WORK/cuda/include/nccl.h"
commands "$NEW" "" CXX="$WORK/bin/c++"
expect "with nccl.h beside the toolkit's headers: NCCL" eval 'links_nccl && ! left_out NCCL'
commands "$NEW" "" NCCL=0
expect "NCCL=0: none, though it is here" eval '! links_nccl && left_out NCCL'
if [ -e /dev/nvidiactl ]; then
    echo "skip a machine without a GPU: this one has one"
else
    make -n V=1 CUDA_HOME="$WORK/cuda" B="$WORK/build" > "$WORK/said" 2>&1
    expect "without a GPU make takes the CPU, and says what that leaves out" left_out "the GPU's part, since no NVIDIA GPU is here: make BACKEND=cuda"
    make -n V=1 NVCC= B="$WORK/build" > "$WORK/said" 2>&1
    expect "  without nvcc, too" left_out "the GPU's part, since no nvcc is here: set CUDA_HOME"
fi
exit $STATUS
