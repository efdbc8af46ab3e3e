/* adamw.cu - CUDA side of adamw_update in layers.h: one pass over the memory, each element on its own, many spans in a
 * launch. Products and sums are written as fused multiply-adds, so that the compiler has no choice and any cut of the
 * tensor into spans gives the same bits. */
#include "layers/adamw_factors.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/pieces.cuh"

enum { THREADS = 256, MOST_PIECES = 60 };

/* One span (range of parameters) that a launch updates, with the addresses of its tensors. */
template <typename T> struct Piece {
    float       *master, *m, *v;
    T           *working;
    const float *grad;
    int64_t      n;
    SpanFactors  own;
    unsigned     first_unit;
};

/* Updates the parameters of all pieces. Each thread updates W elements of its block's piece, with four loads in flight
 * at once. grid the sum of ceil(n / (THREADS W)), no shared memory. Bound by memory: 28 bytes an element, 30 with a
 * 16-bit working copy. */
template <typename T, int W>
KERNEL adamw_kernel(const __grid_constant__ Pieces<Piece<T>, MOST_PIECES> all, Factors f) {
    await_kernels();
    const Piece<T> &k = all.piece[piece_of(all, blockIdx.x)];
    int64_t         i = ((int64_t)(blockIdx.x - k.first_unit) * THREADS + threadIdx.x) * W;
    if (i >= k.n) return;
    Pack<float, W> p4 = pack_load_part<float, W, ONCE>(k.master + i, k.n - i),
                   m4 = pack_load_part<float, W, ONCE>(k.m + i, k.n - i);
    Pack<float, W> v4 = pack_load_part<float, W, ONCE>(k.v + i, k.n - i),
                   g4 = pack_load_part<float, W, ONCE>(k.grad + i, k.n - i);
    for (int j = 0; j < W; j++) {
        float &p = p4.v[j], &m = m4.v[j], &v = v4.v[j];
        float  g = g4.v[j] * f.grad_scale;
        m = fmaf(f.beta1, m, f.one_minus_beta1 * g);
        v = fmaf(f.beta2, v, f.one_minus_beta2 * (g * g));
        float step = fmaf(k.own.decay, p, m * f.m_correction / (sqrtf(v * f.v_correction) + f.eps));
        p = fmaf(-k.own.learning_rate, step, p);
    }
    pack_store_part<ONCE>(k.master + i, p4, k.n - i);
    pack_store_part<ONCE>(k.m + i, m4, k.n - i);
    pack_store_part<ONCE>(k.v + i, v4, k.n - i);
    if constexpr (!std::is_same_v<T, float>) pack_store_part(k.working + i, pack_from_f32<T>(p4), k.n - i);
}

static bool piece_fits(const OptimizerSpan &p) {
    return packs_fit(PACK_BYTES, {p.master.data, p.m.data, p.v.data, p.working.data, p.grad.data});
}

/* Updates the first spans (ranges of parameters) of the list, as many as fit into one launch. Either all spans of a
 * launch are aligned for vector accesses, or none is. Returns the number of spans updated. */
template <typename T, int W>
static int update_some(Stream *s, const OptimizerSpan *span, int spans, Factors f, OptimizerStep h) {
    Pieces<Piece<T>, MOST_PIECES> all = {};
    int  taken = 0;
    bool fit = piece_fits(span[0]);
    for (; taken < spans && all.count < MOST_PIECES && piece_fits(span[taken]) == fit; taken++) {
        const OptimizerSpan &p = span[taken];
        int64_t          n = p.master.dim[0];
        if (n == 0) continue;
        all.piece[all.count++] = {ptr<float>(p.master), ptr<float>(p.m), ptr<float>(p.v), ptr<T>(p.working),
                                  ptr<float>(p.grad), n, adamw_span_factors(&p, h), all.units};
        all.units += (unsigned)blocks_for(n, THREADS * W);
    }
    if (all.units > 0) LAUNCH_EARLY((adamw_kernel<T, W>), all.units, THREADS, 0, s, all, f);
    return taken;
}

void adamw_update(Stream *s, const OptimizerSpan *span, int spans, OptimizerStep h, float grad_scale) {
    if (update_contract(s, "adamw_update", span, spans, h, 2, 16.0)) return;
    Factors f = adamw_factors(h, grad_scale);
    for (int done = 0; done < spans;) {
        const OptimizerSpan *rest = span + done;
        CHECK(rest->working.type == span->working.type, "spans of %s and %s", dtype_name(span->working.type),
              dtype_name(rest->working.type));
        DISPATCH_ACT(rest->working.type, T, DISPATCH_PACK(float, piece_fits(*rest), W,
            (done += update_some<T, W>(s, rest, spans - done, f, h))));
    }
}
