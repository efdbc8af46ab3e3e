/* server_hello.h - whether an island trains what its server has: protocol, config, data, model. For server.c. */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_HELLO_H
#define TRAIN_GPT_RUN_OUTER_SERVER_HELLO_H

#include "data/dataset.h"
#include "run/config/config.h"
#include "run/outer/messages.h"

/* Returns 0, or the exit code for the island, with the sentence, which has both values, in why [bytes]. elems: of the
 * server's model. train NULL: a follower does not look at data. */
int hello_refuse(const Hello *hello, const Config *config, const Dataset *train, int64_t elems, char *why, size_t bytes);

/* The same of a follower, for one of `parts` servers: "has part 1 of 3, and ...". */
int follow_refuse(const Follow *follow, const Config *config, int parts, int64_t elems, char *why, size_t bytes);

/* Whether the island's config has outer.compress. */
int hello_takes_changes(const Hello *hello);

#endif
