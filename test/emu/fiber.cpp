/* fiber.cpp - threads of a block as fibers: the context switch, the scheduler, and how the emulator reports and ends.
 *
 * A fiber that must wait jumps straight to the next one that can run; the last of a block jumps back to the host. The
 * switch saves a function call's preserved registers and nothing else: no system call, 15 ns.
 */
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include <map>
#include <string>

#include "engine.h"

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

Engine engine;
Fiber *current;

static Settings read_settings() {
    const char *schedule = getenv("EMU_SCHED"), *async = getenv("EMU_ASYNC"), *streams = getenv("EMU_STREAMS");
    const char *memory = getenv("EMU_MEMORY"), *gpu = getenv("EMU_GPU");
    Settings    s = {FORWARD, 1, false, false, 1, (size_t)8 << 30, false};
    if (schedule && strcmp(schedule, "reverse") == 0) s.schedule = REVERSE;
    if (schedule && strncmp(schedule, "random", 6) == 0) {
        s.schedule = RANDOM;
        if (schedule[6] == ':') s.seed = (unsigned)strtoul(schedule + 7, nullptr, 10);
    }
    s.streams_in_order = streams && strcmp(streams, "order") == 0;
    if (streams && strncmp(streams, "random:", 7) == 0) s.streams_seed = (unsigned)strtoul(streams + 7, nullptr, 10);
    s.async_early = async && strcmp(async, "early") == 0;
    if (memory) s.memory_bytes = (size_t)strtoul(memory, nullptr, 10) << 20;
    s.one_gpu = gpu && strcmp(gpu, "one") == 0;
    return s;
}
const Settings settings = read_settings();

/* --- reports ------------------------------------------------------------------------------------------------------ */

void print_context() {
    const Launch *l = engine.launch;
    if (!l) return;
    fprintf(stderr, "EMU   in kernel %s<<<(%u,%u,%u),(%u,%u,%u),%zu>>> launched at %s:%d\n", l->name, l->grid.x, l->grid.y, l->grid.z,
            l->block.x, l->block.y, l->block.z, l->shared_bytes, l->file, l->line);
    if (!current) return;
    fprintf(stderr, "EMU   block (%u,%u,%u) thread (%u,%u,%u)\n", blockIdx.x, blockIdx.y, blockIdx.z, current->thread.x, current->thread.y,
            current->thread.z);
}
[[noreturn]] static void stop() {
    print_context();
    fflush(nullptr);
    abort();
}
void fail(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "EMU ERROR: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    stop();
}
void fail_at(const char *file, int line, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "EMU ERROR: %s:%d: ", file, line);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    stop();
}

#if EMU_ASAN
extern "C" void __asan_on_error() { print_context(); }
#else
/* Handles a wild pointer in a kernel. The handler has its own stack, because the fault may be an overflow of a fiber's
 * stack. It runs once; a second fault kills the process. */
static void on_fault(int) {
    static const char text[] = "EMU ERROR: segmentation fault\n";
    if (write(2, text, sizeof text - 1) > 0) print_context();
    _exit(139);
}
static bool watch_faults() {
    static char      stack[64 << 10];
    stack_t          alternate = {};
    struct sigaction action = {};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    action.sa_handler = on_fault;
    action.sa_flags = SA_ONSTACK | SA_RESETHAND;
    return sigaltstack(&alternate, nullptr) == 0 && sigaction(SIGSEGV, &action, nullptr) == 0;
}
static const bool faults_watched = watch_faults();
#endif

[[noreturn]] static void deadlock() {
    std::map<std::string, std::vector<int>> places;
    for (int i = 0; i < engine.threads; i++) {
        const Fiber &f = engine.fibers[i];
        char         where[512] = "exited";
        bool         in_warp = f.kind < BARRIER;
        if (f.state != DONE && in_warp) snprintf(where, sizeof where, "in %s(mask %08x) at %s:%d", f.name, f.mask, f.file, f.line);
        else if (f.state != DONE) snprintf(where, sizeof where, "in %s at %s:%d", f.name, f.file, f.line);
        places[where].push_back(i);
    }
    fprintf(stderr, "EMU ERROR: deadlock: no thread of the block can run\n");
    for (const auto &place : places)
        fprintf(stderr, "EMU   %zu threads (%d to %d) %s\n", place.second.size(), place.second.front(), place.second.back(),
                place.first.c_str());
    stop();
}

