/* io.h - the one writer of files: checkpoints, logs, shards and pictures all go through these calls.
 *
 * Each returns 0 (or a descriptor) or -errno; the caller names path and exit code. Short writes and EINTR are continued
 * here; SIGXFSZ is the caller's to ignore. A test can make the n-th call fail: core/failpoints.h.
 */
#ifndef TRAIN_GPT_CORE_IO_H
#define TRAIN_GPT_CORE_IO_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
    IO_CREATE, IO_APPEND, IO_SHARED /* made if absent, kept if there: several write into it */,
    IO_SECRET /* mode 600; -EEXIST where there is one */, IO_READ,
    IO_READ_ANY /* an input that may be a pipe or device as well; waits for the writer of a pipe */
} IoOpen;

/* Error codes of paths that are no plain files, beside those of errno; folders are EISDIR. */
enum { IO_IS_FIFO = 1001, IO_IS_SOCKET, IO_IS_CHARACTER_DEVICE, IO_IS_BLOCK_DEVICE, IO_IS_LINK };
/* Returns such a code by the mode of a file; 0 if it is a plain file. */
int         io_kind(unsigned mode);
/* Returns the text of an error code, of either sign: "is a FIFO, not a file", or that of strerror(). */
const char *io_error_text(int error);
/* Takes the number of bytes that a call has read, or its -code. Exit 74 if it is one of these codes, with path and kind;
 * else returns. For files that may be missing or damaged. */
void        io_expect_file(const char *path, int64_t bytes);

/* Opens /dev/null in place of a closed standard input, output or error. Else the next file opened would take that
 * number, and receive the program's output. */
void io_hold_standard(void);

/* Returns a descriptor or -errno; mode 0666 & ~umask but for IO_SECRET. Only plain files are opened, at once: for
 * writing links are -ELOOP, pipes and devices -ENXIO; for IO_READ links are followed, and other kinds have their codes
 * above. */
int   io_open(const char *path, IoOpen how);
/* Opens a file to be read with stdio. Returns NULL, and the code in errno. */
FILE *io_open_stream(const char *path, IoOpen how);
int io_write(int fd, const void *data, size_t bytes);
int io_pwrite(int fd, const void *data, size_t bytes, uint64_t offset);
void io_start_writeback(int fd, uint64_t offset, size_t bytes); /* so that a later fsync finds little left; advice only */
int io_truncate(int fd, uint64_t bytes);
int io_fsync(int fd);
int io_close(int fd);
int io_rename(const char *from, const char *to);
int io_link(const char *from, const char *to);           /* a second name; -EEXIST where that one is there */
int io_unlink(const char *path);
int io_rmdir(const char *path);                          /* an empty folder */
int io_mkdirs(const char *path);                         /* with parents; existing folders are fine */
int io_mkdir_own(const char *path);                      /* one folder, for this user alone; another's of that name is -EPERM */
int io_remove_tree(const char *path);                    /* a folder we made: files and one level of folders below it; absent is fine */
int io_fsync_dir(const char *path);

/* Writes path.tmp, fsyncs, renames to path: readers see the old bytes or the new ones. Another process that writes it
 * is waited for, 5 s at most; then -EBUSY. */
int io_replace_file(const char *path, const void *data, size_t bytes);

/* Makes a file of so many zeroed bytes, all of them taken from its file system now, and maps it. Bytes written to
 * *memory stay in the file, even if the process is killed. */
int  io_map_new(const char *path, size_t bytes, void **memory);
void io_unmap(void *memory, size_t bytes);

/* Whole file into malloc'ed memory (NUL after the end), at most limit bytes: length or -errno (-EFBIG over the
 * limit). */
int64_t io_read_file(const char *path, size_t limit, char **data);
int64_t io_read_input(const char *path, size_t limit, char **data); /* reads as io_read_file, also from a pipe (IO_READ_ANY) */
/* Reads the first bytes of a file, at most limit, into malloc'ed memory (NUL after the end). Returns their number or
 * -errno. */
int64_t io_read_start(const char *path, size_t limit, char **data);
/* Exactly bytes at offset: 0, -errno, or -ENODATA when the file ends before. */
int     io_pread(int fd, void *data, size_t bytes, uint64_t offset);
int64_t io_file_bytes(const char *path);                 /* or -errno (-EISDIR for a folder) */
int64_t io_free_bytes(const char *folder);               /* free space for this user, or -errno */

int     has_ending(const char *path, const char *ending); /* by letters as they are: .BIN is not .bin */

typedef struct { char **path; size_t count; } IoPaths; /* owned, as are its strings */
/* Finds the files that match a name, sorted by byte, and adds them to *found. A part of the name between slashes is
 * taken literally if such a file or folder exists, even if it holds *, ? or [. Any other part is a pattern of glob(3).
 * Returns 0, also if nothing matches, or -ENOMEM. */
int  io_match(const char *name, IoPaths *found);
int  io_paths_add(IoPaths *list, const char *path);      /* adds a copy; returns 0 or -ENOMEM */
void io_paths_free(IoPaths *list);

#endif
