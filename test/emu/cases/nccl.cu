/* nccl.cu - cases of NCCL during a computation, on one rank: which multiprocessors its kernels hold, and an abort. They
 * are valid on a GPU, too. */
#if !defined(NO_NCCL) && __has_include(<nccl.h>)
#include <nccl.h>
#endif

#include "test/emu/cases/cases.cuh"
#include "test/emu/cases/host.h"

#ifdef NCCL_MAJOR
static void check(ncclResult_t result, const char *what) {
    if (result != ncclSuccess) expect(false, what);
}

static ncclComm_t open_group(int most_blocks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t   comm = nullptr;
    if (most_blocks) config.minCTAs = 1, config.maxCTAs = most_blocks;
    check(ncclGetUniqueId(&id), "NCCL: an id");
    check(ncclCommInitRankConfig(&comm, 1, id, 0, &config), "NCCL: a communicator of one rank");
    return comm;
}

/* Sets out[blockIdx.x * BLOCK + threadIdx.x] to 0. One warpgroup of the block gives registers up and the other takes
 * them, so the block has its multiprocessor to itself. */
enum { BLOCK = 256 };
KERNEL __launch_bounds__(BLOCK, 1) stay_kernel(float *out) {
#ifdef PTX_HOPPER
    if (threadIdx.x < BLOCK / 2) registers_lower<24>();
    else registers_raise<240>();
#endif
    out[blockIdx.x * BLOCK + threadIdx.x] = 0.0f;
}

/* A kernel whose blocks each hold a multiprocessor for the whole launch must leave multiprocessors to NCCL's
 * kernels. */
void nccl_beside_case() {
    enum { COLLECTIVES = 3 };
    int          major = 0, multiprocessors = 0;
    cudaStream_t side;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    if (major != 9) return;
    /* planted fault 123: one block for each multiprocessor, so none is left for NCCL */
    const int       blocks = multiprocessors - (BUG(123) ? 0 : 1);
    OnDevice<float> x(64), out((size_t)blocks * BLOCK);
    ncclComm_t      comm = open_group(BUG(124) ? 0 : 1); /* planted fault 124: NCCL may hold all multiprocessors */
    CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMemset(x.p, 0, 64 * sizeof(float)));
    for (int i = 0; i < COLLECTIVES; i++) check(ncclAllReduce(x.p, x.p, 64, ncclFloat32, ncclSum, comm, side), "NCCL: an all-reduce");
    LAUNCH(stay_kernel, (unsigned)blocks, BLOCK, 0, &stream, out.p);
    expect(out.host()[(size_t)blocks * BLOCK - 1] == 0.0f, "NCCL: a kernel whose blocks stay, beside a collective");
    CUDA_CHECK(cudaStreamSynchronize(side));
    check(ncclCommFinalize(comm), "NCCL: the end");
    check(ncclCommDestroy(comm), "NCCL: the end");
    CUDA_CHECK(cudaStreamDestroy(side));
}

/* ncclCommAbort frees the communicator, so no call may use it afterwards. */
void nccl_abort_case() {
    ncclComm_t   comm = open_group(1);
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm, &state), "NCCL: a communicator is asked");
    check(ncclCommAbort(comm), "NCCL: an abort");
    /* planted fault 122: uses the communicator after its abort */
    if (BUG(122)) check(ncclCommGetAsyncError(comm, &state), "NCCL: it is asked again");
    expect(state == ncclSuccess, "NCCL: nobody asks after an abort");
}
#else
void nccl_beside_case() { printf("skip NCCL: nccl.h is not here\n"); }
void nccl_abort_case() {}
#endif
