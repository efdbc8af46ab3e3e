/* server_list.h - outer.server as a list: "a:4300,b:4300", one address for each part of the model, in order. */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_LIST_H
#define TRAIN_GPT_RUN_OUTER_SERVER_LIST_H

enum { OUTER_ADDRESS_BYTES = 4096 };

int         outer_servers(const char *list); /* number of addresses; "" has one */
/* Writes address `entry`, from 0, to out [OUTER_ADDRESS_BYTES]. Returns out. */
const char *outer_server(const char *list, int entry, char *out);

#endif
