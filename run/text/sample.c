/* sample.c - draws text from a model, token by token: see sample.h.
 *
 * The model keeps the keys and values of the tokens so far in its own activations (gpt_keeps_past). One forward over
 * the window fills them. Then a token needs only the rows of one token. A model that cannot keep them computes the
 * window for each token.
 *
 * A window is padded to a multiple of gpt_sample_step() tokens, so that matrix products have few shapes. Causal
 * attention ignores the padding, and later tokens overwrite it.
 */
#include "run/text/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/device.h"
#include "core/format.h"
#include "core/io.h"
#include "core/rng.h"
#include "core/error.h"
#include "data/dataset.h"

/* --- one token ---------------------------------------------------------------------------------------------------- */

/* Each rule (top-k, top-p) gives the least logit that is kept. Floats are mapped to unsigned numbers in the same order,
 * and the least one is found bit by bit, so that nothing is sorted. */

/* Maps floats to unsigned numbers in the same order. NaN is the least. */
static uint32_t order_of(float x) {
    uint32_t u;
    if (isnan(x)) return 0;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Returns the summed weight of the logits whose order (order_of) is at least `least`. weight NULL: each counts 1. */
static double weight_from(const float *logits, int64_t vocab, const double *weight, uint32_t least) {
    double sum = 0;
    for (int64_t v = 0; v < vocab; v++)
        if (order_of(logits[v]) >= least) sum += weight ? weight[v] : 1;
    return sum;
}

/* Returns the greatest order (order_of) such that the logits of at least that order weigh `wanted` or more in sum. Only
 * logits from order `floor` on count. */
static uint32_t order_with(const float *logits, int64_t vocab, const double *weight, uint32_t floor, double wanted) {
    uint32_t least = 0;
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t candidate = least | 1u << bit;
        if (weight_from(logits, vocab, weight, candidate > floor ? candidate : floor) >= wanted) least = candidate;
    }
    return least;
}

int32_t draw_token(const float *logits, int64_t vocab, DrawRule rule, double u, double *weight) {
    int64_t best = 0; /* the likeliest token */
    for (int64_t v = 1; v < vocab; v++)
        if (order_of(logits[v]) > order_of(logits[best])) best = v;
    if (rule.temperature <= 0 || !isfinite(logits[best])) return (int32_t)best;

    for (int64_t v = 0; v < vocab; v++)
        weight[v] = isnan(logits[v]) ? 0 : exp(((double)logits[v] - (double)logits[best]) / rule.temperature);
    uint32_t least = 0; /* least order_of() of the tokens that may be drawn */
    if (rule.top_k > 0 && rule.top_k < vocab) least = order_with(logits, vocab, NULL, 1, (double)rule.top_k);
    if (least == 0) least = 1; /* order_of(NaN) is 0, so tokens with NaN are not drawn even if top_k includes them */
    if (rule.top_p < 1)
        least = order_with(logits, vocab, weight, least, rule.top_p * weight_from(logits, vocab, weight, least));
    if (least > order_of(logits[best])) least = order_of(logits[best]);

    /* the answer if rounding puts u * total beyond the sum of the weights, otherwise replaced below */
    int64_t drawn = best;
    double  total = 0, reached = 0;
    for (int64_t v = 0; v < vocab; v++) {
        /* weights are relative: the likeliest token has weight 1 */
        if (order_of(logits[v]) < least || weight[v] < rule.min_p) weight[v] = 0;
        total += weight[v];
    }
    for (int64_t v = 0; v < vocab; v++) {
        if (weight[v] == 0) continue;
        reached += weight[v];
        drawn = v;
        if (reached > u * total) break;
    }
    return (int32_t)drawn;
}

/* --- printable text ----------------------------------------------------------------------------------------------- */

/* Returns the length of the UTF-8 sequence at s if a terminal can show it, else 0. */
static size_t printable_bytes(const unsigned char *s, size_t left) {
    int n = utf8_bytes((const char *)s, left);
    if (n == 1) return (*s >= 0x20 && *s != 0x7f) || *s == '\n' || *s == '\t';
    int is_control = n == 2 && *s == 0xc2 && s[1] < 0xa0; /* U+0080 to U+009F, which steer terminals too */
    return is_control ? 0 : (size_t)n;
}

