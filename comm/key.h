/* key.h - the secret that islands and their server share: 32 random bytes in a file of mode 600, as 64 hex digits.
 *
 * The file also computes each side's proof that it has the key, and the keys that seal the frames of a connection, one
 * for each direction. All are BLAKE2b-256 keyed with the secret, over a word of its own and both sides' nonces. So a
 * proof is valid for one side of one connection only.
 */
#ifndef TRAIN_GPT_COMM_KEY_H
#define TRAIN_GPT_COMM_KEY_H

#include <stddef.h>
#include <stdint.h>

enum { KEY_BYTES = 32, NONCE_BYTES = 32, SEAL_BYTES = 32, KEY_FAULT_BYTES = 1024 };

typedef struct { uint8_t bytes[KEY_BYTES]; } Key;
typedef struct { uint8_t bytes[NONCE_BYTES]; } Nonce;
typedef struct { uint8_t bytes[SEAL_BYTES]; } Seal;

/* Makes the file, mode 600, if there is none. It is written whole or not at all, also when two processes make it at
 * once. Returns 0 if the file now exists, or an exit code with the sentence in fault. An existing file is not read. */
int key_make(const char *path, char fault[KEY_FAULT_BYTES]);

/* Reads the file. Returns 0, or an exit code with a sentence in fault that names outer.key, the file and the cure.
 * EXIT_CONFIG if the file does not exist, if others than its owner may read or write it, or if it holds no key. EXIT_IO
 * if it cannot be read. */
int key_read(const char *path, Key *key, char fault[KEY_FAULT_BYTES]);

/* Returns a number used once. Ends the program if the system gives no random bytes. */
Nonce nonce_make(void);

typedef enum { SIDE_SERVER, SIDE_CLIENT } Side;

/* Returns the proof of side `of`, in an opening with these nonces. */
Seal key_proof(const Key *key, Side of, const Nonce *client, const Nonce *server);
/* Returns the key of the frames that go to side `to`. */
Key  key_direction(const Key *key, Side to, const Nonce *client, const Nonce *server);

/* Returns the seal of a frame, over its header and payload as if they were contiguous. */
Seal seal_of(const Key *direction, const void *header, size_t header_bytes, const void *payload, size_t payload_bytes);
/* Compares in constant time. */
int  seal_equal(const Seal *a, const void *b);

#endif
