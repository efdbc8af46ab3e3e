/* hello_data.h - the training files as a HELLO lists them: an island's and its server's must be the same. */
#ifndef TRAIN_GPT_RUN_OUTER_HELLO_DATA_H
#define TRAIN_GPT_RUN_OUTER_HELLO_DATA_H

#include "data/dataset.h"
#include "run/outer/messages.h"

/* In their order, [train->shards]: names without folder, borrowed; each with the fingerprint of all of them
 * (dataset_fingerprint). For free(). Ends the program when there is no memory. */
HelloData *hello_data(const Dataset *train);

#endif
