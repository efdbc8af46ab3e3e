/* count.cpp - counts what a kernel's speed depends on and a CPU can see, into the file that EMU_COUNTS names: bank conflicts in
 * shared memory, and bytes of global memory. The race checker's hooks see the accesses, so the variant is SAN=-race.
 *
 * The lanes of a warp run one after another here. The n-th accesses of all lanes from one code address count as one
 * instruction, as on a GPU whose warp stays together.
 *   shared    an instruction takes one pass, of 8 bytes a lane two, of 16 four. A pass in which lanes want different words of one
 *             of the 32 banks is repeated until all have theirs.
 *   global    an instruction asks for whole sectors of 32 bytes. `moved` counts each byte once a launch, however often it is asked
 *             for: the least that memory must deliver. What L2 and L1 save lies between moved and asked.
 * The file gets a line a kernel and a line an operation of layers.h, added to at the end of the process:
 *     kernel NAME launches passes least_passes asked_bytes moved_bytes        operation NAME calls contract_bytes moved_bytes
 * An operation (a function of layers/layers.h) announces itself and the bytes of its contract by stream_note. Its moved
 * bytes are those of the kernels that are launched from then on, until another operation announces itself. Matrix
 * products are left out: each is an operation, but may be part of another one.
 *
 * While bytes are counted, times are measured in counted bytes instead of seconds. Choices between kernels that depend
 * on times, and with them the counts, are then the same in each run.
 */
#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "engine.h"

