/* hello_data.h - the list of training files in a HELLO. An island and its server must have the same files. */
#ifndef TRAIN_GPT_RUN_OUTER_HELLO_DATA_H
#define TRAIN_GPT_RUN_OUTER_HELLO_DATA_H

#include "data/dataset.h"
#include "run/outer/messages.h"

/* Returns one entry for each file of train, in order [train->shards]; free it with free(). The names have no folder and
 * are borrowed from train. Each entry has the fingerprint of all files together (dataset_fingerprint). Ends the program
 * if there is no memory. */
HelloData *hello_data(const Dataset *train);

#endif
