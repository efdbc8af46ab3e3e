/* sample.c - see sample.h.
 *
 * The model keeps the keys and values of the tokens so far in its own activations (gpt_keeps_past). One forward over
 * the window fills them. Then a token needs only the rows of one token. A model that cannot keep them computes the
 * window for each token.
 *
 * A window is padded to a multiple of gpt_sample_step() tokens, so that matrix products have few shapes. Causal
 * attention ignores the padding, and later tokens overwrite it.
 */
#include "run/text/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/device.h"
#include "core/io.h"
#include "core/rng.h"
#include "core/error.h"
#include "data/dataset.h"
#include "run/text/text_stream.h"

/* --- prompts ------------------------------------------------------------------------------------------------------ */

int sample_has_no_data(const Config *c) { return c->data.train.count == 1 && strcmp(c->data.train.item[0], "-") == 0; }

Tokenizer sample_tokenizer(const Config *c) {
    IoPaths files = {NULL, 0};
    int64_t vocab_size = c->model.shape.vocab_size, most = c->model.init_from[0] ? BPE_MOST_IDS : vocab_size;
    for (int i = 0; i < c->data.train.count; i++) dataset_files(c->data.train.item[i], &files);
    for (int i = 0; i < c->data.val.count; i++) dataset_files(c->data.val.item[i], &files);
    Tokenizer t = sample_has_no_data(c) ? tokenizer_create(c->data.tokenizer, most)
                  : files.count ? tokenizer_of_data(c->data.tokenizer, (const char *const *)files.path, (int64_t)files.count, most)
                                : tokenizer_of_data(c->data.tokenizer, c->data.train.item, 1, most); /* no data yet */
    io_paths_free(&files);
    if (t.kind == TOKENIZER_IDS) t = tokenizer_create("", vocab_size);
    t.vocab_size =
        vocab_size; /* a foreign model may have fewer ids than its tokenizer; prompts with the others are refused */
    if (t.kind == TOKENIZER_IDS && c->sample.every > 0 && c->sample.prompt[0] && !sample_has_no_data(c))
        fail(EXIT_CONFIG,
             "sample.prompt is text, and model.vocab_size = %lld has no tokenizer here (data.tokenizer): leave the prompt empty",
             (long long)c->model.shape.vocab_size);
    return t;
}

int32_t sample_documents(const Config *c, const Tokenizer *t) {
    int32_t end = tokenizer_end_of_text(t);
    if (c->data.document_mask == DOCUMENT_MASK_ASKED && end < 0)
        fail(EXIT_CONFIG,
             "data.document_mask = true: documents begin with an end-of-text token, which %s: leave the key out, or name a tokenizer "
             "that has one as data.tokenizer",
             t->kind == TOKENIZER_BYTES ? "bytes have not" : t->kind == TOKENIZER_IDS ? "ids without a tokenizer have not"
                                                                                    : "this tokenizer has not");
    return c->data.document_mask ? end : -1;
}

Prompt prompt_create(const Tokenizer *tokenizer, const char *text, size_t bytes, int32_t begin) {
    Prompt p = {.id = xmalloc(sizeof *p.id * (tokenizer_most(tokenizer, bytes) + BPE_MOST_BEGIN), "the tokens of a prompt")};
    p.hidden = tokenizer_begin(tokenizer, p.id);
    int64_t own = bytes > 0 ? tokenizer_encode(tokenizer, text, bytes, p.id + p.hidden) : 0;
    p.count = p.hidden + own;
    if (own < 0)
        fail(EXIT_CONFIG,
             "a prompt needs a tokenizer that takes text, and this model has token ids only: leave the prompt empty");
    int64_t begins = p.hidden;
    if (p.count == 0) p.id[p.count++] = begin, p.hidden = 1;
    for (int64_t i = 0; i < p.count; i++)
        if (p.id[i] >= tokenizer->vocab_size)
            fail(EXIT_CONFIG, "%s token %d, and the vocabulary of this model ends at %lld, before that of its tokenizer: %s",
                 i >= p.hidden ? "the prompt holds" : begins ? "each text begins with" : "an empty prompt begins after",
                 p.id[i], (long long)tokenizer->vocab_size - 1,
                 i >= p.hidden ? "leave out what it stands for"
                 : begins      ? "\"add_bos_token\": false in the tokenizer_config.json beside tokenizer.json leaves it out"
                               : "give a prompt");
    return p;
}

