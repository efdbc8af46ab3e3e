/* model_card.h - writes README.md of an exported model for the Hugging Face hub: the model, its training, data and
 * losses, and how to load it. The text uses only the manifest of the checkpoint and metrics.jsonl of the run.
 */
#ifndef TRAIN_GPT_RUN_VERBS_MODEL_CARD_H
#define TRAIN_GPT_RUN_VERBS_MODEL_CARD_H

#include "run/checkpoint/manifest.h"

typedef struct {
    const Manifest *manifest;
    const char *run;           /* folder of the run; NULL: only the checkpoint exists  */
    const char *name;          /* name of the exported folder                          */
    const char *model_type;    /* model_type of config.json                            */
    const char *dtype;         /* type of the stored weights, such as "bfloat16"       */
    int64_t     parameters;
    int         has_tokenizer, has_picture;
} ModelCard;

/* Returns the text, malloc'ed, with its length in *bytes. */
char *model_card_text(const ModelCard *card, size_t *bytes);

#endif