/* --- context switch ----------------------------------------------------------------------------------------------- */

/* emu_switch pushes the callee-saved registers, stores the stack pointer through save, and pops the registers of the
 * other stack. */
extern "C" void emu_switch(void **save, void *to);
extern "C" void emu_entry(); /* the code that a new fiber starts in */
#if defined(__x86_64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rdx
    jmp *%rdx
.globl emu_entry
emu_entry:
    xorl %ebp, %ebp
    pushq $0
    jmp emu_fiber_main
)");
enum { FRAME_WORDS = 7, FRAME_RETURN = 6 };
#elif defined(__aarch64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch, %function
emu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.globl emu_entry
emu_entry:
    mov x29, #0
    mov x30, #0
    b emu_fiber_main
)");
enum { FRAME_WORDS = 20, FRAME_RETURN = 11 };
#else
#error "the emulator switches fibers on x86-64 and aarch64"
#endif

static void announce_switch(void **save, const void *stack, size_t bytes) {
#if EMU_ASAN
    __sanitizer_start_switch_fiber(save, stack, bytes);
#else
    (void)save, (void)stack, (void)bytes;
#endif
}
static void finish_switch(void *saved, const void **came_from, size_t *bytes) {
#if EMU_ASAN
    __sanitizer_finish_switch_fiber(saved, came_from, bytes);
#else
    (void)saved, (void)came_from, (void)bytes;
#endif
}

enum Leaving { COMES_BACK, ENDS };

/* Switches from one fiber to another one. NULL is the host. A fiber that ends gives up its ASan state. */
static void jump(Fiber *from, Fiber *to, Leaving leaving) {
    if (from == to) return;
    void **asan_stack = from ? &from->asan_stack : &engine.host_asan_stack;
    announce_switch(leaving == ENDS ? nullptr : asan_stack, to ? to->stack : engine.host_stack, to ? STACK_BYTES : engine.host_stack_bytes);
    current = to;
    engine.came_from_host = !from;
    if (to) threadIdx = to->thread, blockIdx = to->block, engine.here = &engine.blocks[to->rank];
    emu_switch(from ? &from->stack_pointer : &engine.host_stack_pointer, to ? to->stack_pointer : engine.host_stack_pointer);
    finish_switch(*asan_stack, nullptr, nullptr);
}

/* --- scheduler: warps and lanes that can run are bits ------------------------------------------------------------- */

static int lowest(unsigned bits) { return __builtin_ctz(bits); }
static int highest(unsigned bits) { return 31 - __builtin_clz(bits); }
static int any(unsigned bits) {
    for (unsigned skip = engine.random() % __builtin_popcount(bits); skip > 0; skip--) bits &= bits - 1;
    return lowest(bits);
}
/* Returns the lowest set bit above bit `after`, or the lowest of all if there is none above. */
static int next_of(unsigned bits, int after) {
    unsigned later = after < 0 ? bits : bits & ~((2u << after) - 1);
    return lowest(later ? later : bits);
}

/* Returns the next fiber to run, if possible from the warp that ran last. Returns NULL if no fiber can run and no TMA
 * load is in flight. */
static Fiber *pick() {
    while (!engine.ready_warps)
        if (!tma_run_one()) return nullptr;
    unsigned warps = engine.ready_warps;
    int      last = current ? current->warp : -1, warp;
    if (settings.schedule == RANDOM) warp = any(warps);
    else if (last >= 0 && warps >> last & 1) warp = last;
    else warp = settings.schedule == REVERSE ? highest(warps) : next_of(warps, last);

    unsigned lanes = engine.warps[warp].ready;
    int      lane;
    if (settings.schedule == RANDOM) lane = any(lanes);
    else if (settings.schedule == REVERSE) lane = highest(lanes);
    else lane = next_of(lanes, warp == last ? current->lane : -1);
    return &engine.fibers[warp * WARP_LANES + lane];
}

