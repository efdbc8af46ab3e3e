/* counted.cu - a kernel whose bank conflicts and bytes of memory traffic are known. It tests the counters of
 * test/emu/count.cpp, which the variable EMU_COUNTS switches on. */
#include "core/kernel.cuh"
#include "core/ptx.cuh"
#include "host.h"

enum { ROW = 64 }; /* elements of a row: 64 of 16 bits are 128 bytes, which use each of the 32 banks once */

/* A kernel of one warp with known costs. The comment of each access to shared memory gives the passes it takes and
 * the least passes it could take. Comments with bytes count the bytes requested of global memory. */
KERNEL counted_kernel(float *out, const float *in) {
    SMEM(bf16, rows, [WARP * ROW]);
    float   *words = reinterpret_cast<float *>(rows);
    int      lane = (int)threadIdx.x;
    uint32_t r[4];
    /* 32 passes over shared memory; fewer are impossible */
    for (int i = 0; i < WARP; i++) words[i * WARP + lane] = 0.0f;
    __syncwarp();
    /* shared memory: 2 passes where 1 is the least; global memory: 128 bytes */
    words[2 * lane] = in[lane];
    __syncwarp();
    /* shared memory: 4 tiles, each with 8 rows in the same banks, take 32 passes where 4 are the least */
    ldmatrix_x4(r, rows + lane * ROW);
    Pack<float, 4> four = pack_load<float, 4>(words + 4 * lane); /* 4 passes over shared memory, and 4 are the least */
    /* shared memory: 1 pass, because all lanes read one word; global memory: 32 sectors, 1024 bytes */
    out[8 * lane] = four.v[0] + words[0] * (float)(r[0] & 1);
    /* global memory: one sector is read and one written, 32 and 32 bytes */
    if (lane == 0) out[0] += 1.0f;
}

#ifdef CUDA_EMU
/* Milliseconds that a launch takes when EMU_COUNTS replaces time by bytes, a nanosecond each. These are the bytes of
 * `in`, those of out that are written, out[0] that is read, and 1024 for the launch itself. */
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
    /* tells the byte counter that the next launches belong to the operation "counted", whose inputs and outputs have
     * 512 bytes */
    emu::note_op("counted", 512.0);
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
