/* sample.h - text from a model: temperature and top-k sampling, drawn from the counter-based generator, so the same
 * seed gives the same text.
 */
#ifndef TRAIN_GPT_RUN_SAMPLE_H
#define TRAIN_GPT_RUN_SAMPLE_H

#include "data/tokenizer.h"
#include "model/pipeline.h"
#include "run/config/config.h"
#include "run/guard/watchdog.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *prompt;       /* "" starts from token 0 (bytes: newline) */
    int64_t     tokens;
    double      temperature;  /* 0 = the likeliest token each time */
    int64_t     top_k;        /* 0 = all */
    uint64_t    seed;
    Watchdog   *watchdog;     /* ticked at every token; NULL: none */
    Tensor      window;       /* I32, g->T elements at least, on the device: the model's inputs; borrowed */
    int       (*stop)(void *ctx); /* asked after every token whether to leave off; NULL: never */
    void       *ctx;
} SamplePlan;

/* The tokenizer of a run: data.tokenizer, else the one beside the first shards of data.train, else bytes or ids alone. Exit 64
 * where sample.prompt is text and these take none. */
Tokenizer sample_tokenizer(const Config *config);

/* Prompt and continuation as printable text, malloc'ed; ids where the tokenizer has no text; NULL when plan.stop ended
 * it. Uses g's activation memory (g->T positions at most; the window slides by half when it is full). */
char *sample_text(Pipeline *p, Stream *s, const Tokenizer *tokenizer, SamplePlan plan);

/* Draws one token from logits [vocab] given a uniform u in [0,1). */
int32_t sample_token(const float *logits, int64_t vocab, double temperature, int64_t top_k, double u);

#ifdef __cplusplus
}
#endif
#endif
