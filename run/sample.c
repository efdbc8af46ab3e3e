/* sample.c - see sample.h. There is no key-value cache: each token costs one forward pass over the window. The window
 * is padded to a multiple of SAMPLE_STEP tokens, so that the matrix products meet few shapes; causal attention ignores
 * the padding. */
#include "run/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device.h"
#include "core/memory_file.h"
#include "core/rng.h"

/* --- one token ---------------------------------------------------------------------------------------------------- */

/* Floats as unsigned numbers in the same order; NaN is the least. */
static uint32_t order_of(float x) {
    uint32_t u;
    if (isnan(x)) return 0;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The order of the k-th largest logit: the greatest value that at least k logits reach, found bit by bit. */
static uint32_t kth_largest(const float *logits, int64_t vocab, int64_t k) {
    uint32_t least = 0;
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t candidate = least | 1u << bit;
        int64_t  reach = 0;
        for (int64_t v = 0; v < vocab; v++) reach += order_of(logits[v]) >= candidate;
        if (reach >= k) least = candidate;
    }
    return least > 0 ? least : 1; /* k may reach down to the NaNs: they stay out */
}

int32_t sample_token(const float *logits, int64_t vocab, double temperature, int64_t top_k, double u) {
    int64_t best = 0;
    for (int64_t v = 1; v < vocab; v++)
        if (order_of(logits[v]) > order_of(logits[best])) best = v;
    if (temperature <= 0 || !isfinite(logits[best])) return (int32_t)best;

    uint32_t least = top_k > 0 && top_k < vocab ? kth_largest(logits, vocab, top_k) : 1;
    double   total = 0, reached = 0;
    for (int64_t v = 0; v < vocab; v++)
        if (order_of(logits[v]) >= least) total += exp(((double)logits[v] - (double)logits[best]) / temperature);
    int64_t drawn = best; /* stays only if rounding leaves u*total beyond the sum */
    for (int64_t v = 0; v < vocab; v++) {
        if (order_of(logits[v]) < least) continue;
        reached += exp(((double)logits[v] - (double)logits[best]) / temperature);
        drawn = v;
        if (reached > u * total) break;
    }
    return (int32_t)drawn;
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 sequence at s that a terminal can show, 0 if there is none. */
static int printable_bytes(const unsigned char *s, size_t left) {
    int n = *s < 0x80 ? 1 : *s >= 0xc2 && *s < 0xe0 ? 2 : *s >= 0xe0 && *s < 0xf0 ? 3 : *s >= 0xf0 && *s < 0xf5 ? 4 : 0;
    if (n == 1) return (*s >= 0x20 && *s != 0x7f) || *s == '\n' || *s == '\t';
    if ((size_t)n > left) return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    int surrogate = *s == 0xed && s[1] >= 0xa0, overlong = (*s == 0xe0 && s[1] < 0xa0) || (*s == 0xf0 && s[1] < 0x90);
    int control = *s == 0xc2 && s[1] < 0xa0; /* U+0080..U+009F steer terminals too */
    return surrogate || overlong || control || (*s == 0xf4 && s[1] >= 0x90) ? 0 : n;
}

/* The ids as text; unprintable bytes become U+FFFD. */
static char *printable(const Tokenizer *tokenizer, const int32_t *ids, int64_t count) {
    char  *raw = NULL;
    size_t bytes = 0, out = 0;
    FILE  *file = memory_file_open(&raw, &bytes);
    for (int64_t i = 0; file && i < count; i++) {
        if (tokenizer->kind == TOKENIZER_IDS && i > 0) fputc(' ', file);
        tokenizer_decode(tokenizer, ids[i], file);
    }
    char *text = file && fclose(file) == 0 ? malloc(3 * bytes + 1) : NULL;
    if (!text) fail(EXIT_MEMORY, "no memory for a sample of %lld tokens", (long long)count);
    for (size_t at = 0; at < bytes;) {
        int n = printable_bytes((unsigned char *)raw + at, bytes - at);
        memcpy(text + out, n ? raw + at : "\xef\xbf\xbd", n ? (size_t)n : 3);
        out += n ? (size_t)n : 3;
        at += n ? (size_t)n : 1;
    }
    text[out] = 0;
    free(raw);
    return text;
}

Tokenizer sample_tokenizer(const Config *c) {
    Tokenizer t = tokenizer_of_data(c->data.tokenizer, c->data.train.item[0], c->model.shape.vocab_size);
    if (t.kind == TOKENIZER_IDS && c->sample.every > 0 && c->sample.prompt[0])
        fail(EXIT_CONFIG,
             "sample.prompt is text, and model.vocab_size = %lld has no tokenizer here (data.tokenizer): leave the prompt empty",
             (long long)c->model.shape.vocab_size);
    return t;
}

/* Writes the prompt's ids, or the one start token of an empty prompt, into ids; returns their number. */
static int64_t start_ids(const Tokenizer *tokenizer, const char *prompt, int32_t *ids) {
    if (*prompt) {
        int64_t count = tokenizer_encode(tokenizer, prompt, strlen(prompt), ids);
        if (count < 0)
            fail(EXIT_CONFIG,
                 "a prompt needs a tokenizer that takes text, and this model has token ids only: leave the prompt empty");
        if (count > 0) return count;
    }
    ids[0] = tokenizer_start(tokenizer);
    return 1;
}

/* Logits of the token after ids[0, count), count <= the model's positions. window: twice so many. */
static void next_logits(Pipeline *p, Stream *s, int32_t *window, Tensor on_device, const int32_t *ids, int64_t count,
                        float *logits) {
    const Gpt  *g = p->gpt;
    ContextPart part = context_part(g->context);
    int64_t     most = part.ranks * g->T, step = gpt_sample_step(g), T = (count + step - 1) / step * step;
    if (T > most) T = most;
    memset(window, 0, sizeof *window * (size_t)T);
    memcpy(window, ids, sizeof *window * (size_t)count);
    context_take(window + most, window, part, T / part.ranks);
    Tensor tokens = tensor_2d(on_device.data, I32, 1, T / part.ranks);
    device_from_host(s, tokens, window + most);
    Batch  batch = {tokens, tokens}; /* neither looks at the targets */
    pipeline_forward(p, s, batch);
    pipeline_logits(p, s, batch, count - 1, logits);
}

char *sample_text(Pipeline *p, Stream *s, const Tokenizer *tokenizer, SamplePlan plan) {
    const Gpt *g = p->gpt;
    int64_t  most = context_part(g->context).ranks * g->T;
    size_t   window_bytes = 2 * sizeof(int32_t) * (size_t)most;
    int32_t   *ids = malloc(sizeof *ids * (tokenizer_most(tokenizer, strlen(plan.prompt)) + 1 + (size_t)plan.tokens)),
            *window = malloc(window_bytes);
    float   *logits = malloc(sizeof *logits * (size_t)g->shape.vocab_size);
    if (!ids || !window || !logits) fail(EXIT_MEMORY, "no memory for a sample of %lld tokens", (long long)plan.tokens);
    CHECK(plan.window.type == I32 && tensor_elems(plan.window) >= g->T, "a window of %lld tokens",
          (long long)tensor_elems(plan.window));
    int64_t count = start_ids(tokenizer, plan.prompt, ids), skip = *plan.prompt ? 0 : 1;
    int64_t end = count + plan.tokens, from = 0; /* the window is ids[from, count) */

    int     left_off = 0;
    while (count < end && !left_off) {
        while (count - from > most) from += most > 1 ? most / 2 : 1;
        watchdog_tick(plan.watchdog, "a sample");
        next_logits(p, s, window, plan.window, ids + from, count - from, logits);
        double u = rng_uniform(plan.seed, RNG_SAMPLE, (uint64_t)count);
        ids[count++] = sample_token(logits, g->shape.vocab_size, plan.temperature, plan.top_k, u);
        left_off = count < end && plan.stop && plan.stop(plan.ctx);
    }
    char *text = left_off ? NULL : printable(tokenizer, ids + skip, count - skip);
    free(logits);
    free(window);
    free(ids);
    return text;
}