/* Returns 1 if the bytes at the end of the text may begin a UTF-8 sequence. */
static int may_grow(const unsigned char *s, size_t left) {
    size_t whole = *s < 0xc2 ? 1 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : *s < 0xf5 ? 4 : 1;
    if (whole <= left) return 0;
    for (size_t i = 1; i < left; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return 1;
}

/* Sets t->certain to the first place at which a stop text begins, and is_over if the stop text is complete there. At
 * the end of the text only a complete one counts. */
static void find_stop(TextStream *t, int is_end) {
    for (; t->certain < t->count; t->certain++)
        for (int i = 0, begins = 0; i <= t->stops; i++) {
            if (i == t->stops && begins) return;
            if (i == t->stops) break;
            size_t length = strlen(t->stop[i]), left = t->count - t->certain;
            if (memcmp(t->held + t->certain, t->stop[i], left < length ? left : length) != 0) continue;
            if (length <= left) {
                t->is_over = 1;
                return;
            }
            begins = !is_end;
        }
}

/* --- the stream --------------------------------------------------------------------------------------------------- */

/* Passes on the bytes that surely come before a stop text. is_end: no more text follows. Otherwise keeps an unfinished
 * UTF-8 sequence at their end. */
static void release(TextStream *t, int is_end) {
    const unsigned char *s = (const unsigned char *)t->held;
    size_t at = 0, good = 0; /* [good, at) is printable and not passed on yet */
    find_stop(t, is_end);
    if (t->is_over) t->count = t->certain;
    while (at < t->certain && (is_end || !may_grow(s + at, t->certain - at))) {
        size_t n = printable_bytes(s + at, t->certain - at);
        at += n;
        if (n > 0) continue;
        if (at > good) t->put(t->ctx, (const char *)s + good, at - good);
        t->put(t->ctx, "\xef\xbf\xbd", 3);
        good = ++at;
    }
    if (at > good) t->put(t->ctx, (const char *)s + good, at - good);
    t->certain -= at, t->count -= at;
    if (t->count > 0) memmove(t->held, t->held + at, t->count);
}

void text_stream_add(TextStream *t, const char *bytes, size_t count) {
    if (t->is_over) return;
    if (t->count + count > t->capacity)
        t->held = xrealloc(t->held, t->capacity = 2 * (t->count + count) + 64, "a part of a text");
    if (count > 0) memcpy(t->held + t->count, bytes, count);
    t->count += count;
    release(t, 0);
}

void text_stream_end(TextStream *t) {
    release(t, 1);
    free(t->held);
    t->held = NULL, t->count = t->capacity = 0;
}

/* --- the tokenizer of a run --------------------------------------------------------------------------------------- */

int run_has_no_data(const Config *c) { return c->data.train.count == 1 && strcmp(c->data.train.item[0], "-") == 0; }

Tokenizer run_tokenizer(const Config *c) {
    IoPaths files = {NULL, 0};
    int64_t vocab_size = c->model.shape.vocab_size, most = c->model.init_from[0] ? BPE_MOST_IDS : vocab_size;
    for (int i = 0; i < c->data.train.count; i++) dataset_files(c->data.train.item[i], &files);
    for (int i = 0; i < c->data.val.count; i++) dataset_files(c->data.val.item[i], &files);
    const char *const *names = files.count ? (const char *const *)files.path : c->data.train.item;
    /* if no file matches data.train yet, the tokenizer is looked for in the folder that the pattern names */
    int64_t            count = files.count ? (int64_t)files.count : 1;
    Tokenizer          t = run_has_no_data(c) ? tokenizer_create(c->data.tokenizer, most)
                                              : tokenizer_of_data(c->data.tokenizer, names, count, most);
    io_paths_free(&files);
    if (t.kind == TOKENIZER_IDS) t = tokenizer_create("", vocab_size);
    /* a foreign model may have fewer ids than its tokenizer; prompts with the missing ids are refused */
    t.vocab_size = vocab_size;
    if (t.kind == TOKENIZER_IDS && c->sample.every > 0 && c->sample.prompt[0] && !run_has_no_data(c))
        fail(EXIT_CONFIG,
             "sample.prompt is text, and no tokenizer for model.vocab_size = %lld is known: name one as "
             "data.tokenizer, or leave sample.prompt empty",
             (long long)c->model.shape.vocab_size);
    return t;
}

int32_t run_documents(const Config *c, const Tokenizer *t) {
    int32_t end = tokenizer_end_of_text(t);
    if (c->data.document_mask == DOCUMENT_MASK_ASKED && end < 0)
        fail(EXIT_CONFIG,
             "data.document_mask = true: documents begin with an end-of-text token, which %s: leave "
             "data.document_mask out, or name a tokenizer with such a token as data.tokenizer",
             t->kind == TOKENIZER_BYTES ? "bytes have not"
             : t->kind == TOKENIZER_IDS ? "ids without a tokenizer have not"
                                        : "this tokenizer has not");
    return c->data.document_mask ? end : -1;
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

Prompt prompt_create(const Tokenizer *tokenizer, const char *text, size_t bytes, int32_t begin) {
    Prompt p = {
        .id = xmalloc(sizeof *p.id * (tokenizer_most(tokenizer, bytes) + BPE_MOST_BEGIN), "the tokens of a prompt")};
    p.hidden = tokenizer_begin(tokenizer, p.id);
    int64_t own = bytes > 0 ? tokenizer_encode(tokenizer, text, bytes, p.id + p.hidden) : 0;
    p.count = p.hidden + own;
    if (own < 0)
        fail(EXIT_CONFIG,
             "a prompt needs a tokenizer, and none is known for this model: name one (tokenizer=FOLDER, in a run "
             "data.tokenizer), or leave the prompt empty");
    int64_t begins = p.hidden;
    if (p.count == 0) p.id[p.count++] = begin, p.hidden = 1;
    for (int64_t i = 0; i < p.count; i++)
        if (p.id[i] >= tokenizer->vocab_size)
            fail(EXIT_CONFIG,
                 "%s token %d, and the vocabulary of this model ends at %lld, before that of its tokenizer: %s",
                 i >= p.hidden ? "the prompt holds"
                 : begins      ? "each text begins with"
                               : "an empty prompt begins after",
                 p.id[i], (long long)tokenizer->vocab_size - 1,
                 i >= p.hidden ? "leave out what it stands for"
                 : begins ? "\"add_bos_token\": false in the tokenizer_config.json beside tokenizer.json leaves it out"
                          : "give a prompt");
    return p;
}

void prompt_free(Prompt *p) {
    free(p->id);
    p->id = NULL;
}

/* Returns the index of the first token of the window: the last tokens of a text of `count` tokens, at most `positions`.
 * from: index at which the previous window began. A full window moves by half. */
static int64_t window_from(int64_t from, int64_t count, int64_t positions) {
    while (count - from > positions) from += positions > 1 ? positions / 2 : 1;
    return from;
}

int64_t prompt_seen(const Prompt *p, int64_t positions) { return p->count - window_from(0, p->count, positions); }

/* --- logits ------------------------------------------------------------------------------------------------------- */

typedef struct {
    Pipeline *p;
    Stream   *s;
    Tensor    on_device;  /* borrowed: inputs of the model                     */
    int64_t   positions;  /* positions of the model, over all context ranks    */
    int64_t   from;       /* index of the window's first token in the ids of the text */
    int       is_kept;    /* 1 if the model keeps keys and values of all tokens but the newest */
    int32_t  *window;     /* owned [2 positions]: ids of the window            */
    float    *logits;     /* owned [vocab]: logits of the next token           */
    double   *weight;     /* owned [vocab]: scratch for draw_token             */
} Writer;

/* Computes the logits of the token after ids[0, count), and moves the window if it is full. If only the last id is new,
 * computes the last `rows` rows, the fewest that the ranks can share. Otherwise runs the model over the whole window,
 * without kept keys and values. */
static void next_logits(Writer *w, const int32_t *ids, int64_t count) {
    const Gpt *g = w->p->gpt;
    int64_t    rows = gpt_token_rows(g), from = window_from(w->from, count, w->positions), length = count - from;
    if (w->is_kept && from == w->from && length > rows) {
        Tensor tokens = tensor_2d(w->on_device.data, I32, 1, rows);
        device_from_host(w->s, tokens, ids + count - rows);
        pipeline_token_logits(w->p, w->s, (Batch){tokens, tokens, tensor_none()}, length - rows, w->logits);
    } else {
        ContextPart part = context_part(g->context);
        int64_t     T = smaller_of(round_up(length, gpt_sample_step(g)), w->positions);
        memset(w->window, 0, sizeof *w->window * (size_t)T);
        memcpy(w->window, ids + from, sizeof *w->window * (size_t)length);
        context_take(w->window + w->positions, w->window, part, T / part.ranks);
        Tensor tokens = tensor_2d(w->on_device.data, I32, 1, T / part.ranks);
        Batch  batch = {tokens, tokens, tensor_none()}; /* no targets are read, so `tokens` is passed for them, too */
        device_from_host(w->s, tokens, w->window + w->positions);
        pipeline_forward(w->p, w->s, batch);
        pipeline_logits(w->p, w->s, batch, length - 1, w->logits);
    }
    w->from = from, w->is_kept = gpt_keeps_past(g);
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Adds the text of one token id to a text. */
static void add_id(TextStream *text, const Tokenizer *tokenizer, int32_t id, int is_first) {
    char  *bytes = NULL;
    size_t count = 0;
    FILE  *file = memory_file_open(&bytes, &count);
    if (tokenizer->kind == TOKENIZER_IDS && !is_first) fputc(' ', file);
    tokenizer_decode(tokenizer, id, file);
    fclose(file);
    text_stream_add(text, bytes, count);
    free(bytes);
}

Sampled sample_stream(Pipeline *p, Stream *s, const Tokenizer *tokenizer, const SamplePlan *plan) {
    const Prompt *prompt = &plan->prompt;
    const Gpt *g = p->gpt;
    size_t     vocab = (size_t)g->shape.vocab_size;
    Sampled    done = {0};
    Writer     w = {.p = p, .s = s, .on_device = plan->window, .positions = context_part(g->context).ranks * g->T};
    TextStream text = {.put = plan->put, .ctx = plan->ctx};
    int64_t    count = prompt->count, end = count + plan->tokens, first = prompt->hidden;
    int32_t   *ids = xmalloc(sizeof *ids * (size_t)end, "a sample");
    double     began_ms = clock_ms();
    CHECK(plan->window.type == I32 && tensor_elems(plan->window) >= g->T, "a window of %lld tokens",
          (long long)tensor_elems(plan->window));
    w.window = xmalloc(2 * sizeof *w.window * (size_t)w.positions, "the logits of a token");
    w.logits = xmalloc(sizeof *w.logits * vocab, "the logits of a token");
    w.weight = xmalloc(sizeof *w.weight * vocab, "the logits of a token");
    memcpy(ids, prompt->id, sizeof *ids * (size_t)count);
    for (int64_t i = first; i < count; i++) add_id(&text, tokenizer, ids[i], i == first);
    text.stop = plan->stop, text.stops = plan->stops;
    while (count < end && !text.is_over && !done.left_off) {
        watchdog_tick(plan->watchdog, "a sample");
        next_logits(&w, ids, count);
        double u = rng_uniform(plan->seed, RNG_SAMPLE, (uint64_t)count);
        ids[count] = draw_token(w.logits, g->shape.vocab_size, plan->rule, u, w.weight);
        done.tokens++;
        int is_end = 0;
        for (int i = 0; i < plan->ends; i++) is_end |= plan->end[i] == ids[count];
        if (is_end) break;
        add_id(&text, tokenizer, ids[count], count == first);
        done.left_off = ++count < end && plan->leave && plan->leave(plan->leave_ctx);
    }
    text_stream_end(&text);
    done.ms = clock_ms() - began_ms;
    free(ids);
    free(w.window), free(w.logits), free(w.weight);
    return done;
}

static void put_in_file(void *file, const char *text, size_t bytes) { fwrite(text, 1, bytes, (FILE *)file); }

char *sample_of_run(const Config *c, Pipeline *p, Stream *s, const Tokenizer *tokenizer, int64_t step, Tensor window,
                    Watchdog *watchdog, int (*leave)(void *ctx), void *ctx) {
    char      *text = NULL;
    size_t     bytes = 0;
    FILE      *file = memory_file_open(&text, &bytes);
    SamplePlan plan = {.prompt = prompt_create(tokenizer, c->sample.prompt, strlen(c->sample.prompt),
                                               tokenizer_start(tokenizer)),
                       .tokens = c->sample.tokens,
                       .rule = {c->sample.temperature, c->sample.top_k, c->sample.top_p, c->sample.min_p},
                       .seed = (uint64_t)(c->run.seed + step),
                       .window = window,
                       .watchdog = watchdog,
                       .leave = leave,
                       .leave_ctx = ctx,
                       .put = put_in_file,
                       .ctx = file};
    Sampled done = sample_stream(p, s, tokenizer, &plan);
    prompt_free(&plan.prompt);
    fclose(file);
    if (done.left_off) free(text), text = NULL;
    return text;
}
