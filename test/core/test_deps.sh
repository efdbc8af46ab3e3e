#!/usr/bin/env bash
# test_deps.sh - scripts/deps.sh on simulated machines: a PATH with a compiler that finds only some libraries, and an apt
# that logs its arguments.
. "$(dirname "${BASH_SOURCE[0]}")/../run/lib/expect.sh"
expect() { local name=$1; shift; if "$@"; then echo "ok $name"; else echo "not ok $name"; cat "$WORK/out" "$WORK/calls" 2> /dev/null; STATUS=1; fi; }
bin=$WORK/bin
stand_in() { { echo '#!/bin/sh'; cat; } > "$bin/$1"; chmod +x "$bin/$1"; }

# machine [PACKAGE...]: simulates a machine that has only these packages, and a user who is not root.
machine() {
    local tool
    rm -rf "$bin"; mkdir "$bin"
    for tool in bash sh env cat grep sed head sort tr; do ln -s "$(command -v $tool)" "$bin/$tool"; done
    : > "$WORK/calls"; printf '%s\n' make "$@" > "$WORK/has"
    stand_in id <<< 'echo 1000'
    # The simulated compiler fails if a library or header in its input belongs to a package that is not installed.
    stand_in cc << SH
text=\$(cat; echo " \$*"); has() { grep -qx "\$1" $WORK/has; }
has gcc || exit 1
for pair in dnnl:libdnnl-dev cJSON:libcjson-dev xxhash:libxxhash-dev openssl:libssl-dev pcre2:libpcre2-dev oniguruma:libonig-dev utf8proc:libutf8proc-dev \
            archive:libarchive-dev snappy:libsnappy-dev zstd:libzstd-dev zlib:zlib1g-dev mpi.h:\${MPI_OF:-libopenmpi-dev} cmocka:libcmocka-dev; do
    case \$text in *\${pair%%:*}*) has \${pair#*:} || { echo "fatal error: \${pair%%:*}"; exit 1; } ;; esac
done
SH
    stand_in apt-get << SH
echo "apt-get \$*" >> $WORK/calls
case " \$* " in *" nothere "*|*"\${REFUSES:-no such} "*) exit 100 ;; *" install "*) for word; do echo "\$word" >> $WORK/has; done ;; esac
SH
    stand_in apt-cache <<< 'exit 0'
    stand_in dpkg-query << SH
for last; do :; done; grep -qx "\$last" $WORK/has && echo "install ok installed"
SH
    for tool in make pgrep:procps bible:bible-kjv mpirun:openmpi-bin mpirun.mpich:mpich xz:xz-utils curl python3; do
        grep -qx "${tool#*:}" "$WORK/has" && stand_in "${tool%:*}" <<< 'exit 0'
    done
}
root() { stand_in id <<< 'echo 0'; }
deps() { PATH=$bin CC=cc bash scripts/deps.sh "$@" > "$WORK/out" 2>&1; }
lines_to_type() { grep -cE '^  .*apt-get install' "$WORK/out"; }
asks_for() { local word; for word; do sed -n "/^  .*apt-get install/s/\$/ /p" "$WORK/out" | grep -qF " $word " || { echo "no $word"; return 1; }; done; }
LIBRARIES="$(sed -nE 's/^(build|cpu) +([^ ]+) +links .*/\2/p' scripts/deps.sh | tr '\n' ' ') libopenmpi-dev"

machine
deps build smoke; status=$?
expect "a bare machine, no rights: refused with one line" [ $status -eq 1 -a "$(lines_to_type)" -eq 1 ]
expect "which has the compiler, libraries, MPI and tools" asks_for gcc libc6-dev pkg-config libdnnl-dev libopenmpi-dev openmpi-bin libcmocka-dev python3 procps
expect "and what no part of it needs is not in it" eval '! grep -qE "bible|clang" "$WORK/out"'
expect "without sudo it is for root" grep -qE '^  apt-get update && apt-get install' "$WORK/out"
stand_in sudo <<< 'exit 1'; deps demo build
expect "with sudo it begins so, and the demo's text is in it" eval 'grep -qE "^  sudo apt-get update && sudo apt-get install" "$WORK/out" && asks_for bible-kjv'
expect "nothing was installed" [ ! -s "$WORK/calls" ]
MPI=mpich deps build; expect "MPI=mpich: its packages, and not the other's" eval 'asks_for libmpich-dev mpich && ! grep -q openmpi "$WORK/out"'
MPI=0 deps build; expect "MPI=0: none" eval 'asks_for gcc && ! grep -qE "mpi|pkg-config" "$WORK/out"'
BACKEND=cuda deps build; expect "BACKEND=cuda: a C++ compiler, and no oneDNN" eval 'asks_for g++ && ! grep -q dnnl "$WORK/out"'

machine; root; deps build smoke; status=$?
expect "root: installed, and silent the next time" eval '[ $status -eq 0 ] && grep -q "install .* libdnnl-dev" "$WORK/calls"'
machine $LIBRARIES openmpi-bin; deps build; status=$?
expect "all of it there: nothing is said, nothing called" [ $status -eq 0 -a ! -s "$WORK/out" -a ! -s "$WORK/calls" ]
# A program can link with libraries from environment modules or conda, which dpkg does not know. deps.sh must not ask
# for them.
stand_in dpkg-query <<< 'exit 1'; deps build; status=$?
expect "libraries that apt does not know" [ $status -eq 0 -a ! -s "$WORK/out" ]
machine ${LIBRARIES/libopenmpi-dev/} theirs
MPI_OF=theirs MPI=hpcx deps build; status=$?; expect "an MPI of another name that links" [ $status -eq 0 -a ! -s "$WORK/out" ]
MPI_OF=none MPI=hpcx deps build; status=$?; expect "and one that does not: refused with the names there are" eval '[ $status -eq 1 ] && grep -q "MPI=hpcx: .*ompi-c, mpich, 0" "$WORK/out"'
machine ${LIBRARIES/libzstd-dev/}; deps build; status=$?
expect "one library is missing: its package alone is needed" eval '[ $status -eq 1 ] && asks_for libzstd-dev && ! grep -q zlib "$WORK/out"'

machine $LIBRARIES libcmocka-dev openmpi-bin; deps build test; status=$?
expect "tools of tests alone: going on, with a line that says so" eval '[ $status -eq 0 ] && asks_for python3 procps xz-utils && grep -q "continuing without .*procps.*is skipped" "$WORK/out"'
root; REFUSES=curl deps build test; status=$?
expect "one that cannot be had does not hold the others up" eval '[ $status -eq 0 ] && grep -qx procps "$WORK/has" && grep -q "could not install curl" "$WORK/out"'
machine $LIBRARIES openmpi-bin; root; sed -i 's/^case " .*install.*/exit 100/' "$bin/apt-get"; sed -i /libxxhash/d "$WORK/has"; deps build; status=$?
expect "a library that cannot be had: exit 1, with the compiler's words" eval '[ $status -eq 1 ] && grep -q "fatal error: xxhash" "$WORK/out"'
machine; rm "$bin/apt-get"; deps build; status=$?
expect "no Debian: the names, and exit 1" eval '[ $status -eq 1 ] && grep -q "not Debian or Ubuntu.*libdnnl-dev" "$WORK/out"'
deps nonsense; status=$?; expect "a need that there is not: exit 64" [ $status -eq 64 ]
exit $STATUS
