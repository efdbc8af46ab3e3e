#!/usr/bin/env bash
# Installs the missing packages (Debian, Ubuntu) and prints each step. Prints nothing if none is missing.
#   scripts/deps.sh [NEED...]     NEED: build, smoke, test, demo, check, hosts, slurm; without one: build, test and demo
#   MPI=ompi-c|mpich|0  BACKEND=cpu|emu|cuda  CC=gcc  EXTRA_CFLAGS=...      variables with the same meaning as in make
# A library counts as installed if CC links a small program with it. Its package is then skipped, wherever the library
# comes from. Exit code 1: a test program does not link, or a command that the need requires is missing.
set -u
MPI=${MPI:-ompi-c} BACKEND=${BACKEND:-cpu} CC=${CC:-gcc}

# A line for each package: the need (an argument of this script), the package, and how its presence is checked.
#   links HEADER [-lLIBRARY]   a program links with it      has COMMAND   the command exists; the need requires it
#   wants COMMAND              the command exists; if it cannot be installed, tests that use it are skipped and name it
table='
build   gcc                 links stdio.h
build   libc6-dev           links stdio.h
build   make                has   make
cpu     libdnnl-dev         links dnnl.h -ldnnl
gpu     g++                 has   g++
build   libcjson-dev        links cjson/cJSON.h -lcjson
build   libxxhash-dev       links xxhash.h -lxxhash
build   libssl-dev          links openssl/ssl.h -lssl
build   libpcre2-dev        links pcre2.h -lpcre2-8
build   libonig-dev         links oniguruma.h -lonig
build   libutf8proc-dev     links utf8proc.h -lutf8proc
build   libarchive-dev      links archive.h -larchive
build   libsnappy-dev       links snappy-c.h -lsnappy
build   libzstd-dev         links zstd.h -lzstd
build   zlib1g-dev          links zlib.h -lz
ompi-c  pkg-config          links mpi.h
ompi-c  libopenmpi-dev      links mpi.h
ompi-c  openmpi-bin         wants mpirun
mpich   pkg-config          links mpi.h
mpich   libmpich-dev        links mpi.h
mpich   mpich               wants mpirun.mpich
smoke   libcmocka-dev       links cmocka.h -lcmocka
smoke   python3             wants python3
smoke   procps              wants pgrep
test    curl                wants curl
test    xz-utils            wants xz
test    python3-yaml        wants python3:yaml
test    python3-jsonschema  wants python3:jsonschema
demo    bible-kjv           has   bible
check   clang               wants clang
check   cppcheck            wants cppcheck
check   shellcheck          wants shellcheck
check   valgrind            wants valgrind
hosts   iproute2            wants tc
slurm   slurmctld           has   slurmctld
slurm   slurmd              has   slurmd
slurm   slurm-client        has   sbatch
'

needs=" ${*:-build test demo} "
for need in $needs; do
    grep -q "^$need " <<< "$table" ||
        { echo "deps: $need is not known; give build, smoke, test, demo, check, hosts or slurm" >&2; exit 64; }
done
case $needs in *" test "* | *" check "* | *" hosts "* | *" slurm "*) needs+="smoke " ;; esac
case $needs in *" check "*) needs+="test " ;; esac
case $needs in *" smoke "*) needs+="build " ;; esac
case $needs in *" build "*)
    [ "$MPI" = 0 ] || needs+="$MPI "
    [ "$BACKEND" = cpu ] && needs+="cpu " || needs+="gpu " ;;
esac

mpi_flags() { [ "$MPI" = 0 ] || pkg-config --cflags --libs "$MPI" 2> /dev/null; }
# links "HEADER -lLIBRARY"...: compiles one program that includes all these headers and links with all these libraries.
links() {
    local one flags=() text='#include <setjmp.h>\n#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#define PCRE2_CODE_UNIT_WIDTH 8\n'
    local main='int main(void) { return 0; }'
    for one in "$@"; do
        # shellcheck disable=SC2206
        case $one in
        mpi.h) flags+=($(mpi_flags)) main='int main(void) { return MPI_Init(NULL, NULL); }' ;;
        *" "*) flags+=(${one#* }) ;;
        esac
        text+="#include <${one%% *}>\n"
    done
    # shellcheck disable=SC2086
    printf '%b%s\n' "$text" "$main" | $CC -w -fopenmp ${EXTRA_CFLAGS:-} -x c -o /dev/null - "${flags[@]}" 2>&1
}
is_there() { # HOW WHAT
    case $1 in
    links) links "$2" > /dev/null ;;
    *) case $2 in
       *:*) "${2%:*}" -c "import ${2#*:}" 2> /dev/null ;;
       *) command -v "$2" > /dev/null ;;
       esac ;;
    esac
}