void prompt_free(Prompt *p) {
    free(p->id);
    p->id = NULL;
}

/* Returns the token at which the window over `count` tokens begins. Before it began at `from`. */
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
    int64_t   from;       /* the window begins at ids[from]                    */
    int       is_kept;    /* keys and values are kept, but for the newest token */
    int32_t  *window;     /* owned [2 positions]                               */
    float    *logits;     /* owned [vocab]                                     */
    double   *weight;     /* owned [vocab]: scratch for draw_token             */
} Writer;

static Writer writer_create(Pipeline *p, Stream *s, Tensor on_device) {
    size_t vocab = (size_t)p->gpt->shape.vocab_size;
    Writer w = {.p = p, .s = s, .on_device = on_device, .positions = context_part(p->gpt->context).ranks * p->gpt->T};
    CHECK(on_device.type == I32 && tensor_elems(on_device) >= p->gpt->T, "a window of %lld tokens",
          (long long)tensor_elems(on_device));
    w.window = xmalloc(2 * sizeof *w.window * (size_t)w.positions, "the logits of a token");
    w.logits = xmalloc(sizeof *w.logits * vocab, "the logits of a token");
    w.weight = xmalloc(sizeof *w.weight * vocab, "the logits of a token");
    return w;
}

static void writer_destroy(Writer *w) {
    free(w->window);
    free(w->logits);
    free(w->weight);
}

/* Computes the logits after ids[0, count) of the window, of which only the last is new. Computes the last `rows` rows,
 * the fewest that the ranks can share. */
static void logits_of_token(Writer *w, const int32_t *ids, int64_t count, int64_t rows) {
    Tensor tokens = tensor_2d(w->on_device.data, I32, 1, rows);
    Batch  batch = {tokens, tokens, tensor_none()}; /* the targets are not read */
    device_from_host(w->s, tokens, ids + count - rows);
    pipeline_token_logits(w->p, w->s, batch, count - rows, w->logits);
}

/* Computes the logits after ids[0, count) of the window from the whole window. */
static void logits_of_window(Writer *w, const int32_t *ids, int64_t count) {
    const Gpt  *g = w->p->gpt;
    ContextPart part = context_part(g->context);
    int64_t     step = gpt_sample_step(g), T = (count + step - 1) / step * step;
    if (T > w->positions) T = w->positions;
    memset(w->window, 0, sizeof *w->window * (size_t)T);
    memcpy(w->window, ids, sizeof *w->window * (size_t)count);
    context_take(w->window + w->positions, w->window, part, T / part.ranks);
    Tensor tokens = tensor_2d(w->on_device.data, I32, 1, T / part.ranks);
    Batch  batch = {tokens, tokens, tensor_none()};
    device_from_host(w->s, tokens, w->window + w->positions);
    pipeline_forward(w->p, w->s, batch);
    pipeline_logits(w->p, w->s, batch, count - 1, w->logits);
}

