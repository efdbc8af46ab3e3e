#!/usr/bin/env bash
# make emu-planted: each fault planted in test/emu/cases must be caught where the table has an X. The clean kernels must
# pass everywhere.
#   scripts/emu_planted.sh [NUMBER...]     only these faults; 0 is the clean kernels
# Prints one line per fault, with three letters for each build. They stand for three schedules: threads run forward and
# asynchronous copies arrive late; threads run in reverse, copies late; threads forward, copies early. X means that the
# fault is caught, - that it is not. A run counts as caught when it ends with a diagnosis or a wrong value, not when it
# hangs. A letter in lower case differs from the table.
set -u
. "$(dirname "$0")/env.sh"
# The columns: number of the fault, case, and for each of the builds plain, ASan and race what the three schedules do
# (X: must catch the fault, -: do not catch it, a dot: either), then the fault. Fault 20 is seen only where ASan checks
# host code; fault 22 is legal on the hardware.
table='
 1 layernorm   XXX XXX XXX missing row mask
 2 layernorm   XXX XXX XXX misaligned 128-bit load
 3 layernorm   XXX XXX XXX full-mask shuffle in a branch
 4 layernorm   XXX XXX XXX wrong lane mask
 5 softmax     XXX XXX XXX shared array overrun by one
 6 softmax     X-X X-X XXX missing __syncthreads, read after write
 7 softmax     XXX XXX XXX wrong reduction width
 8 softmax     XXX XXX XXX missing __syncthreads, write after read
 9 softmax     --- XXX XXX reads one past the row
10 softmax     XXX XXX XXX barrier in divergent code
11 gemm        --- XXX XXX missing row mask in cp.async
12 gemm        XX- XX- XX- cp.async waits for one group too few
13 gemm        --X --X XXX double buffer without its second barrier
14 gemm        XXX XXX XXX wrong mma fragment order
15 gemm        XXX XXX XXX unaligned ldmatrix row
16 gemm        XXX XXX XXX accumulator not initialised
17 adamw       --- XXX XXX tail off by one vector
18 column_sums --- --- XXX missing atomicAdd between blocks
19 gemm        --- XXX XXX too little dynamic shared memory
20 softmax     --- XXX XXX host dereferences a device pointer
21 reverse     -X- -X- XXX missing __syncwarp
22 reverse     --- --- --- two barriers on one line: legal
23 reverse     XXX XXX XXX two different barriers in if and else
24 reverse     XXX XXX XXX overlapping __syncwarp masks
25 reverse     XXX XXX XXX null store
26 reverse     XXX XXX XXX shift past the width
27 reverse     XXX XXX XXX local array overrun
28 reverse     XXX XXX XXX 2048 threads per block
29 reverse     XXX XXX XXX a kernel is given memory of the host
41 hopper      XXX ... XXX no wait for a free slot
42 hopper      XX- ... XX- expects too few bytes
43 hopper      XXX ... XXX a count that is never reached
44 hopper      XXX ... XXX wrong parity
45 hopper      XXX ... XXX wrong stride in a descriptor
46 hopper      XXX ... XXX accumulator read before wgmma.wait
47 hopper      --- ... XXX no proxy fence between ordinary reads and the next TMA load
48 hopper      XXX XXX XXX dynamic shared memory that is not aligned
51 edges       XXX XXX XXX a stream does not wait for the other
52 edges       XXX XXX XXX a buffer is filled again while it is read
53 edges       XXX XXX XXX an event is recorded before the work
54 edges       XXX XXX XXX a stream waits for the recording before
55 pinned      XXX XXX XXX a pinned page is filled again while it is sent
56 pinned      XXX XXX XXX a pinned page is read before its copy has ended
57 launched_graph XXX XXX XXX a graph does not wait for another stream
58 launched_graph XXX XXX XXX the default stream beside a stream that is not blocking
61 wgmma       XXX XXX XXX proxy fence before the writes
62 wgmma       XXX XXX XXX wrong order of the registers of A
63 wgmma       XXX XXX XXX no proxy fence
64 wgmma       XXX XXX XXX one thread makes the proxy fence for all
65 wgmma       --- --- XXX no barrier between writers and wgmma
66 wgmma       XXX XXX XXX no wgmma.fence
67 wgmma       XXX XXX XXX half of the step along k
68 wgmma       XXX XXX XXX wrong leading offset of a transposed operand
69 wgmma       XXX XXX XXX a group that is never committed
70 wgmma       XXX XXX XXX registers of A changed in flight
71 wgmma       XXX XXX XXX shared operand changed in flight
72 wgmma       XXX XXX XXX accumulators changed in flight
73 wgmma       XXX XXX XXX the wait does not name the accumulators
74 wgmma       XXX XXX XXX the wait covers one group too few
75 wgmma       XXX XXX XXX second of two products used before its wait
76 wgmma       --- --- XXX wgmma.fence before the registers of A are written
77 wgmma       --- --- XXX registers of A read in flight
81 tma_store   XXX XXX XXX wrong order of stmatrix fragments
82 tma_store   XXX XXX XXX unaligned stmatrix row
83 tma_store   XXX XXX XXX no proxy fence before a TMA store
84 tma_store   X-X X-X XXX one thread makes the proxy fence for all
85 tma_store   XXX XXX XXX a TMA store before the tile is whole
86 tma_store   XXX XXX XXX a bulk group that is never committed
87 tma_store   XXX XXX XXX another thread waits for the TMA store
88 tma_store   XXX XXX XXX tile filled again before wait_group.read
89 tma_store   XX- XX- XX- matrix read before wait_group
90 tma_sum     XXX XXX XXX TMA store where blocks add
91 tma_sum     XXX XXX XXX wait_group.read covers one group too few
92 hand_on     XXX XXX XXX slot filled again without bar.sync
93 hand_on     --- --- XXX bar.arrive before the writes
94 hand_on     XXX XXX XXX bar.arrive left out
95 hand_on     XXX XXX XXX setmaxnreg.inc of what nobody gave up
96 hand_on     XXX XXX XXX setmaxnreg left out by one warp
97 hand_on     XXX XXX XXX setmaxnreg.inc of more than 64 Ki in all
98 hand_on     XXX XXX XXX bar.sync with another count
101 cluster    -X- -X- XXX no cluster barrier before the first multicast
102 cluster    XXX XXX XXX mbarrier.arrive at its own block alone
103 cluster    XXX XXX XXX expects the bytes of its own half alone
104 cluster    --- --- XXX slot filled again while the other block reads it
105 cluster    XXX XXX XXX no cluster barrier at the end
106 cluster    XXX XXX XXX multicast to itself alone
107 cluster    XXX XXX XXX cluster wait without arrive
108 cluster    XXX XXX XXX cluster arrive without wait
111 early      XXX XXX XXX an early launch does not wait for the kernels before
112 early      XXX XXX XXX one warp of an early launch does not wait
113 early      --- --- XXX an early launch reads before it waits
114 early      --- --- XXX an early launch writes before it waits
115 early      XXX XXX XXX an early launch copies before it waits
120 softmax     --- XXX XXX host dereferences a device pointer of a large allocation
121 early_graph XXX XXX XXX an early launch recorded by a driver for CUDA 12.2
122 nccl_abort XXX XXX XXX a communicator is asked after its abort
123 nccl_beside XXX XXX XXX a block that stays for each multiprocessor, beside NCCL
124 nccl_beside XXX XXX XXX NCCL without a limit beside blocks that stay'
variants=(-plain "" -race)

