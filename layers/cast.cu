/* cast.cu - CUDA side of cast_forward in layers.h: a copy that rounds to nearest even where it narrows. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256, PACKS = 4 };

template <typename To, typename From> DEVICE To cast(From x) {
    if constexpr (std::is_same<To, From>::value) return x;
    else return from_f32<To>(to_f32(x));
}

/* Thread: PACKS packs of 16 bytes on the wider side. grid ceil(n / (THREADS PACKS W)), no shared memory. Bound: its
 * traffic. */
template <typename To, typename From, int W> KERNEL cast_kernel(To *y, const From *x, int64_t n) {
    await_kernels();
    Pack<From, W> in[PACKS];
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i < n) in[k] = pack_load_part<From, W>(x + i, n - i);
    }
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i >= n) continue;
        Pack<To, W> out;
        for (int j = 0; j < W; j++) out.v[j] = cast<To>(in[k].v[j]);
        pack_store_part(y + i, out, n - i);
    }
}

void cast_forward(Stream *s, Tensor y, Tensor x) {
    int64_t n = x.dim[0];
    if (cast_forward_contract(s, y, x) || n == 0) return;
    bool fit = packs_fit(PACK_BYTES, {y.data, x.data});
    DISPATCH_ACT(y.type, To, DISPATCH_ACT(x.type, From, {
        typedef typename std::conditional<sizeof(To) >= sizeof(From), To, From>::type Wider;
        DISPATCH_PACK(Wider, fit, W,
            LAUNCH_EARLY((cast_kernel<To, From, W>), blocks_for(n, THREADS * PACKS * W), THREADS, 0, s, ptr<To>(y), ptr<From>(x), n));
    }));
}
