/* io.h - all file writing of the program: checkpoints, logs, shards and pictures go through these calls. It also has
 * files in memory.
 *
 * Each call returns 0 (or a descriptor) or -errno; the caller's message names the path. Short writes and EINTR are
 * continued here. The caller must ignore SIGXFSZ. A test can make the n-th call fail: core/failpoints.h.
 */
#ifndef TRAIN_GPT_CORE_IO_H
#define TRAIN_GPT_CORE_IO_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/error.h"

typedef enum {
    IO_CREATE, IO_APPEND, IO_SHARED /* IO_SHARED: creates the file or keeps an existing one; several processes write
                                     * into it */,
    IO_SECRET /* IO_SECRET: creates a file with mode 600; -EEXIST if the file exists */, IO_READ,
    IO_READ_ANY, /* opens an input file that may also be a pipe or device; waits for the writer of a pipe */
    IO_READ_LATER /* opens an input file, pipe or device without waiting: the caller waits with poll(), and a read of an
                   * empty pipe gives EAGAIN */
} IoOpen;

/* Error codes for paths that are not plain files, in addition to those of errno. Folders are EISDIR. */
enum { IO_IS_FIFO = 1001, IO_IS_SOCKET, IO_IS_CHARACTER_DEVICE, IO_IS_BLOCK_DEVICE, IO_IS_LINK };
/* Returns the error code for a file's mode (st_mode): EISDIR or one of IO_IS_...; 0 if it is a plain file. */
int         io_kind(unsigned mode);
/* Returns the text of an error code of either sign: "is a FIFO, not a file", or the text of strerror(). */
const char *io_error_text(int error);
/* Checks the result of reading a file: its number of bytes, or a negative error code. If the code says that the path is
 * not a plain file, ends the program with exit 74 and a message that names path and kind. Every other result, such as
 * that of a missing file, is left to the caller. */
void        io_expect_file(const char *path, int64_t bytes);

/* Opens /dev/null for each of standard input, output and error that is closed. Otherwise the next file opened would get
 * that number and receive the program's output. */
void io_hold_standard(void);

/* Opens a file. Returns a descriptor or -errno. The mode is 0666 & ~umask, except for IO_SECRET. Only plain files are
 * opened, and without waiting. For writing, links are -ELOOP, pipes and devices -ENXIO. For IO_READ, links are
 * followed, and other kinds give -EISDIR or a negative IO_IS_ code. */
int   io_open(const char *path, IoOpen how);
/* Opens a file to be read with stdio. Returns NULL with the code in errno if that fails. */
FILE *io_open_stream(const char *path, IoOpen how);
int io_write(int fd, const void *data, size_t bytes);
int io_pwrite(int fd, const void *data, size_t bytes, uint64_t offset);
void io_start_writeback(int fd, uint64_t offset, size_t bytes); /* starts writing these bytes to disk, so that a later
                                                                 * fsync is short; only a hint */
int io_truncate(int fd, uint64_t bytes);
int io_fsync(int fd);
int io_close(int fd);
int io_rename(const char *from, const char *to);
int io_link(const char *from, const char *to);           /* gives the file `from` a second name `to` (hard link);
                                                          * -EEXIST if that name exists */
int io_unlink(const char *path);
int io_rmdir(const char *path);                          /* removes an empty folder */
int io_mkdirs(const char *path);                         /* makes a folder with its parents; folders that exist are no
                                                          * error */
int io_mkdir_own(const char *path);                      /* makes one folder that only this user can open; -EPERM if
                                                          * path exists and is another user's, or is no folder */
int io_remove_tree(const char *path);                    /* removes a folder of this program, with its files and one
                                                          * level of folders; returns 0 if it is absent */
int io_fsync_dir(const char *path);
int io_fsync_parent(const char *path);                   /* fsyncs the folder that contains path */

/* Replaces a file as a whole. Writes path.tmp, fsyncs it and renames it to path, so readers see the old bytes or the
 * new ones. If another process writes the same file, waits at most 5 s, then returns -EBUSY. */
int io_replace_file(const char *path, const void *data, size_t bytes);

/* Makes a file of `bytes` zeroed bytes, allocated on disk at once, and maps it into memory. Bytes written to *memory
 * stay in the file even if the process is killed. */
int  io_map_new(const char *path, size_t bytes, void **memory);
void io_unmap(void *memory, size_t bytes);

/* Reads a whole file of at most `limit` bytes into malloc'ed memory, with a NUL after the end. Returns its length or
 * -errno (-EFBIG if it is longer). */
int64_t io_read_file(const char *path, size_t limit, char **data);
int64_t io_read_input(const char *path, size_t limit, char **data); /* reads a whole file, or pipe or device
                                                                     * (IO_READ_ANY), of at most `limit` bytes; returns
                                                                     * its length or -errno */
/* Reads the first bytes of a file, at most `limit`, into malloc'ed memory with a NUL after the end. Returns their
 * number or -errno. */
int64_t io_read_start(const char *path, size_t limit, char **data);
/* Reads exactly `bytes` bytes at `offset`. Returns 0, -errno, or -ENODATA if the file ends before. */
int     io_pread(int fd, void *data, size_t bytes, uint64_t offset);
int64_t io_file_bytes(const char *path);                 /* returns the size of the file in bytes, or -errno (-EISDIR
                                                          * for a folder) */
int     io_is_folder(const char *path);                  /* returns 1 if the path is a folder, or a link to one */
int64_t io_free_bytes(const char *folder);               /* returns the bytes that this user may still write to the
                                                          * folder's file system, or -errno */

int     has_ending(const char *path, const char *ending); /* returns 1 if path ends in `ending`; case matters: .BIN is
                                                           * not .bin */

typedef struct { char text[4608]; } Path;
/* Formats a path. Exit 64 if it is too long. */
Path path_of(const char *fmt, ...) PRINTF_LIKE(1, 2);

typedef struct { char **path; size_t count; } IoPaths; /* list of paths; path [count] and its strings are owned */
/* Finds the files that match a name and adds them to *found, sorted by byte. A section of the name between slashes is
 * taken literally if such a file or folder exists, even if it holds *, ? or [. Any other section is a pattern of
 * glob(3). */
void io_match(const char *name, IoPaths *found);
void io_paths_add(IoPaths *list, const char *path);      /* adds a copy of path to the list */
void io_paths_free(IoPaths *list);
/* Compares two strings, such as names of files, by byte, for qsort(). */
int ascending_texts(const void *a, const void *b);

/* Opens a FILE that writes to memory: *text always holds the *bytes written so far and a NUL. The caller frees *text
 * after fclose(). Exit 71 if memory runs out, whereas open_memstream(3) would lose bytes silently (glibc 2.36). */
FILE *memory_file_open(char **text, size_t *bytes);

#endif