void fiber_ready(Fiber *f) {
    f->state = READY;
    engine.warps[f->warp].ready |= 1u << f->lane;
    engine.ready_warps |= 1u << f->warp;
}
static void not_ready(Fiber *f, State state) {
    f->state = state;
    engine.warps[f->warp].ready &= ~(1u << f->lane);
    if (!engine.warps[f->warp].ready) engine.ready_warps &= ~(1u << f->warp);
}

void fiber_wait(Kind kind, const char *name, const char *file, int line) {
    Fiber *me = current;
    me->kind = kind, me->name = name, me->file = file, me->line = line;
    not_ready(me, WAITING);
    Fiber *to = pick();
    if (!to) deadlock();
    jump(me, to, COMES_BACK);
}

/* Refuses the end of a thread that other threads wait for. On the hardware these would hang, or their barrier would
 * count differently. */
static void check_exit(const Fiber &f, const Warp &w) {
    if (f.is_async) {
        bool copies_left = f.copies.size() > 1 || (f.copies.size() == 1 && !f.copies[0].empty());
        if (copies_left) fail("thread exits with cp.async copies that it never waited for");
        if (bulk_unread(f)) fail("thread exits before its TMA stores have read their tiles: it never waited for them");
        if (!f.accumulators.empty()) fail("thread exits with products of wgmma that it never waited for");
    }
    for (int i = 0; i < w.gatherings; i++) {
        const Gathering &g = w.gathering[i];
        if (g.wanted >> f.lane & 1)
            fail("thread exits while lanes %08x wait for it in %s(mask %08x) at %s:%d", g.arrived, g.name, g.wanted, g.file, g.line);
    }
    if (!f.awaited) fail("thread of an early launch exits and has not waited for the kernels before: await_kernels");
    if (f.at_cluster_barrier) fail("thread exits between cluster_arrive and cluster_wait");
    const Barrier &b = engine.here->barriers[0];
    if (b.arrived) fail("thread exits while %d threads wait in __syncthreads at %s:%d", b.arrived, b.file, b.line);
}

extern "C" __attribute__((no_sanitize("address", "undefined"))) void emu_fiber_main() {
    finish_switch(nullptr, engine.came_from_host ? &engine.host_stack : nullptr,
                  engine.came_from_host ? &engine.host_stack_bytes : nullptr);
    (*engine.launch->body)();
    Fiber *me = current;
    Warp  &w = engine.warps[me->warp];
    check_exit(*me, w);
    not_ready(me, DONE);
    w.exited |= 1u << me->lane;
    engine.live--;
    engine.here->live--;
    Fiber *to = pick();
    if (!to && engine.live) deadlock();
    jump(me, to, ENDS);
    __builtin_trap();
}

void fiber_place(Fiber &f, int index, dim3 block) {
    unsigned i = (unsigned)index % (unsigned)engine.block_threads;
    f.index = index, f.lane = index % WARP_LANES, f.warp = index / WARP_LANES, f.rank = index / engine.block_threads;
    f.thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
}
void fiber_reset(Fiber &f, uint3 block) {
    f.block = block;
    f.state = READY, f.kind = NONE, f.file = nullptr, f.asan_stack = nullptr;
    if (f.is_async) {
        f.copies.clear();
        f.wgmma.clear();
        f.stores.clear();
        f.accumulators.clear();
        f.held.clear();
        f.written.clear();
        f.is_async = f.wgmma_fenced = false;
    }
    f.at_cluster_barrier = false;
    f.awaited = !engine.launch->early;
    /* Puts the tops of the stacks into different cache sets. Stacks whose tops differ by a large power of two would
     * evict each other. */
    void **top = (void **)(f.stack + STACK_BYTES - 64 - f.index * 7 % 64 * 64) - FRAME_WORDS;
    memset(top, 0, FRAME_WORDS * sizeof *top);
    top[FRAME_RETURN] = (void *)emu_entry;
    f.stack_pointer = top;
}

void fiber_start_all() {
    current = nullptr;
    jump(nullptr, pick(), COMES_BACK);
    current = nullptr;
}

void await_kernels() { current->awaited = true; }

unsigned lane() { return (unsigned)current->lane; }

}  // namespace emu
