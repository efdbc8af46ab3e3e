/* ptx_more.cuh - instructions that no kernel of the program uses: the emulator has them, and its cases prove them. The
 * functions are as in core/ptx.cuh.
 */
#pragma once
#include "core/ptx.cuh"

/* Stores the four tiles transposed. */
DEVICE void stmatrix_x4_transposed(void *row, const uint32_t (&r)[4] PTX_HERE) {
    EMULATED(emu::stmatrix(row, r, 4, true, file, line);)
    PTX("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
        ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

/* Waits like mbarrier_wait. What other blocks of the cluster wrote before they arrived is then visible. */
DEVICE void mbarrier_wait_cluster(uint64_t *barrier, unsigned parity PTX_HERE) {
    EMULATED(emu::mbarrier_wait(barrier, parity, file, line);)
    PTX("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra AGAIN;\n}"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

/* Adds a tile in shared memory to the matrix that `map` describes, in the element type of the matrix. */
DEVICE void tma_reduce_add_2d(const TensorMap *map, const void *shared, int column, int row PTX_HERE) {
    EMULATED(emu::tma_store_2d(map, shared, column, row, true, file, line);)
    PTX("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2,%3}], [%1];"
        ::"l"(map), "r"(shared_address(shared)), "r"(column), "r"(row) : "memory");
}

/* Waits until at most `pending` of this thread's latest groups of TMA stores have not reached the matrix. */
template <int pending> DEVICE void bulk_wait() {
    EMULATED(emu::bulk_wait(pending, false);)
    PTX("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}
