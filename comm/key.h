/* key.h - the secret that islands, the training jobs of several sites, share with their server: 32 random bytes in a
 * file of mode 600, as 64 hex digits. */
#ifndef TRAIN_GPT_COMM_KEY_H
#define TRAIN_GPT_COMM_KEY_H

#include <stdint.h>

enum { KEY_BYTES = 32, KEY_FAULT_BYTES = 1024 };

typedef struct { uint8_t bytes[KEY_BYTES]; } Key;

/* Which end of a connection this process is. */
typedef enum { SIDE_SERVER, SIDE_CLIENT } Side;

/* Makes a key file, mode 600, if there is none at `path`. The file is written whole or not at all, also when two
 * processes make it at once. Returns 0 if it now exists, or an exit code with the sentence in fault. An existing file
 * is not read. */
int key_make(const char *path, char fault[KEY_FAULT_BYTES]);

/* Reads the key file. Returns 0, or an exit code with a sentence in fault that names outer.key, the file and the cure.
 * EXIT_CONFIG if the file does not exist, if others than its owner may read or write it, or if it holds no key. EXIT_IO
 * if it cannot be read. */
int key_read(const char *path, Key *key, char fault[KEY_FAULT_BYTES]);

#endif
