/* sample_options.h - the command line of `train_gpt sample`. */
#ifndef TRAIN_GPT_RUN_VERBS_SAMPLE_OPTIONS_H
#define TRAIN_GPT_RUN_VERBS_SAMPLE_OPTIONS_H

#include <stdint.h>

#include "core/mesh.h"
#include "run/guard/lock.h"
#include "run/text/draw.h"

typedef struct {
    char        path[4096];    /* a run's or a checkpoint's folder                     */
    const char *prompt;        /* text; @FILE: a file's; -: standard input's           */
    const char *tokenizer;     /* NULL: found beside the model                         */
    const char *out;           /* a file for the text; NULL: standard output           */
    RunLock    *lock;          /* owned: of out; NULL on ranks that do not write it    */
    DrawRule    rule;
    int64_t     tokens, texts, seed, tensor, context, stages;
    int64_t     positions;     /* 0: all that the model has                            */
    const char *given[24];     /* names of the keys that were given; ends with NULL    */
    int         ends_at_eot;
    char      **stop;          /* owned [stops] */
    int         stops;
} SampleOptions;

/* From argv[1] on: PATH key=value ...  Exit 64 where one is wrong. */
SampleOptions sample_options(int argc, char **argv);
void          sample_options_free(SampleOptions *o);

#endif
