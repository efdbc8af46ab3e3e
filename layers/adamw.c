/* adamw.c - CPU side of adamw_update in layers.h: its memory is the host's. */
#include "layers/contracts.h"
#include "layers/layers.h"

void adamw_update(Stream *s, const AdamWSpan *span, int spans, OptimizerStep h, float grad_scale) {
    if (adamw_contract(s, span, spans, h)) return;
    for (int i = 0; i < spans; i++) adamw_update_host(span[i], h, grad_scale);
}
