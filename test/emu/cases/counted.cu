/* counted.cu - a kernel whose bank conflicts and bytes are known, for EMU_COUNTS (test/emu/count.cpp). */
#include "core/kernel.cuh"
#include "core/ptx.cuh"
#include "host.h"

enum { ROW = 64 }; /* 16-bit elements: a row of 128 bytes uses each bank once */

/* A kernel of one warp. The comment of each line gives its passes and the least passes, then the bytes requested of
 * global memory. */
KERNEL counted_kernel(float *out, const float *in) {
    SMEM(bf16, rows, [WARP * ROW]);
    float   *words = reinterpret_cast<float *>(rows);
    int      lane = (int)threadIdx.x;
    uint32_t r[4];
    for (int i = 0; i < WARP; i++) words[i * WARP + lane] = 0.0f; /* 32 of 32 */
    __syncwarp();
    words[2 * lane] = in[lane];                                  /* 2 of 1; 128 bytes */
    __syncwarp();
    ldmatrix_x4(r, rows + lane * ROW);                           /* 4 tiles of 8 rows in the same banks: 32 of 4 */
    Pack<float, 4> four = pack_load<float, 4>(words + 4 * lane); /* 4 of 4 */
    out[8 * lane] = four.v[0] + words[0] * (float)(r[0] & 1);    /* 1 of 1, all lanes one word; 32 sectors: 1024 bytes */
    if (lane == 0) out[0] += 1.0f;                               /* read and written: 32 and 32 */
}

#ifdef CUDA_EMU
/* Milliseconds that a launch takes while bytes are counted, at a nanosecond for each byte: of `in`, of `out` written
 * and read, and the fixed cost of a launch. */
static const float COUNTED_MS = (float)(4 * WARP + 4 * WARP + 4 + 1024) * 1e-6f;
#endif

void counted_case() {
    std::vector<float> x(WARP, 1.0f);
    OnDevice<float>    in(x), out((size_t)8 * WARP);
    cudaEvent_t        from, to;
    float              ms;
    CUDA_CHECK(cudaEventCreate(&from));
    CUDA_CHECK(cudaEventCreate(&to));
#ifdef CUDA_EMU
    emu::note_op("counted", 512.0); /* note the operation, as its contract does */
#endif
    CUDA_CHECK(cudaEventRecord(from, stream_queue(&stream)));
    LAUNCH(counted_kernel, 1, WARP, 0, &stream, out.p, in.p);
    CUDA_CHECK(cudaEventRecord(to, stream_queue(&stream)));
    expect(out.host()[8] == 1.0f, "counted");
    CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
#ifdef CUDA_EMU
    expect(!emu::counts || fabsf(ms - COUNTED_MS) < 1e-8f, "counted time");
#endif
    CUDA_CHECK(cudaEventDestroy(from));
    CUDA_CHECK(cudaEventDestroy(to));
}
