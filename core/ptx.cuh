/* ptx.cuh - the only file with inline PTX: tensor-core products, matrix loads and asynchronous copies, one function per instruction.
 *
 * Each has an emulated twin of the same meaning in test/emu/ (namespace emu); addresses are generic pointers outside of this file. The
 * names, fragment layouts and descriptors are those of the PTX ISA manual: "Warp-level matrix instructions" (ldmatrix, mma), "Data movement"
 * (cp.async, cp.async.bulk.tensor), "Asynchronous warpgroup-level matrix instructions" (wgmma), "mbarrier".
 *
 * Fragments of m16n8k16, lane l, g = l / 4, t = l % 4: a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..], a[3] = A[g+8][2t+8..];
 * b[0] = B[2t..][g], b[1] = B[2t+8..][g]; d[0..1] = D[g][2t..], d[2..3] = D[g+8][2t..].
 */
#ifndef TRAIN_GPT_CORE_PTX_CUH
#define TRAIN_GPT_CORE_PTX_CUH

#include <type_traits>

#include "core/kernel.cuh"

/* PTX_HERE: where the caller stands, for the emulator's messages. EMULATED(...) runs in the emulator, PTX(...) on a GPU. */
#ifdef CUDA_EMU
#define PTX_HERE , const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EMULATED(...) __VA_ARGS__
#define PTX(...)
#else
#define PTX_HERE
#define EMULATED(...)
#define PTX(...) asm volatile(__VA_ARGS__)
DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#endif

/* --- matrix loads: four 8x8 tiles of 16-bit elements; lanes 8i..8i+7 name the rows of tile i, 16-byte aligned, in shared memory ---------- */

DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *row PTX_HERE) {
    EMULATED(emu::ldmatrix(r, 4, row, false, file, line);)
    PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix_x4_transposed(uint32_t (&r)[4], const void *row PTX_HERE) {
    EMULATED(emu::ldmatrix(r, 4, row, true, file, line);)
    PTX("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

/* --- d += a b, m16n8k16, 16-bit operands, f32 accumulation; T is bf16 or half ------------------------------------------------------------ */

template <typename T> DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] PTX_HERE) {
    static_assert(std::is_same<T, bf16>::value || std::is_same<T, half>::value, "16-bit operands");
    EMULATED(emu::mma_m16n8k16(d, a, b, std::is_same<T, bf16>::value ? emu::MMA_BF16 : emu::MMA_F16, file, line);)
    if constexpr (std::is_same<T, bf16>::value) {
        PTX("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        PTX("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

/* --- 2^x: relative error 2^-22, results below 2^-126 are zero. One instruction, where exp2f takes four. ------------------------------------ */

DEVICE float exp2_approx(float x) {
    EMULATED(float y = exp2f(x); return y < 0x1p-126f ? 0.0f : y;)
    PTX("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
    return x;
}

/* --- asynchronous copies, global to shared, 16 bytes; what lies past source_bytes is filled with zero ------------------------------------- */

DEVICE void cp_async_16(void *shared, const void *global, int source_bytes PTX_HERE) {
    EMULATED(emu::cp_async(shared, global, 16, source_bytes, file, line);)
    PTX("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(source_bytes) : "memory");
}
DEVICE void cp_async_commit() {
    EMULATED(emu::cp_async_commit();)
    PTX("cp.async.commit_group;" ::: "memory");
}
/* At most `pending` of this thread's latest groups are still on their way. A barrier is still needed before others read. */
template <int pending> DEVICE void cp_async_wait() {
    EMULATED(emu::cp_async_wait(pending);)
    PTX("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#endif
