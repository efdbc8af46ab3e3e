/* key.c - makes and reads the key file that a server and its islands (training jobs of several sites) share (key.h). */
#include "comm/key.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/io.h"
#include "core/format.h"

enum { DIGITS = 2 * KEY_BYTES, TEXT_BYTES = DIGITS + 2 /* bytes of the text: the digits, an end of line and a NUL */ };

/* Writes a new key to the file `draft`, then links the file to `path`. If two processes make a key at once, the one
 * that links first wins. */
static int write_key(const char *draft, const char *path, const char *text) {
    int fd = io_open(draft, IO_SECRET);
    if (fd < 0) return fd;
    int error = io_write(fd, text, strlen(text));
    if (error == 0) error = io_fsync(fd);
    int closed = io_close(fd);
    if (error == 0) error = closed;
    if (error == 0) error = io_link(draft, path);
    io_unlink(draft);
    if (error == -EEXIST) return 0;
    return error ? error : io_fsync_parent(path);
}

int key_make(const char *path, char fault[KEY_FAULT_BYTES]) {
    struct stat st;
    struct { Key key; uint64_t name; } random;
    char        text[TEXT_BYTES], draft[PATH_MAX];
    if (lstat(path, &st) == 0) return 0;
    errno = EIO; /* the error to report if getrandom() returns too few bytes, which sets no errno */
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        fail(EXIT_IO, "outer.key: the system gives no random bytes for the key file %s: %s", path, strerror(errno));
    for (int i = 0; i < KEY_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", random.key.bytes[i]);
    strcat(text, "\n");
    int length = snprintf(draft, sizeof draft, "%s.%016llx.tmp", path, (unsigned long long)random.name);
    int error = length < (int)sizeof draft ? write_key(draft, path, text) : -ENAMETOOLONG;
    explicit_bzero(text, sizeof text), explicit_bzero(&random, sizeof random);
    if (!error) return 0;
    return fault_text(fault, KEY_FAULT_BYTES, EXIT_IO, "cannot make the key file %s (outer.key): %s", path,
                      io_error_text(error));
}

int key_read(const char *path, Key *key, char fault[KEY_FAULT_BYTES]) {
    struct stat st;
    char       *text = NULL;
    if (stat(path, &st) != 0)
        return fault_text(fault, KEY_FAULT_BYTES, errno == ENOENT || errno == ENOTDIR ? EXIT_CONFIG : EXIT_IO,
                          "the key file %s (outer.key) cannot be read: %s; ./train_gpt serve wrote this file on the "
                          "host of the server: copy it from there (scp -p SERVER:%s %s)",
                          path, io_error_text(errno), shell_word(path).text, shell_word(path).text);
    if (!S_ISREG(st.st_mode))
        return fault_text(fault, KEY_FAULT_BYTES, EXIT_CONFIG, "outer.key: %s %s", path,
                          io_error_text(io_kind(st.st_mode)));
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return fault_text(fault, KEY_FAULT_BYTES, EXIT_CONFIG,
                          "users other than the owner may use the key file %s (outer.key), which is secret; type: "
                          "chmod 600 %s", path,
                          shell_word(path).text);
    int64_t bytes = io_read_file(path, 4096, &text);
    if (bytes < 0 && bytes != -EFBIG)
        return fault_text(fault, KEY_FAULT_BYTES, EXIT_IO, "the key file %s (outer.key) cannot be read: %s", path,
                          io_error_text((int)bytes));
    /* an end of line may follow the digits */
    int is_key = (bytes == DIGITS || (bytes == DIGITS + 1 && text[DIGITS] == '\n')) &&
                 strspn(text, "0123456789abcdefABCDEF") == DIGITS;
    for (int i = 0; is_key && i < KEY_BYTES; i++) sscanf(text + 2 * i, "%2hhx", &key->bytes[i]);
    if (bytes > 0) explicit_bzero(text, (size_t)bytes);
    free(text);
    if (is_key) return 0;
    return fault_text(fault, KEY_FAULT_BYTES, EXIT_CONFIG,
                      "the file %s (outer.key) is no key: it must be %d hex digits and an end of line, as ./train_gpt "
                      "serve writes it; copy the server's file again (scp -p SERVER:%s %s)",
                      path, DIGITS, shell_word(path).text, shell_word(path).text);
}
