/* ptx_wgmma.cuh - products of a warpgroup (128 threads) on the tensor cores of compute capability 9.0: d = a b (+ d),
 * m64 nN kK, K = 16 for bf16 and fp16, 32 for fp8; d in registers, a in registers or shared memory, b in shared memory.
 *
 * PTX ISA, "Asynchronous warpgroup-level matrix instructions". The order of a step:
 *   wgmma_fence();  wgmma(...) once or more;  wgmma_commit();  ...  wgmma_wait<0>(d);
 * Until a wait covers them the products may read a, b and d at any time. The program must neither read nor write d, nor
 * change the registers of a or the shared memory of a and b. The emulator refuses a violation.
 *
 * Thread t of the warpgroup holds, with row = t / 32 * 16 + t % 32 / 4:
 *   d[4 j + 2 h + e] = D[row + 8 h][8 j + t % 4 * 2 + e]
 *   a[2 h + i], 16 bits: A[row + 8 i][8 h + t % 4 * 2 ..+2]    8 bits: A[row + 8 i][16 h + t % 4 * 4 ..+4]
 */
#ifndef TRAIN_GPT_CORE_PTX_WGMMA_CUH
#define TRAIN_GPT_CORE_PTX_WGMMA_CUH

#include <cuda_fp8.h>

#include "core/ptx.cuh"

typedef __nv_fp8_e4m3 e4m3;
typedef __nv_fp8_e5m2 e5m2;

/* Returns the descriptor of an operand in shared memory with the 128-byte swizzle, as TMA stores it. K-major: groups of
 * 8 rows are stride_bytes apart, and a step along K advances the address by its bytes. Transposed: groups of 8 values
 * of K are stride_bytes apart, groups of 64 rows leading_bytes. */
DEVICE uint64_t matrix_descriptor(const void *shared, unsigned leading_bytes, unsigned stride_bytes PTX_HERE) {
#ifdef CUDA_EMU
    uint32_t start = emu::shared_offset(shared, 16, "matrix descriptor", file, line);
#else
    uint32_t start = shared_address(shared);
#endif
    uint64_t at = (start & 0x3ffff) >> 4, leading = leading_bytes >> 4, stride = stride_bytes >> 4, swizzle_128 = 1;
    return at | leading << 16 | stride << 32 | swizzle_128 << 62;
}
/* Returns x as a value that the compiler treats as new at each call. Results computed from it need not stay in
 * registers across a loop. */
DEVICE uint32_t afresh(uint32_t x) {
    PTX("mov.b32 %0, %0;" : "+r"(x));
    return x;
}
/* Checks that tiles for TMA and wgmma lie at a multiple of their alignment. SMEM_DYN requests that alignment, and the
 * compiler assumes it. */
template <typename T> DEVICE void tiles_aligned(const T *shared) {
#ifdef CUDA_EMU
    uint32_t at = emu::shared_offset(shared, sizeof(T), "tiles", __builtin_FILE(), __builtin_LINE());
#else
    uint32_t at = shared_address(shared);
#endif
    device_check(afresh(at) % alignof(T) == 0);
}
/* Returns the descriptor of an operand that begins `bytes` later, with one addition of 32 bits. */
DEVICE uint64_t descriptor_after(uint64_t descriptor, unsigned bytes) {
    return (descriptor >> 32 << 32) | (uint32_t)((uint32_t)descriptor + (bytes >> 4));
}
DEVICE uint64_t descriptor_afresh(uint64_t descriptor) { return (descriptor >> 32 << 32) | afresh((uint32_t)descriptor); }

