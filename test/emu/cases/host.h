/* host.h - the host code that the cases of the emulator share: arrays in device memory, conversions to and from
 * float. */
#pragma once
#include <vector>

#include <cuda_fp8.h>

#include "core/kernel.cuh"

extern Stream stream;
void          expect(bool true_one, const char *what);

static inline float as_float(float x) { return x; }
static inline float as_float(bf16 x) { return __bfloat162float(x); }
static inline float as_float(half x) { return __half2float(x); }
static inline float as_float(__nv_fp8_e4m3 x) { return (float)x; }
static inline float as_float(__nv_fp8_e5m2 x) { return (float)x; }
static inline void  set_float(__nv_fp8_e4m3 *to, float x) { *to = __nv_fp8_e4m3(x); }
static inline void  set_float(__nv_fp8_e5m2 *to, float x) { *to = __nv_fp8_e5m2(x); }
static inline void  set_float(float *to, float x) { *to = x; }
static inline void  set_float(bf16 *to, float x) { *to = __float2bfloat16(x); }
static inline void  set_float(half *to, float x) { *to = __float2half(x); }

/* An array in device memory. */
template <typename T> struct OnDevice {
    T     *p;
    size_t n;
    explicit OnDevice(size_t n) : n(n) { CUDA_CHECK(cudaMalloc((void **)&p, n * sizeof(T))); }
    explicit OnDevice(const std::vector<T> &v) : OnDevice(v.size()) {
        CUDA_CHECK(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    OnDevice(const OnDevice &) = delete;
    ~OnDevice() { CUDA_CHECK(cudaFree(p)); }
    std::vector<T> host() const {
        std::vector<T> v(n);
        CUDA_CHECK(cudaStreamSynchronize(stream_queue(&stream)));
        CUDA_CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

void managed_case();
void graph_case();
void capture_rules();
void edges_case();
void pinned_case();
void launched_graph_case();
void counted_case();
void nccl_beside_case();
void nccl_abort_case();
void calibrate();
