/* tensor_map.cuh - TMA's description of a matrix in global memory, made on the host.
 *
 * The encoder is a function of the driver. It is looked up through the runtime, never linked, because the program must
 * start on machines without a driver.
 */
#ifndef TRAIN_GPT_CORE_TENSOR_MAP_CUH
#define TRAIN_GPT_CORE_TENSOR_MAP_CUH

#include <cuda_fp8.h>

#include "core/ptx.cuh"

/* TMA's element type for T: bf16, half, float, or 8 bits. TMA copies 8-bit elements without interpreting them. */
#ifdef CUDA_EMU
template <typename T> constexpr EmuElement element_type() {
    return std::is_same<T, bf16>::value ? ELEMENT_BF16
         : std::is_same<T, half>::value ? ELEMENT_F16
         : sizeof(T) == 4               ? ELEMENT_F32 : ELEMENT_8_BIT;
}
#else
template <typename T> constexpr CUtensorMapDataType element_type() {
    return std::is_same<T, bf16>::value ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
         : std::is_same<T, half>::value ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
         : sizeof(T) == 4               ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}
#endif

#ifndef CUDA_EMU
typedef decltype(&cuTensorMapEncodeTiled) TensorMapEncode;
static TensorMapEncode tensor_map_encoder_find(void) {
    void                            *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION < 12050
    CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found));
#else
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
#endif
    CHECK(found == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return (TensorMapEncode)entry;
}
#endif

/* Returns the map of a row-major matrix [rows, columns] in tiles [box_rows, box_columns], with the 128-byte swizzle.
 * Rows are ld elements apart (0 means columns), a multiple of 16 bytes. A row of a tile has at most 128 bytes, a tile
 * at most 256 rows, and the matrix is 16-byte aligned. */
template <typename T>
static TensorMap tensor_map_2d(const T *matrix, int64_t rows, int64_t columns, int box_rows, int box_columns, int64_t ld = 0) {
    static_assert(std::is_same<T, float>::value || std::is_same<T, bf16>::value || std::is_same<T, half>::value || sizeof(T) == 1,
                  "fp32, bf16, fp16 or 8 bits");
    if (ld == 0) ld = columns;
    CHECK(ld >= columns && ld * sizeof(T) % 16 == 0 && box_columns * sizeof(T) <= 128 && box_rows <= 256 && (uintptr_t)matrix % 16 == 0,
          "matrix %p of %lld columns, %lld apart, tiles of %d x %d", (const void *)matrix, (long long)columns, (long long)ld, box_rows,
          box_columns);
    TensorMap map;
#ifdef CUDA_EMU
    map = TensorMap{(void *)matrix, (uint64_t)columns, (uint64_t)rows, (uint64_t)ld * sizeof(T), (uint32_t)box_columns,
                    (uint32_t)box_rows, sizeof(T), 128, element_type<T>()};
#else
    static const TensorMapEncode encode = tensor_map_encoder_find(); /* looked up once: products make maps at each launch */
    cuuint64_t          size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch_bytes[1] = {(cuuint64_t)ld * sizeof(T)};
    cuuint32_t          box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, step[2] = {1, 1};
    CUresult            result = encode(&map, element_type<T>(), 2, (void *)matrix, size, pitch_bytes, box, step,
                                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error %d", (int)result);
#endif
    return map;
}

#endif
