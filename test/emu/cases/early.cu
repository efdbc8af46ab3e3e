/* early.cu - kernels that start while the previous one still runs. Each reads the result of the previous one. */
#include "core/ptx.cuh"
#include "test/emu/cases/cases.cuh"

enum { THREADS = 128, COPIED = 4 /* COPIED: floats that one cp.async copies */ };

DEVICE void load_tile(float *tile, const float *in) {
    int t = threadIdx.x;
    if (t < THREADS / COPIED) cp_async_16(tile + t * COPIED, in + blockIdx.x * THREADS + t * COPIED, 16);
    cp_async_commit();
}

/* out[i] = 2 in[i]. Both arrays have n elements, with n a multiple of THREADS. */
KERNEL double_kernel(float *out, const float *in) {
    SMEM(float, tile, [THREADS]);
    int i = blockIdx.x * THREADS + threadIdx.x, warp = threadIdx.x / WARP;
    float seen = 0.0f;
    /* planted fault 113: reads the previous kernel's result before it waits for that kernel */
    if (BUG(113)) seen = in[i];
    if (BUG(114)) out[i] = 0.0f; /* planted fault 114: writes before it waits for the previous kernel */
    if (BUG(115)) load_tile(tile, in); /* planted fault 115: copies before it waits for the previous kernel */
    /* planted fault 111: no thread waits for the previous kernel; planted fault 112: one warp does not wait */
    if (!BUG(111) && !(BUG(112) && warp == 1)) await_kernels();
    if (!BUG(115)) load_tile(tile, in);
    cp_async_wait<0>();
    __syncthreads(); /* after this the tile is complete */
    out[i] = seen > 1e30f ? NAN : 2.0f * tile[threadIdx.x];
}
void double_often(float *out, float *room, const float *in, int n, Stream *s) {
    /* an early kernel may also be launched in the ordinary way */
    LAUNCH(double_kernel, n / THREADS, THREADS, 0, s, out, in);
    LAUNCH_EARLY(double_kernel, n / THREADS, THREADS, 0, s, room, out);
    LAUNCH_EARLY(double_kernel, n / THREADS, THREADS, 0, s, out, room);
}