/* Computes the logits of the token after ids[0, count), and moves the window if it is full. */
static void next_logits(Writer *w, const int32_t *ids, int64_t count) {
    const Gpt *g = w->p->gpt;
    int64_t    rows = gpt_token_rows(g), from = window_from(w->from, count, w->positions), length = count - from;
    if (w->is_kept && from == w->from && length > rows) logits_of_token(w, ids + from, length, rows);
    else logits_of_window(w, ids + from, length);
    w->from = from, w->is_kept = gpt_keeps_past(g);
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Adds the text of one id. */
static void add_id(TextStream *text, const Tokenizer *tokenizer, int32_t id, int is_first) {
    char  *bytes = NULL;
    size_t count = 0;
    FILE  *file = memory_file_open(&bytes, &count);
    if (file && tokenizer->kind == TOKENIZER_IDS && !is_first) fputc(' ', file);
    if (file) tokenizer_decode(tokenizer, id, file);
    if (!file || fclose(file) != 0) fail(EXIT_MEMORY, "no memory for the text of a token");
    text_stream_add(text, bytes, count);
    free(bytes);
}

static int is_end(const SamplePlan *plan, int32_t id) {
    for (int i = 0; i < plan->ends; i++)
        if (plan->end[i] == id) return 1;
    return 0;
}

Sampled sample_stream(Pipeline *p, Stream *s, const Tokenizer *tokenizer, const SamplePlan *plan) {
    const Prompt *prompt = &plan->prompt;
    Sampled    done = {0};
    Writer     w = writer_create(p, s, plan->window);
    TextStream text = text_stream_create(plan->put, plan->ctx);
    int64_t    count = prompt->count, end = count + plan->tokens, first = prompt->hidden;
    int32_t   *ids = xmalloc(sizeof *ids * (size_t)end, "a sample");
    double     began_ms = clock_ms();
    memcpy(ids, prompt->id, sizeof *ids * (size_t)count);
    for (int64_t i = first; i < count; i++) add_id(&text, tokenizer, ids[i], i == first);
    text.stop = plan->stop, text.stops = plan->stops;
    while (count < end && !text.is_over && !done.left_off) {
        watchdog_tick(plan->watchdog, "a sample");
        next_logits(&w, ids, count);
        double u = rng_uniform(plan->seed, RNG_SAMPLE, (uint64_t)count);
        ids[count] = draw_token(w.logits, p->gpt->shape.vocab_size, plan->rule, u, w.weight);
        done.tokens++;
        if (is_end(plan, ids[count])) break;
        add_id(&text, tokenizer, ids[count], count == first);
        done.left_off = ++count < end && plan->leave && plan->leave(plan->ctx);
    }
    text_stream_end(&text);
    done.ms = clock_ms() - began_ms;
    free(ids);
    writer_destroy(&w);
    return done;
}

/* --- in training -------------------------------------------------------------------------------------------------- */

typedef struct { FILE *file; int (*leave)(void *ctx); void *ctx; } Page;

static void put_on_page(void *page, const char *text, size_t bytes) { fwrite(text, 1, bytes, ((Page *)page)->file); }
static int  leave_page(void *page) { return ((Page *)page)->leave(((Page *)page)->ctx); }

char *sample_of_run(const Config *c, Pipeline *p, Stream *s, const Tokenizer *tokenizer, int64_t step, Tensor window,
                    Watchdog *watchdog, int (*leave)(void *ctx), void *ctx) {
    char      *text = NULL;
    size_t     bytes = 0;
    Page       page = {memory_file_open(&text, &bytes), leave, ctx};
    SamplePlan plan = {.prompt = prompt_create(tokenizer, c->sample.prompt, strlen(c->sample.prompt), tokenizer_start(tokenizer)),
                       .tokens = c->sample.tokens,
                       .rule = {c->sample.temperature, c->sample.top_k, c->sample.top_p, c->sample.min_p},
                       .seed = (uint64_t)(c->run.seed + step),
                       .window = window,
                       .watchdog = watchdog,
                       .leave = leave_page,
                       .put = put_on_page,
                       .ctx = &page};
    if (!page.file) fail(EXIT_MEMORY, "no memory for a sample of %lld tokens", (long long)plan.tokens);
    Sampled done = sample_stream(p, s, tokenizer, &plan);
    prompt_free(&plan.prompt);
    if (fclose(page.file) != 0) fail(EXIT_MEMORY, "no memory for a sample of %lld tokens", (long long)plan.tokens);
    if (done.left_off) free(text), text = NULL;
    return text;
}
