/* adamw.c - CPU side of adamw_update in layers.h: its memory is the host's. */
#include "layers/contracts.h"
#include "layers/layers.h"

void adamw_update(Stream *s, const OptimizerSpan *span, int spans, OptimizerStep h, float grad_scale) {
    if (update_contract(s, "adamw_update", span, spans, h, 2, 16.0)) return;
    for (int i = 0; i < spans; i++) adamw_update_host(span[i], h, grad_scale);
}