/* Called before the first product, and after the program touched registers of d or a that the next product uses. */
DEVICE void wgmma_fence() {
    EMULATED(emu::wgmma_fence();)
    PTX("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void wgmma_commit() {
    EMULATED(emu::wgmma_commit();)
    PTX("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* wgmma_wait returns when at most `pending` of the latest groups are incomplete. It names the accumulators that this
 * completes: the compiler takes the products as done when they are issued, and must not move a use of them up. */
template <int n> DEVICE void accumulators_pinned(float (&d)[n]) {
    EMULATED((void)d;)
#pragma unroll
    for (int i = 0; i < n; i++) PTX("" : "+f"(d[i])::"memory");
}
template <int pending> DEVICE void wgmma_wait(EMULATED(const char *file = __builtin_FILE(), int line = __builtin_LINE())) {
    EMULATED(emu::wgmma_wait(pending, nullptr, nullptr, nullptr, file, line);)
    PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
template <int pending, int n> DEVICE void wgmma_wait(float (&d)[n] PTX_HERE) {
    EMULATED(emu::wgmma_wait(pending, d, nullptr, nullptr, file, line);)
    PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    accumulators_pinned(d);
}
template <int pending, int n, int m> DEVICE void wgmma_wait(float (&d)[n], float (&e)[m] PTX_HERE) {
    EMULATED(emu::wgmma_wait(pending, d, e, nullptr, file, line);)
    PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    accumulators_pinned(d);
    accumulators_pinned(e);
}
template <int pending, int n, int m, int l> DEVICE void wgmma_wait(float (&d)[n], float (&e)[m], float (&f)[l] PTX_HERE) {
    EMULATED(emu::wgmma_wait(pending, d, e, f, file, line);)
    PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    accumulators_pinned(d);
    accumulators_pinned(e);
    accumulators_pinned(f);
}

/* --- the instruction's text: one FORM for each kind of operands, one line for each N ------------------------------ */

#ifdef CUDA_EMU
#define PTX_OF_TYPES(FORM_16, FORM_8)
#else
#define PTX_D32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PTX_D64 \
    PTX_D32 "," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_D96 \
    PTX_D64 "," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PTX_D128 \
    PTX_D96 "," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define PTX_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PTX_F16(i) PTX_F4(i), PTX_F4(i + 4), PTX_F4(i + 8), PTX_F4(i + 12)
#define PTX_F32(i) PTX_F16(i), PTX_F16(i + 16)
#define PTX_F64 PTX_F32(0), PTX_F32(32)
#define PTX_F96 PTX_F64, PTX_F32(64)
#define PTX_F128 PTX_F96, PTX_F32(96)

/* i0, i1, ... name the operands after those of d: accumulate, then a, b, and for 16 bits whether they are
 * transposed. */
#define PTX_WGMMA(i0, shape, types, D, operands) \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " i0 ", 0;\nwgmma.mma_async.sync.aligned.m64" shape ".f32." types " {" D "}, " operands ";\n}"
#define PTX_SHARED_16(n, types, D, i0, i1, i2, i3, i4, i5, i6, ...)                                    \
    PTX(PTX_WGMMA(i0, n "k16", types, D, i1 ", " i2 ", p, 1, 1, " i3 ", " i4) : __VA_ARGS__            \
        : "r"(accumulate), "l"(a), "l"(b), "n"(a_transposed), "n"(b_transposed))
#define PTX_SHARED_8(n, types, D, i0, i1, i2, i3, i4, i5, i6, ...)                                     \
    PTX(PTX_WGMMA(i0, n "k32", types, D, i1 ", " i2 ", p, 1, 1") : __VA_ARGS__ : "r"(accumulate), "l"(a), "l"(b))
#define PTX_REGISTERS_16(n, types, D, i0, i1, i2, i3, i4, i5, i6, ...)                                           \
    PTX(PTX_WGMMA(i0, n "k16", types, D, "{" i1 "," i2 "," i3 "," i4 "}, " i5 ", p, 1, 1, " i6) : __VA_ARGS__    \
        : "r"(accumulate), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(b_transposed))
#define PTX_REGISTERS_8(n, types, D, i0, i1, i2, i3, i4, i5, i6, ...)                                            \
    PTX(PTX_WGMMA(i0, n "k32", types, D, "{" i1 "," i2 "," i3 "," i4 "}, " i5 ", p, 1, 1") : __VA_ARGS__         \
        : "r"(accumulate), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define PTX_OF_SIZE(FORM, types)                                                                                     \
    if constexpr (N == 64) FORM("n64", types, PTX_D32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", PTX_F32(0));    \
    else if constexpr (N == 128) FORM("n128", types, PTX_D64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", PTX_F64); \
    else if constexpr (N == 192)                                                                                     \
        FORM("n192", types, PTX_D96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", PTX_F96);                   \
    else FORM("n256", types, PTX_D128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", PTX_F128)
#define PTX_OF_TYPES(FORM_16, FORM_8)                                                                  \
    if constexpr (is_type<A, bf16>) { PTX_OF_SIZE(FORM_16, "bf16.bf16"); }                             \
    else if constexpr (is_type<A, half>) { PTX_OF_SIZE(FORM_16, "f16.f16"); }                          \
    else if constexpr (is_type<A, e4m3> && is_type<B, e4m3>) { PTX_OF_SIZE(FORM_8, "e4m3.e4m3"); }     \
    else if constexpr (is_type<A, e4m3>) { PTX_OF_SIZE(FORM_8, "e4m3.e5m2"); }                         \
    else if constexpr (is_type<B, e4m3>) { PTX_OF_SIZE(FORM_8, "e5m2.e4m3"); }                         \
    else { PTX_OF_SIZE(FORM_8, "e5m2.e5m2"); }
#endif

template <typename T, typename U> constexpr bool is_type = std::is_same<T, U>::value;
template <typename T> constexpr bool is_8_bit_float = is_type<T, e4m3> || is_type<T, e5m2>;
template <typename A, typename B> constexpr bool wgmma_takes =
    (is_8_bit_float<A> && is_8_bit_float<B>) || (is_type<A, B> && (is_type<A, bf16> || is_type<A, half>));
template <int N> constexpr bool wgmma_has = N == 64 || N == 128 || N == 192 || N == 256;
#ifdef CUDA_EMU
template <typename T> constexpr emu::MmaType mma_type() {
    return is_type<T, bf16> ? emu::MMA_BF16 : is_type<T, half> ? emu::MMA_F16 : is_type<T, e4m3> ? emu::MMA_E4M3 : emu::MMA_E5M2;
}
#endif

/* --- d = a b (+ d if accumulate); a and b are descriptors --------------------------------------------------------- */

/* Transposed means that the operand's rows (a) or columns (b) are contiguous; 16-bit types only. */
template <typename A, typename B, int N, int a_transposed = 0, int b_transposed = 0>
DEVICE void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate PTX_HERE) {
    static_assert(wgmma_has<N> && wgmma_takes<A, B>, "64, 128, 192 or 256 columns; bf16, fp16, or two of fp8");
    static_assert(sizeof(A) == 2 || !(a_transposed || b_transposed), "8-bit operands have K contiguous");
    EMULATED(emu::wgmma(d, N, mma_type<A>(), mma_type<B>(), a, nullptr, b, accumulate, a_transposed, b_transposed, file, line);)
    PTX_OF_TYPES(PTX_SHARED_16, PTX_SHARED_8)
}
/* Multiplies a in registers, which must not change until the wait. */
template <typename A, typename B, int N, int b_transposed = 0>
DEVICE void wgmma_from_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate PTX_HERE) {
    static_assert(wgmma_has<N> && wgmma_takes<A, B>, "64, 128, 192 or 256 columns; bf16, fp16, or two of fp8");
    static_assert(sizeof(A) == 2 || !b_transposed, "8-bit operands have K contiguous");
    EMULATED(emu::wgmma(d, N, mma_type<A>(), mma_type<B>(), 0, a, b, accumulate, false, b_transposed, file, line);)
    PTX_OF_TYPES(PTX_REGISTERS_16, PTX_REGISTERS_8)
}

#endif