# one NUMBER CASE EXPECTED... WORDS: runs one planted fault in every build and schedule. Exit code 1 if a fault that the
# table expects to be caught is missed.
one() {
    local number=$1 case=$2 expected="$3 $4 $5" seen="" message="" verdict i=0 variant run out status
    shift 5
    for variant in "${variants[@]}"; do
        for run in forward:late reverse:late forward:early; do
            out=$(EMU_SCHED=${run%:*} EMU_ASYNC=${run#*:} timeout 60 "build/emu$variant/test/emu/cases/cases" "$case" "$number" 2>&1); status=$?
            [ $status -ne 0 ] && [ $status -ne 124 ] && seen+=X || seen+=-
            [ $status -ne 0 ] && message=$(grep -m1 -E 'EMU (ERROR|RACE)|AddressSanitizer:|runtime error|^not ok|EMU: invalid' <<<"$out" || echo "status $status")
        done
        seen+=" "
    done
    verdict=caught
    for ((i = 0; i < ${#expected}; i++)); do
        case ${expected:i:1}${seen:i:1} in
            X-) verdict=MISSED ;;
            -X) seen=${seen:0:i}x${seen:i+1} ;;
        esac
    done
    [ "$expected" = "--- --- ---" ] && verdict=$([ "$seen" = "--- --- --- " ] && echo legal || echo "FALSE ALARM")
    printf '%2d %s%-9s %-44s %s\n' "$number" "$seen" "$verdict" "$*" "${message:0:110}"
    [ "$verdict" = caught ] || [ "$verdict" = legal ]
}
clean() { # clean: runs every case without a planted fault under every schedule; exit code 1 at the first failure
    local variant schedule async runs=0
    for variant in "${variants[@]}"; do
        for schedule in forward reverse random:1 random:2; do
            for async in late early; do
                if ! out=$(EMU_SCHED=$schedule EMU_ASYNC=$async timeout 120 "build/emu$variant/test/emu/cases/cases" 2>&1); then
                    echo " 0 FALSE ALARM build/emu$variant EMU_SCHED=$schedule EMU_ASYNC=$async"; echo "$out" | grep -v '^ok'; return 1
                fi
                runs=$((runs + 1))
            done
        done
    done
    echo " 0 clean: $runs runs of all cases"
}
if [ "${EMU_ONE:-}" ]; then
    if [ "$1" = 0 ]; then clean; else one "$@"; fi
    exit
fi

for variant in "${variants[@]}"; do
    make -s BACKEND=emu SAN=$variant emu-cases || exit 1
done
[ $# -gt 0 ] || set -- 0 $(awk '{print $1}' <<<"$table")
result=$(for n in "$@"; do
    if [ "$n" = 0 ]; then echo 0; else awk -v n="$n" '$1 == n' <<<"$table"; fi
done | EMU_ONE=1 xargs -P 2 -L 1 "$0" | sort -n)
echo "$result"
asked=$# good=$(grep -cE ' (caught|legal|clean:) ?' <<<"$result")
echo "$good of $asked as they should be"
[ "$good" -eq "$asked" ]
