/* model_card.h - README.md of an exported model, as the Hugging Face hub shows it: what the model is, how it was trained, on
 * what, to which losses, and how to load it. From the checkpoint's manifest and the run's metrics.jsonl alone.
 */
#ifndef TRAIN_GPT_RUN_VERBS_MODEL_CARD_H
#define TRAIN_GPT_RUN_VERBS_MODEL_CARD_H

#include "run/checkpoint/manifest.h"

typedef struct {
    const Manifest *manifest;
    const char *run;           /* the run's folder; NULL: only the checkpoint is there */
    const char *name;          /* of the exported folder                               */
    const char *model_type;    /* as in config.json                                    */
    const char *dtype;         /* of the stored weights: "bfloat16"                    */
    int64_t     parameters;
    int         has_tokenizer, has_picture;
} ModelCard;

/* malloc'ed, *bytes of it. */
char *model_card_text(const ModelCard *card, size_t *bytes);

#endif
