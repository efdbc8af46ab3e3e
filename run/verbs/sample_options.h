/* sample_options.h - the command line of `train_gpt sample`. */
#ifndef TRAIN_GPT_RUN_VERBS_SAMPLE_OPTIONS_H
#define TRAIN_GPT_RUN_VERBS_SAMPLE_OPTIONS_H

#include <stdint.h>

#include "core/mesh.h"
#include "run/guard/lock.h"
#include "run/text/sample.h"

typedef struct {
    char        path[4096];    /* folder of a run or a checkpoint                      */
    const char *prompt;        /* a text; @FILE: text of a file; -: standard input     */
    const char *tokenizer;     /* NULL: the one beside the model                       */
    const char *out;           /* file for the text; NULL: standard output             */
    RunLock    *lock;          /* owned: lock of out; NULL on ranks that do not write  */
    DrawRule    rule;
    int64_t     tokens, texts, seed, tensor, context, stages;
    int64_t     positions;     /* 0: all positions of the model                        */
    const char *given[24];     /* names of the keys that were given; ends with NULL    */
    int         ends_at_eot;
    char      **stop;          /* owned [stops] */
    int         stops;
} SampleOptions;

/* Reads the arguments from argv[1] on: PATH key=value ...  Exit 64 if one is not valid. */
SampleOptions sample_options(int argc, char **argv);
void          sample_options_free(SampleOptions *o);

#endif
