/* sample.h - draws text from a model, token by token, and passes it on. Its random numbers come from the counter-based
 * generator, so equal seeds give equal texts.
 */
#ifndef TRAIN_GPT_RUN_TEXT_SAMPLE_H
#define TRAIN_GPT_RUN_TEXT_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer.h"
#include "model/pipeline.h"
#include "run/config/config.h"
#include "run/guard/watchdog.h"

/* --- one token: temperature, top-k, top-p and min-p, in this order ------------------------------------------------ */

/* Rules that limit the tokens to draw from. The probabilities for a rule are those of the logits divided by the
 * temperature, over the tokens that the rules before it kept. Equal logits are kept or dropped together. NaN is always
 * dropped. */
typedef struct {
    double  temperature; /* 0: always the likeliest token, the first if several are equal             */
    int64_t top_k;       /* keeps the k likeliest tokens, and those as likely as the k-th; 0: all     */
    double  top_p;       /* keeps the fewest likeliest tokens whose probabilities sum to p; 1: all    */
    double  min_p;       /* keeps tokens with at least min_p times the largest probability; 0: all    */
} DrawRule;

/* Draws one token from logits [vocab] for a uniform u in [0,1). weight [vocab]: scratch. */
int32_t draw_token(const float *logits, int64_t vocab, DrawRule rule, double u, double *weight);

/* --- text for a terminal or a pipe, from the bytes of one token after the other ----------------------------------- */

/* A stream that passes text on in chunks. It begins as {.put = ..., .ctx = ...}. A chunk is passed on as soon as it is
 * certain that:
 *   The chunk is whole UTF-8 sequences. Other bytes, and control characters that could steer a terminal, become U+FFFD.
 *   The chunk has no part of a stop text, because the text ends before the first stop text. */
typedef struct {
    void (*put)(void *ctx, const char *text, size_t bytes); /* receives the next chunk of the text */
    void  *ctx;
    const char *const *stop; /* borrowed [stops]: texts that end the stream; none is empty */
    int    stops;
    int    is_over;          /* 1 when a stop text was found */
    char  *held;             /* owned [count]: bytes that were not passed on yet */
    size_t count, capacity;
    size_t certain;          /* bytes at the beginning of `held` in which no stop text begins. They are held because
                              * they begin a UTF-8 sequence */
} TextStream;

/* Adds bytes to the text. Stop texts that are set later do not apply to them, so a prompt is added before t->stop is
 * set. */
void       text_stream_add(TextStream *t, const char *bytes, size_t count);
/* Passes on the bytes that are held, and frees the memory. */
void       text_stream_end(TextStream *t);

/* --- the tokenizer of a run --------------------------------------------------------------------------------------- */

/* Returns 1 if data.train is "-". The config is then checked without its data, and no tokenizer is looked for in the
 * folder of the data. */
int run_has_no_data(const Config *config);
/* Returns the tokenizer of a run: data.tokenizer, else the one in the folder of data.train and data.val, else bytes or
 * ids only. Exit 65 if the folder of some files has another tokenizer. Exit 64 if sample.prompt is text and tokens are
 * ids only. */
Tokenizer run_tokenizer(const Config *config);
/* Returns the id at which data.document_mask divides documents, or -1 without a mask. Exit 64 if the mask is on and the
 * vocabulary has no end of text. */
int32_t run_documents(const Config *config, const Tokenizer *tokenizer);

/* --- a sample ----------------------------------------------------------------------------------------------------- */

/* Ids of a prompt, including those that the tokenizer puts before each text. An empty prompt has one id, that of
 * tokenizer_start. */
typedef struct {
    int32_t *id;        /* owned [count]: the token ids */
    int64_t  count;
    int64_t  hidden;    /* number of ids at the beginning that are not printed */
} Prompt;

/* Encodes a prompt. An empty one is the token `begin`, unless the tokenizer puts tokens before each text.
 * Exit 64 if the tokenizer reads no text, or if the model lacks one of the ids. */
Prompt prompt_create(const Tokenizer *tokenizer, const char *text, size_t bytes, int32_t begin);
void   prompt_free(Prompt *prompt);
/* Returns the number of tokens at the end of the prompt that a model with `positions` positions uses. */
int64_t prompt_seen(const Prompt *prompt, int64_t positions);

typedef struct {
    Prompt      prompt;        /* borrowed */
    int64_t     tokens;        /* number of tokens to draw */
    DrawRule    rule;
    uint64_t    seed;
    const int32_t *end;        /* borrowed [ends]: tokens that end the text and are not printed           */
    int         ends;
    const char *const *stop;   /* borrowed [stops]: stop texts; the text ends before the first of them */
    int         stops;
    Tensor      window;        /* I32, at least g->T elements, on the device: inputs of the model; borrowed */
    Watchdog   *watchdog;      /* ticked at every token; NULL: none                                   */
    int       (*leave)(void *ctx); /* called after every token; 1 ends the text; NULL: never          */
    void       *leave_ctx;
    void      (*put)(void *ctx, const char *text, size_t bytes); /* receives printable text as soon as it is certain */
    void       *ctx;           /* argument of put */
} SamplePlan;

typedef struct {
    int64_t tokens;   /* number of tokens drawn */
    double  ms;       /* milliseconds that the whole text took */
    int     left_off; /* 1 if leave() ended the text */
} Sampled;

/* Passes prompt and continuation to plan->put as printable text, or as ids if the tokenizer has no text. Uses the
 * activation memory of the model, of at most g->T positions. When that window is full, it slides by half. All ranks of
 * the grid call it together, and all get the text. */
Sampled sample_stream(Pipeline *p, Stream *s, const Tokenizer *tokenizer, const SamplePlan *plan);

/* Returns the sample of a training run after a step, by the keys sample.*, malloc'ed. Returns NULL if leave(ctx) ended
 * it. */
char *sample_of_run(const Config *config, Pipeline *p, Stream *s, const Tokenizer *tokenizer, int64_t step,
                    Tensor window, Watchdog *watchdog, int (*leave)(void *ctx), void *ctx);

#endif