namespace emu {

struct KernelCount { int64_t launches, passes, least, asked, moved; };
struct OpCount { int64_t calls; double contract; int64_t moved; };

static struct Counts {
    const char                        *path = getenv("EMU_COUNTS");
    std::map<std::string, KernelCount> kernels;
    std::map<std::string, OpCount>     ops;
    KernelCount                       *kernel = nullptr; /* counts of the kernel that is running */
    uint32_t                           launch = 0;
    int64_t                            moved_before = 0, work = 0;
    ~Counts() { if (path) write(); }
    void write();
} sums;

const bool counts = sums.path;

/* --- bytes that are touched for the first time in this launch ----------------------------------------------------- */

enum { GRANULE = 2 };
/* For each granule (2 bytes) of an allocation of `bytes` bytes: the number of the last launch that read it, and of the
 * last launch that wrote it. */
struct Marks { size_t bytes; std::vector<uint32_t> read, written; };
static std::map<const char *, Marks> marks;

static int64_t first_touches(const Allocation &a, const char *p, size_t n, bool writes) {
    static const char *last = nullptr;
    static Marks      *m = nullptr;
    if (last != a.base || m->bytes != a.bytes) {
        m = &marks[last = a.base];
        if (m->bytes != a.bytes) *m = {a.bytes, std::vector<uint32_t>(a.bytes / GRANULE + 1), std::vector<uint32_t>(a.bytes / GRANULE + 1)};
    }
    std::vector<uint32_t> &stamps = writes ? m->written : m->read;
    int64_t                fresh = 0;
    for (size_t i = (size_t)(p - a.base) / GRANULE, end = ((size_t)(p - a.base) + n + GRANULE - 1) / GRANULE; i < end; i++)
        if (stamps[i] != sums.launch) stamps[i] = sums.launch, fresh += GRANULE;
    return fresh;
}

/* --- an instruction of a warp ------------------------------------------------------------------------------------- */

struct Instruction {
    unsigned    lanes;
    const char *p[WARP_LANES];
    uint32_t    bytes;
};
struct Site { /* One instruction of the kernel that accesses memory (one code address), as executed by one warp. */
    /* how often each lane has executed this instruction, and how often all lanes have */
    uint32_t                 begun[WARP_LANES], done;
    /* the executions of this instruction by the warp, one an entry; those before index `first` were made by all lanes,
     * each later one is still missed by at least one lane */
    std::vector<Instruction> open;
    size_t                   first;
    bool                     is_shared;
};
/* the instructions that the current launch has executed, by warp and code address */
static std::unordered_map<uint64_t, Site> sites;
enum { NEAR_SITES = 1 << 12 };
static struct { uint64_t key; Site *site; } near_sites[NEAR_SITES];

static Site &site_of(uint64_t key) {
    auto &near = near_sites[(key ^ key >> 12) % NEAR_SITES];
    if (!near.site || near.key != key) near = {key, &sites[key]};
    return *near.site;
}

enum { BANKS = 32, WORD = 4, SECTOR = 32 };

/* Returns the passes over shared memory that lanes [from, to) of an access need. That is the largest number of
 * different words that they access in one bank. */
static int passes_of(const Instruction &x, int from, int to) {
    uintptr_t word[BANKS][WARP_LANES + 1];
    int       words[BANKS] = {}, most = 0;
    for (int l = from; l < to; l++) {
        if (!(x.lanes >> l & 1)) continue;
        for (uintptr_t w = (uintptr_t)x.p[l] / WORD; w * WORD < (uintptr_t)x.p[l] + x.bytes; w++) {
            uintptr_t *of_bank = word[w % BANKS];
            int       &n = words[w % BANKS];
            if (std::find(of_bank, of_bank + n, w) == of_bank + n) of_bank[n++] = w;
            most = std::max(most, n);
        }
    }
    return most;
}
static int sectors_of(const Instruction &x) {
    uintptr_t sector[2 * WARP_LANES];
    int       n = 0;
    for (int l = 0; l < WARP_LANES; l++) {
        uintptr_t s = (uintptr_t)x.p[l] / SECTOR, end = (uintptr_t)x.p[l] + x.bytes;
        for (; (x.lanes >> l & 1) && s * SECTOR < end; s++)
            if (n == 0 || sector[n - 1] != s) sector[n++] = s;
    }
    if (!std::is_sorted(sector, sector + n)) std::sort(sector, sector + n);
    return (int)(std::unique(sector, sector + n) - sector);
}
static void settle(const Instruction &x, bool is_shared) {
    int together = x.bytes <= 4 ? 32 : x.bytes <= 8 ? 16 : 8;
    if (!is_shared) sums.kernel->asked += SECTOR * sectors_of(x);
    for (int l = 0; l < WARP_LANES && is_shared; l += together)
        if (int passes = passes_of(x, l, l + together)) sums.kernel->passes += passes, sums.kernel->least++;
}

static void note_part(const char *p, size_t n, uint32_t at, bool is_shared) {
    Site  &s = site_of((uint64_t)at << 8 | (uint64_t)current->warp << 2 | (uint64_t)is_shared);
    size_t place = s.first + s.begun[current->lane]++ - s.done;
    if (place >= s.open.size()) s.open.resize(place + 1);
    Instruction &x = s.open[place];
    x.lanes |= 1u << current->lane;
    x.p[current->lane] = p;
    x.bytes = std::max(x.bytes, (uint32_t)n);
    s.is_shared = is_shared;
    for (; s.first < s.open.size() && s.open[s.first].lanes == engine.warps[current->warp].exists; s.first++, s.done++)
        settle(s.open[s.first], is_shared);
    if (s.first == s.open.size()) s.open.clear(), s.first = 0;
}

/* The last access that count_whole has counted. The compiler may have split it into several instructions. Their
 * accesses lie inside it and are not counted again. */
static struct { const Fiber *by; const char *from, *to; bool writes; } whole;

void count_access(const void *pointer, size_t n, bool writes, uint32_t at) {
    const char *p = (const char *)pointer;
    if (whole.by == current && p >= whole.from && p + n <= whole.to && writes == whole.writes) return;
    whole.by = nullptr;
    bool        is_shared = p >= engine.here->arena && p < engine.here->arena + ARENA_BYTES;
    if (!is_shared) {
        const Allocation *a = find_allocation(p);
        /* does not count an address outside of all allocations: a constant, or a fault that the race checker reports */
        if (!a || p + n > a->base + a->bytes) return;
        sums.kernel->moved += first_touches(*a, p, n, writes);
    }
    for (size_t done = 0; done < n; done += 16) note_part(p + done, std::min<size_t>(16, n - done), at, is_shared);
}

void count_whole(const void *pointer, size_t n, bool writes) {
    const char *p = (const char *)pointer;
    if (!current || !watching() || (p >= current->stack && p < current->stack + STACK_BYTES)) return;
    whole.by = nullptr;
    count_access(p, n, writes, (uint32_t)(uintptr_t)__builtin_return_address(0));
    whole = {current, p, p + n, writes};
}

void count_bulk(const void *p, size_t n, bool writes) {
    const Allocation *a = find_allocation(p);
    sums.kernel->asked += (int64_t)n;
    if (a) sums.kernel->moved += first_touches(*a, (const char *)p, n, writes);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

static const char *op_of_next; /* name of the last operation of layers.h that was announced by note_op */

void note_op(const char *op, double bytes) {
    if (!sums.path || !op) return;
    op_of_next = op;
    OpCount &o = sums.ops[op];
    o.calls++, o.contract += bytes;
}
const char *op_now() { return op_of_next; }

/* Returns the name of a kernel without the parentheses and namespaces that the compiler adds. */
static std::string plain(const char *name) {
    std::string s;
    for (; *name; name++)
        if (*name != '(' && *name != ')' && *name != ' ') s += *name;
    return s;
}
void count_launch(const Launch &l) {
    if (!sums.path) return;
    sums.kernel = &sums.kernels[plain(l.name)];
    sums.kernel->launches++;
    sums.launch++;
    sums.moved_before = sums.kernel->moved;
    sites.clear();
    memset(near_sites, 0, sizeof near_sites);
}
void count_block_end() {
    for (auto &each : sites) {
        Site &s = each.second;
        for (size_t i = s.first; i < s.open.size(); i++)
            if (s.open[i].lanes) settle(s.open[i], s.is_shared);
        s.open.clear();
        memset(s.begun, 0, sizeof s.begun);
        s.done = 0, s.first = 0;
    }
}
static bool is_product(const std::string &kernel) {
    for (const char *name : {"cublasLtMatmul", "gemm_hopper_kernel", "parts_total_kernel"})
        if (kernel.compare(0, strlen(name), name) == 0) return true;
    return false;
}
void count_launch_end(const Launch &l) {
    /* the fixed time of a launch counts as these bytes, in addition to those that it moves */
    enum { LAUNCH_WORK = 1024 };
    if (!sums.path) return;
    int64_t moved = sums.kernel->moved - sums.moved_before;
    sums.work += moved + LAUNCH_WORK;
    if (l.op && !is_product(plain(l.name))) sums.ops[l.op].moved += moved;
}
int64_t counted_work() { return sums.work; }

void Counts::write() {
    FILE *f = fopen(path, "a");
    if (!f) return;
    for (const auto &k : kernels)
        fprintf(f, "kernel\t%s\t%lld\t%lld\t%lld\t%lld\t%lld\n", k.first.c_str(), (long long)k.second.launches, (long long)k.second.passes,
                (long long)k.second.least, (long long)k.second.asked, (long long)k.second.moved);
    for (const auto &o : ops)
        fprintf(f, "operation\t%s\t%lld\t%.0f\t%lld\n", o.first.c_str(), (long long)o.second.calls, o.second.contract,
                (long long)o.second.moved);
    fclose(f);
}

}  // namespace emu
