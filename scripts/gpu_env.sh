# shellcheck shell=bash
# gpu_env.sh - shared by the GPU scripts: the build, and the folders of this machine's CUDA, Open MPI and small
# libraries.
# Missing ones come from build/gpu-bundle (make gpu-bundle, elsewhere). Sourced after env.sh. BACKEND=cpu tries the
# scripts themselves without a GPU.
export BACKEND=${BACKEND:-cuda}
BUNDLE=$PWD/build/gpu-bundle
if [ "$BUNDLE.tar.gz" -nt "$BUNDLE/.unpacked" ]; then tar -xzf "$BUNDLE.tar.gz" -C build && touch "$BUNDLE/.unpacked"; fi
LIBRARY_PATH_BEFORE=${LD_LIBRARY_PATH:-}
with_plain_python() { env LD_LIBRARY_PATH="$LIBRARY_PATH_BEFORE" python3 "$@"; } # its wheels bring their own libraries
prepend() { local -n variable=$1; case :${variable:-}: in *":$2:"*) ;; *) variable=$2${variable:+:$variable} ;; esac; export "${!variable}"; }
has_gpu() { nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }
folder_with() { local file=$1 folder; shift; for folder in "$@"; do if [ -e "$folder/$file" ]; then echo "$folder"; return; fi; done; } # FILE FOLDER...

# find_cuda: makes CUDA's headers and libraries available that the toolkit lacks. They may be only in Python's wheels,
# and without the names that -l needs. build/cuda-parts gets links to them.
find_cuda() {
    export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
    if [ ! -x "$CUDA_HOME/bin/nvcc" ] && command -v nvcc >/dev/null; then CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")"); fi
    prepend PATH "$CUDA_HOME/bin"
    [ ! -d "$CUDA_HOME/compute-sanitizer" ] || prepend PATH "$CUDA_HOME/compute-sanitizer"
    local parts=$PWD/build/cuda-parts wheels place name
    wheels=$(python3 -c 'import importlib.util as u; s = u.find_spec("nvidia"); print(*(s.submodule_search_locations if s else []))' 2>/dev/null)
    rm -rf "$parts"; mkdir -p "$parts/include" "$parts/lib"
    # links those headers that are neither in the toolkit nor in /usr/include or /usr/local/include
    for name in nccl.h nvtx3 cublasLt.h; do
        [ -z "$(folder_with "$name" "$CUDA_HOME/include" /usr/include /usr/local/include)" ] || continue
        # shellcheck disable=SC2086,SC2046
        place=$(folder_with "$name" $(printf '%s/*/include ' $wheels) "$BUNDLE/include")
        [ -n "$place" ] || continue
        case $name in cublasLt.h) ln -sf "$place"/cublas*.h "$parts/include/" ;; *) ln -sfn "$place/$name" "$parts/include/$name" ;; esac
    done
    for name in cublasLt cublas nccl; do
        if [ -n "$(folder_with "lib$name.so" /usr/lib/x86_64-linux-gnu /usr/local/lib /usr/lib64)" ]; then continue; fi
        place=$(folder_with "lib$name.so" "$CUDA_HOME/lib64" "$CUDA_HOME/lib")
        # shellcheck disable=SC2086
        if [ -n "$place" ]; then place=$place/lib$name.so; else place=$(find $wheels -name "lib$name.so.[0-9]*" 2>/dev/null | head -n 1); fi
        [ -n "$place" ] || continue
        ln -sf "$place" "$parts/lib/lib$name.so"
        ldconfig -p 2>/dev/null | grep -q "lib$name\.so\.[0-9]" || ln -sf "$(readlink -f "$place")" "$parts/lib/$(objdump -p "$place" | awk '/SONAME/ {print $2}')"
    done
    prepend CPATH "$parts/include"; prepend LIBRARY_PATH "$parts/lib"; prepend LD_LIBRARY_PATH "$parts/lib"
}

with_bundle_mpi() {
    env PATH="$BUNDLE/bin:$PATH" LD_LIBRARY_PATH="$BUNDLE/mpi/shared:$BUNDLE/lib:${LD_LIBRARY_PATH:-}" OPAL_PREFIX="$BUNDLE/mpi" \
        PMIX_MCA_mca_base_component_path="$BUNDLE/mpi/lib/x86_64-linux-gnu/pmix2/lib/pmix" "$@"
}
# small_libraries: succeeds if this machine has the small libraries (JSON, hashes and so on) and their headers
small_libraries() {
    printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h cmocka.h cjson/cJSON.h xxhash.h openssl/ssl.h utf8proc.h archive.h snappy-c.h zstd.h zlib.h | cat - <(echo 'int main(void) { return 0; }') |
        "${CC:-gcc}" -x c -o /dev/null - -lcmocka -lcjson -lxxhash -lssl -lcrypto -lpcre2-8 -lonig -lutf8proc -larchive -lsnappy -lzstd -lz 2>/dev/null
}
# find_libraries: finds libcjson, libxxhash, OpenSSL, libpcre2, libonig, libutf8proc, libarchive, libsnappy, libzstd,
# zlib, cmocka and Open MPI. Uses those of this machine, or else those of build/gpu-bundle. Sets MPI=0 if there is no
# Open MPI at all.
find_libraries() {
    local use=
    if [ -d "$BUNDLE/lib" ] && ! small_libraries; then use=1; fi
    if [ -z "${MPI:-}" ] && ! { command -v mpirun && pkg-config --exists ompi-c; } >/dev/null 2>&1; then
        export MPI=0
        if [ -e "$BUNDLE/bin/mpirun" ] && with_bundle_mpi mpirun -np 1 true >/dev/null 2>&1; then
            export MPI=ompi-c OPAL_PREFIX=$BUNDLE/mpi PMIX_MCA_mca_base_component_path=$BUNDLE/mpi/lib/x86_64-linux-gnu/pmix2/lib/pmix
            prepend PATH "$BUNDLE/bin"; prepend LIBRARY_PATH "$BUNDLE/mpi/shared"; prepend LD_LIBRARY_PATH "$BUNDLE/mpi/shared"
            use=1
        fi
    fi
    if [ -n "$use" ]; then prepend CPATH "$BUNDLE/include"; prepend LIBRARY_PATH "$BUNDLE/lib"; prepend LD_LIBRARY_PATH "$BUNDLE/lib"; fi
}

[ "$BACKEND" = cpu ] || find_cuda
find_libraries
B=build/$BACKEND; [ "${MPI:-}" != 0 ] || B=$B-nompi
export B
# Sets the commit that results name, for sources that came without their repository.
if [ -e "$BUNDLE/commit" ] && ! git rev-parse HEAD >/dev/null 2>&1; then COMMIT_OF_BUNDLE=$(cat "$BUNDLE/commit"); export COMMIT_OF_BUNDLE; fi