# find_missing: sets the arrays `needed` (required packages that are missing), `faults` (their checks that failed) and
# `wanted` (optional packages that are missing).
find_missing() {
    local need package how what all=() linked=no
    needed=() wanted=() faults=()
    while read -r need package how what; do
        if [ "$how" = links ] && [[ $needs == *" $need "* ]]; then all+=("$what"); fi
    done <<< "$table"
    if [ ${#all[@]} -gt 0 ] && links "${all[@]}" > /dev/null; then linked=yes; fi
    while read -r need package how what; do
        [ -n "$need" ] && [[ $needs == *" $need "* ]] || continue
        if [ "$how" = links ] && [ $linked = yes ] || is_there "$how" "$what"; then continue; fi
        if [ "$how" = wants ]; then # skip a package that apt has installed, even for another python3 than that in PATH
            dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -qx 'install ok installed' || wanted+=("$package")
        else
            needed+=("$package") faults+=("$how $what")
        fi
    done <<< "$table"
}
find_missing
if [[ $needs == *" build "* ]] && ! [[ $MPI =~ ^(0|ompi-c|mpich)$ ]] && ! links mpi.h > /dev/null; then
    echo "deps: MPI=$MPI: no program links with it, and its package is not known: give MPI=ompi-c, mpich, 0 (no MPI)," \
        "or a name that pkg-config knows" >&2
    exit 1
fi
missing=("${needed[@]}" "${wanted[@]}")
[ ${#missing[@]} -gt 0 ] || exit 0

# refuse: ends the script: with 1 if a required package is missing, otherwise with 0.
refuse() {
    [ ${#needed[@]} -gt 0 ] && exit 1
    echo "deps: continuing without ${wanted[*]}: what uses it is skipped" >&2
    exit 0
}
if ! command -v apt-get > /dev/null; then
    echo "deps: this is not Debian or Ubuntu, so nothing is installed. Install what corresponds to ${missing[*]}" >&2
    [ ${#faults[@]} -eq 0 ] || printf 'deps: failed check: %s\n' "${faults[@]}" >&2
    refuse
fi

if [ "$(id -u)" = 0 ]; then as_root=()
elif sudo -n true 2> /dev/null; then as_root=(sudo -n)
else
    sudo='' by="as root"; ! command -v sudo > /dev/null || { sudo="sudo " by="this"; }
    [ ${#needed[@]} -gt 0 ] && then="then the same command again" || then="if you can"
    echo "deps: missing packages. Type $by, $then:" >&2
    echo "  ${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends ${missing[*]}" >&2
    refuse
fi

install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; }
echo "deps: installing ${missing[*]}"
known() { apt-cache show --no-all-versions "${missing[@]}" > /dev/null 2>&1; } # does apt know them all already?
if ! known || ! install "${missing[@]}"; then
    echo "deps: apt-get update, to learn of current packages"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q || echo "deps: apt-get update failed; going on with what apt knows" >&2
    # Installs the packages one by one if that fails, because one package that cannot be installed stops the others.
    install "${missing[@]}" || for package in "${missing[@]}"; do install "$package" || echo "deps: could not install $package" >&2; done
fi
find_missing
if [ ${#needed[@]} -gt 0 ]; then
    printf 'deps: still failing: %s\n' "${faults[@]}" >&2
    for fault in "${faults[@]}"; do case $fault in "links "*) links "${fault#links }" | head -n 3 >&2; break ;; esac; done
    refuse
fi
[ ${#wanted[@]} -eq 0 ] || refuse
echo "deps: installed"
