#!/usr/bin/env bash
# make gpu-bundle: collects files that a bare GPU machine may lack. They go to build/gpu-bundle/ and, packed, to
# gpu-bundle.tar.gz beside it (at most 40 MiB, to be copied with the sources). They are the CPU build's loss curve and
# its tokens, Open MPI's runtime, and small libraries with their headers. The emulator's calibration results and the
# CUDA build's programs are added if they exist.
#   scripts/gpu_bundle.sh [PART...]     only these parts: data curve libraries mpi calibration programs
set -eu
. "$(dirname "$0")/env.sh"
bundle=$PWD/build/gpu-bundle
limit_mib=40 # limit on the size of the packed bundle, in MiB
wanted=" ${*:-data curve libraries mpi calibration programs} "
mkdir -p "$bundle/bin" "$bundle/lib" "$bundle/include"
note() { printf '%-12s %s\n' "$1" "$2"; }
wants() { case $wanted in *" $1 "*) ;; *) return 1 ;; esac; }
size() { du -sm "$@" | tail -n 1 | cut -f 1; }

cpu_build() { make -s BACKEND=cpu build/cpu/train_gpt; }

# bundle_data: packs the first megabyte of the King James text, one token for each byte.
bundle_data() {
    cpu_build
    rm -rf "$bundle/data"; mkdir -p "$bundle/data"
    bible -f gen1:1-rev22:21 | head -c 1000000 > "$bundle/data/text.txt" || [ -s "$bundle/data/text.txt" ]
    build/cpu/train_gpt tokenize "$bundle/data/text.txt" out="$bundle/data"
    rm "$bundle/data/text.txt"
}

# bundle_curve: trains 200 steps in fp32 on this machine's CPU with one thread, and packs the losses, which CUDA must
# reproduce.
bundle_curve() {
    cpu_build
    rm -rf build/gpu-curve
    OMP_NUM_THREADS=1 build/cpu/train_gpt test/gpu/curve.json run.dir=build/gpu-curve data.train="$bundle/data/train_*.bin" | tail -n 1
    mkdir -p "$bundle/curve"
    cp build/gpu-curve/metrics.jsonl "$bundle/curve/metrics.jsonl"
    note curve "$(grep -c '"kind":"train"' "$bundle/curve/metrics.jsonl") steps, last $(grep '"kind":"train"' "$bundle/curve/metrics.jsonl" | tail -n 1 | cut -c 1-80)"
}

# copy_needed FOLDER FILE...: copies to FOLDER the shared libraries that the files need and a bare machine may lack. The
# libraries of glibc, the compiler and the driver are left out.
copy_needed() { # FOLDER FILE...
    local library folder=$1; shift
    for library in $(ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u); do
        case $(basename "$library") in
        libc.so* | libm.so* | libpthread* | libdl* | librt* | libstdc++* | libgcc_s* | libgomp* | libatomic* | ld-linux* | libcublas* | libnccl* | libcuda* | libdnnl*) ;;
        *) cp -Lu "$library" "$folder/" ;;
        esac
    done
}
# library_of HEADER LIBRARY: packs HEADER, to build with, and the shared library LIBRARY, to run with.
library_of() {
    local header=$1 name=$2 found
    mkdir -p "$bundle/include/$(dirname "$header")"
    cp -L "/usr/include/$header" "$bundle/include/$header"
    found=$(ldconfig -p | sed -n "s/.*lib$name\.so\.[0-9]* .*=> //p" | head -n 1)
    cp -L "$found" "$bundle/lib/"
    ln -sfn "$(basename "$found")" "$bundle/lib/lib$name.so"
    copy_needed "$bundle/lib" "$found"
}

bundle_libraries() {
    library_of cjson/cJSON.h cjson
    library_of xxhash.h xxhash
    # OpenSSL is packed as static archives, because a shared library would replace that of the machine's other programs,
    # such as Python.
    cp -rL /usr/include/openssl "$bundle/include/"
    cp -rL /usr/include/x86_64-linux-gnu/openssl "$bundle/include/"
    cp -L /usr/lib/x86_64-linux-gnu/lib{ssl,crypto}.a "$bundle/lib/"
    library_of pcre2.h pcre2-8
    library_of oniguruma.h onig
    library_of utf8proc.h utf8proc
    library_of archive.h archive
    library_of snappy-c.h snappy
    library_of zstd.h zstd
    library_of zlib.h z
    cp -L /usr/include/zconf.h "$bundle/include/"
    library_of cmocka.h cmocka
    local cuda=${CUDA_HOME:-/usr/local/cuda}
    if [ -e "$cuda/include/nccl.h" ]; then # the libraries themselves are too large, and come with PyTorch
        cp -L "$cuda/include/nccl.h" "$bundle/include/"
        cp -rL "$cuda/include/nvtx3" "$bundle/include/"
    fi
    note libraries "libcjson, libxxhash, OpenSSL, PCRE2, Oniguruma, utf8proc, snappy, zstd, zlib, cmocka and their headers; $(size "$bundle/lib" "$bundle/include") MiB"
}

