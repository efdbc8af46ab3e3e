# env.sh - the environment of every script; sourced, not run. It changes to the project's folder and lets Open MPI run
# as root. A test is skipped if a tool is missing (python3, pgrep, xz) that its source, or a file that it sources, names
# outside a comment.
if [[ $(realpath "${BASH_SOURCE[-1]}" 2> /dev/null) == "$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")"/test/* ]]; then
    for tool in python3:python3 pgrep:procps xz:xz-utils; do
        command -v "${tool%:*}" > /dev/null || ! grep -hsv '^ *#' "${BASH_SOURCE[@]:1}" | grep -qw "${tool%:*}" && continue
        echo "skip ${BASH_SOURCE[-1]}: ${tool%:*} is not installed (package ${tool#*:})"; exit 0
    done
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
# turns off the cross-memory copy, which containers often forbid; Open MPI would then print a warning
export OMPI_MCA_btl_vader_single_copy_mechanism=none
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0} # MPI keeps its allocations until the process ends
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT-1000} # as the program sets it; programs under test and valgrind then need not execute themselves again
B=${B:-build/cpu}
# unbuilt PROGRAM: succeeds if PROGRAM is missing, and then prints the command that builds the tests of build folder $B.
unbuilt() {
    local words=BACKEND=cpu san
    [ ! -x "$1" ] || return
    case $B in build/cuda* | build/emu*) words=BACKEND=${B#build/} words=${words%%-*} ;; esac
    for san in asan tsan race plain; do case $B- in *-$san-*) words+=" SAN=-$san" ;; esac; done
    case $B in *-mpich*) words+=" MPI=mpich" ;; *-nompi*) words+=" MPI=0" ;; esac
    case $B in *-clang*) words+=" CC=clang" ;; esac
    echo "not ok $1 is not built; type: make $words tests"
}
unset MAKEFLAGS MAKELEVEL # makes a make that a script calls independent of a make that called the script
export DEPS=0             # keeps a make that a script calls from installing packages

# Options of mpirun whose names differ between Open MPI 4 and 5. LAUNCHER_MCA: the option before a parameter of the
# launcher. REMOTE_SHELL: the parameter that names the remote shell. OUTPUT_OPTIONS: keeps stdout and stderr of ranks
# apart, which Open MPI 5 may join.
case $(mpirun --version 2>/dev/null) in
*"(Open MPI) 5."*) LAUNCHER_MCA=--prtemca REMOTE_SHELL=plm_ssh OUTPUT_OPTIONS="--output :raw" ;;
*) LAUNCHER_MCA=--mca REMOTE_SHELL=plm_rsh OUTPUT_OPTIONS= ;;
esac
# run_ranks N COMMAND...: runs the command on N ranks, under the mpirun of the MPI library with which build folder $B is
# built.
run_ranks() {
    local n=$1; shift
    case $B in
    *mpich*) timeout 600 mpirun.mpich -np "$n" "$@" ;;
    *)       timeout 600 mpirun --oversubscribe --bind-to none $OUTPUT_OPTIONS -np "$n" "$@" ;;
    esac
}

# json_result FILE KEY=VALUE...: appends one measurement to test/results/FILE, or $RESULTS/FILE, with commit, machine and load.
json_result() {
    local file=${RESULTS:-test/results}/$1; shift
    python3 - "$file" "$@" <<'PY'
import json, os, subprocess, sys, time
def text(command): return subprocess.run(command, shell=True, capture_output=True, text=True).stdout.strip()
line = {"date": time.strftime("%Y-%m-%d"), "commit": text("git rev-parse --short HEAD") or os.environ.get("COMMIT_OF_BUNDLE", "unknown"),
        "machine": text("sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1") + f", {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 2)}
for pair in sys.argv[2:]:
    key, value = pair.split("=", 1)
    try: line[key] = float(value) if "." in value or "e" in value else int(value)
    except ValueError: line[key] = value
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
open(sys.argv[1], "a").write(json.dumps(line) + "\n")
PY
}
