/* sample.h - text from a model, token by token, drawn from the counter-based generator, so the same seed gives the same
 * text.
 */
#ifndef TRAIN_GPT_RUN_TEXT_SAMPLE_H
#define TRAIN_GPT_RUN_TEXT_SAMPLE_H

#include "data/encoder.h"
#include "model/pipeline.h"
#include "run/config/config.h"
#include "run/text/draw.h"
#include "run/guard/watchdog.h"

/* Ids of a prompt, after those that the tokenizer puts before each text. An empty prompt has the one id of
 * tokenizer_start. */
typedef struct {
    int32_t *id;        /* owned [count] */
    int64_t  count;
    int64_t  hidden;    /* number of ids at the beginning that are not printed */
} Prompt;

/* Encodes a prompt. An empty one begins after the token `begin`, unless the tokenizer puts tokens before each text.
 * Exit 64 if the tokenizer reads no text, or if the model lacks one of the ids. */
Prompt prompt_create(const Tokenizer *tokenizer, const char *text, size_t bytes, int32_t begin);
void   prompt_free(Prompt *prompt);
/* Returns how many tokens of the prompt, the last ones, a model of `positions` positions sees. */
int64_t prompt_seen(const Prompt *prompt, int64_t positions);

typedef struct {
    Prompt      prompt;        /* borrowed */
    int64_t     tokens;
    DrawRule    rule;
    uint64_t    seed;
    const int32_t *end;        /* borrowed [ends]: tokens that end the text, and are not printed          */
    int         ends;
    const char *const *stop;   /* borrowed [stops]: texts before whose first occurrence it ends       */
    int         stops;
    Tensor      window;        /* I32, g->T elements at least, on the device: the model's inputs; borrowed */
    Watchdog   *watchdog;      /* ticked at every token; NULL: none                                   */
    int       (*leave)(void *ctx); /* asked after every token whether to leave off; NULL: never       */
    void      (*put)(void *ctx, const char *text, size_t bytes); /* takes printable text as it becomes certain */
    void       *ctx;           /* of both */
} SamplePlan;

typedef struct {
    int64_t tokens;   /* drawn             */
    double  ms;       /* that it took      */
    int     left_off; /* leave() said so   */
} Sampled;

/* Returns 1 if data.train is "-": the config is looked at without its data, and nothing is looked for beside them. */
int sample_has_no_data(const Config *config);
/* Returns the tokenizer of a run: data.tokenizer, else the one beside the files of data.train and data.val, else bytes
 * or ids only. Exit 65 if some files have another one beside them. Exit 64 if sample.prompt is text and tokens are ids
 * only. */
Tokenizer sample_tokenizer(const Config *config);
/* Returns the id at which data.document_mask divides documents, or -1 without a mask. Exit 64 if the mask is on and the
 * vocabulary has no end of text. */
int32_t sample_documents(const Config *config, const Tokenizer *tokenizer);

/* Prompt and continuation as printable text, through plan.put; ids where the tokenizer has no text. Uses g's activation
 * memory (g->T positions at most; the window slides by half when it is full). All ranks of the grid call it together,
 * and all of them get the text. */
Sampled sample_stream(Pipeline *p, Stream *s, const Tokenizer *tokenizer, const SamplePlan *plan);

/* The sample of a training run after a step, as its config says: malloc'ed; NULL when leave(ctx) ended it. */
char *sample_of_run(const Config *config, Pipeline *p, Stream *s, const Tokenizer *tokenizer, int64_t step,
                    Tensor window, Watchdog *watchdog, int (*leave)(void *ctx), void *ctx);

#endif