# bundle_mpi: packs Open MPI from Debian's packages: the launcher, libraries, and the components for one machine (no
# network hardware). OPAL_PREFIX tells it its new folder. The libraries have a folder of their own, because in the
# library path of another Open MPI they would break the launcher of that Open MPI.
bundle_mpi() {
    local from=/usr/lib/x86_64-linux-gnu to=$bundle/mpi/lib/x86_64-linux-gnu component
    [ -e $from/openmpi/lib/openmpi3 ] || { note mpi "skipped: libopenmpi3 is not installed"; return; }
    rm -rf "$bundle/mpi"; mkdir -p "$to/openmpi/lib/openmpi3" "$to/pmix2/lib" "$bundle/mpi/bin" "$bundle/mpi/share" "$bundle/mpi/shared"
    cp -L /usr/bin/orterun /usr/bin/orted "$bundle/mpi/bin/"
    ln -sfn ../mpi/bin/orterun "$bundle/bin/mpirun"
    cp -r /usr/share/openmpi "$bundle/mpi/share/"
    cp -r $from/pmix2/lib/pmix "$to/pmix2/lib/"
    for component in "$from"/openmpi/lib/openmpi3/*.so; do
        if ldd "$component" | grep -qE 'libuc[a-z]\.|libfabric|libpsm|libibverbs|librdmacm|liboshmem|infinipath|libefa|not found'; then continue; fi
        case $component in *_java* | */mca_sshmem* | */mca_spml* | */mca_memheap* | */mca_scoll*) continue ;; esac
        cp "$component" "$to/openmpi/lib/openmpi3/"
    done
    copy_needed "$bundle/mpi/shared" "$to"/openmpi/lib/openmpi3/*.so "$bundle"/mpi/bin/* "$to"/pmix2/lib/pmix/*.so
    ln -sfn libmpi.so.40 "$bundle/mpi/shared/libmpi.so"
    mkdir -p "$bundle/include/openmpi-c"
    cp -L $from/openmpi/include/mpi.h $from/openmpi/include/mpi_portable_platform.h "$bundle/include/openmpi-c/"
    # Writes a pkg-config that answers the only question that the Makefile asks, for machines without Open MPI's
    # development package.
    cat > "$bundle/bin/pkg-config" <<'SH'
#!/bin/sh
bundle=$(cd "$(dirname "$0")/.." && pwd)
case "$*" in
"--exists ompi-c") ;;
"--cflags ompi-c") echo "-I$bundle/include/openmpi-c" ;;
"--libs ompi-c") echo "-L$bundle/mpi/shared -lmpi" ;;
*) PATH=$(echo "$PATH" | tr : '\n' | grep -vx "$bundle/bin" | paste -sd:) exec pkg-config "$@" ;;
esac
SH
    chmod +x "$bundle/bin/pkg-config"
    note mpi "Open MPI $(/usr/bin/orterun --version | sed -n '1s/.* //p'), $(find "$to/openmpi" -name "*.so" | wc -l) components, $(size "$bundle/mpi") MiB"
}

# bundle_calibration: packs the emulator's result for every function of core/ptx.cuh (GPU instructions), to compare with
# a GPU's.
bundle_calibration() {
    local cases=build/emu-plain/test/emu/cases/cases
    if ! make -s BACKEND=emu SAN=-plain $cases || ! $cases calibrate > "$bundle/calibrate.txt"; then
        rm -f "$bundle/calibrate.txt"; note calibration "skipped: the emulator does not build or run here"; return
    fi
    note calibration "$(wc -l < "$bundle/calibrate.txt") lines of the emulator"
}

# bundle_programs: packs the CUDA build's programs, for a machine on which they cannot be built. Programs built on that
# machine are preferred.
bundle_programs() {
    local program
    rm -rf "$bundle/programs"
    if [ ! -x build/cuda/train_gpt ]; then note programs "skipped: no build/cuda/train_gpt (make BACKEND=cuda tests)"; return; fi
    for program in build/cuda/train_gpt build/cuda/test/layers/test_* build/cuda/test/bench/bench_* build/cuda/test/run/dump_logits build/cuda/test/emu/cases/cases; do
        case $program in *.o | *.d | *\**) continue ;; esac
        [ -x "$program" ] || continue
        mkdir -p "$bundle/programs/$(dirname "${program#build/cuda/}")"
        strip -o "$bundle/programs/${program#build/cuda/}" "$program"
    done
    note programs "$(find "$bundle/programs" -type f | wc -l) of build/cuda, $(size "$bundle/programs") MiB"
}

# pack: packs the folder $bundle. scripts/gpu_env.sh unpacks the archive if it is newer than the folder.
pack() {
    tar -czf "$bundle.tar.gz" -C "$(dirname "$bundle")" --exclude .unpacked "$(basename "$bundle")"
    touch "$bundle/.unpacked"
    total=$(size "$bundle.tar.gz")
}

for part in data curve libraries mpi calibration programs; do if wants $part; then "bundle_$part"; fi; done
git describe --always --dirty > "$bundle/commit" 2>/dev/null || echo unknown > "$bundle/commit"
pack
if [ "$total" -gt $limit_mib ] && [ -d "$bundle/programs" ]; then # the first to go: the machine most likely can build
    rm -rf "$bundle/programs"; note programs "left out again: $total MiB packed, more than $limit_mib"
    pack
fi
[ "$total" -le $limit_mib ] || { echo "gpu-bundle: $total MiB in $bundle.tar.gz, more than $limit_mib" >&2; exit 1; }
echo "gpu-bundle: $(size "$bundle") MiB in ${bundle#"$PWD/"}, $total in ${bundle#"$PWD/"}.tar.gz, commit $(cat "$bundle/commit")"
