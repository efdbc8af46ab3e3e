/* server_hello.h - compares an island's or a follower's protocol, config, data and model with those of the server. For
 * server.c.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_HELLO_H
#define TRAIN_GPT_RUN_OUTER_SERVER_HELLO_H

#include "data/dataset.h"
#include "run/config/config.h"
#include "run/outer/messages.h"

/* Returns 0 if the island fits, or the exit code for it, with a sentence in why [bytes] that has both values. elems:
 * parameters of the server's model. train is NULL on a follower, which does not compare data. */
int hello_refuse(const Hello *hello, const Config *config, const Dataset *train, int64_t elems, char *why, size_t bytes);

/* Returns 0 if the follower fits, for one of `parts` servers, or the exit code for it. why: "has part 1 of 3, and
 * ...". */
int follow_refuse(const Follow *follow, const Config *config, int parts, int64_t elems, char *why, size_t bytes);

/* Returns 1 if the island's config has outer.compress. */
int hello_takes_changes(const Hello *hello);

#endif
