/* io.c - files, folders and patterns of file names (io.h). Only this file makes the calls that read or change a disk.
 * Each call is a failpoint ("io.pwrite"), so a test can make it fail, stop halfway or kill the process. */
#include "core/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/error.h"
#include "core/failpoints.h"
#include "core/format.h"

/* Makes a call and returns its result. If a test makes the failpoint `name` fail, sets errno and returns -1 without the
 * call. The expression `call` may use the failpoint as f. */
#define FAILABLE(name, call)                               \
    __extension__({                                        \
        Failpoint        f = failpoint(name);              \
        __typeof__(call) result = (__typeof__(call))-1;    \
        if (f.error) errno = f.error;                      \
        else {                                             \
            result = call;                                 \
            failpoint_done(f);                             \
        }                                                  \
        result;                                            \
    })
/* Number of bytes that a read or write of n bytes moves: half of them if the failpoint f makes it short. */
#define MOVED(n) (f.is_short ? ((n) + 1) / 2 : (n))

/* Makes a system call that returns 0 or -1, unless a test makes the failpoint `name` fail. Its value is 0 or -errno. */
#define STATUS(name, call) (FAILABLE(name, call) < 0 ? -errno : 0)

/* Makes a system call like STATUS, and repeats it as long as a signal interrupts it. The value is 0 or -errno. */
#define RETRIED(name, call)             \
    __extension__({                     \
        int rc;                         \
        do rc = STATUS(name, call);     \
        while (rc == -EINTR);           \
        rc;                             \
    })

static int open_retrying(const char *path, int flags, mode_t mode) {
    int fd;
    do fd = FAILABLE("io.open", open(path, flags | O_CLOEXEC, mode));
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

void io_hold_standard(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        /* nothing more can be done if /dev/null cannot be opened */
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR, 0) != fd) return;
}

int io_kind(unsigned mode) {
    switch (mode & S_IFMT) {
        case S_IFREG: return 0;
        case S_IFDIR: return EISDIR;
        case S_IFIFO: return IO_IS_FIFO;
        case S_IFSOCK: return IO_IS_SOCKET;
        case S_IFCHR: return IO_IS_CHARACTER_DEVICE;
        case S_IFBLK: return IO_IS_BLOCK_DEVICE;
        default: return IO_IS_LINK;
    }
}

const char *io_error_text(int error) {
    switch (abs(error)) {
        case EISDIR: return "is a directory, not a file";
        case IO_IS_FIFO: return "is a FIFO, not a file";
        case IO_IS_SOCKET: return "is a socket, not a file";
        case IO_IS_CHARACTER_DEVICE: return "is a character device, not a file";
        case IO_IS_BLOCK_DEVICE: return "is a block device, not a file";
        case IO_IS_LINK: return "is a symbolic link, not a file";
        default: return strerror(abs(error));
    }
}

void io_expect_file(const char *path, int64_t bytes) {
    int code = bytes < 0 ? (int)-bytes : 0;
    if (code == EISDIR || (code >= IO_IS_FIFO && code <= IO_IS_LINK))
        fail(EXIT_IO, "%s %s: move it away", path, io_error_text(code));
}

/* O_NONBLOCK keeps open() from waiting for the other end if the path is a pipe. If the pipe has no reader, open() then
 * fails with ENXIO; otherwise the pipe is closed again. Plain files ignore the flag. Opening a device may already have
 * an effect, so the path is checked before it is opened for reading. */
int io_open(const char *path, IoOpen how) {
    enum { WRITE = O_CREAT | O_NOFOLLOW | O_NONBLOCK };
    static const int flags[] = {[IO_CREATE] = O_WRONLY | O_TRUNC | WRITE,
                                [IO_APPEND] = O_WRONLY | O_APPEND | WRITE,
                                [IO_SHARED] = O_RDWR | WRITE,
                                [IO_SECRET] = O_WRONLY | O_EXCL | WRITE,
                                [IO_READ] = O_RDONLY | O_NONBLOCK,
                                [IO_READ_ANY] = O_RDONLY,
                                [IO_READ_LATER] = O_RDONLY | O_NONBLOCK};
    const int is_any = how == IO_READ_ANY || how == IO_READ_LATER;
    struct stat st;
    int         kind = stat(path, &st) == 0 ? io_kind(st.st_mode) : 0;
    if (kind && (how == IO_READ || (is_any && kind == IO_IS_SOCKET))) return -kind;
    int fd = open_retrying(path, flags[how], how == IO_SECRET ? 0600 : 0666);
    if (fd < 0 || is_any) return fd;
    kind = fstat(fd, &st) == 0 ? io_kind(st.st_mode) : errno;
    if (!kind) return fd;
    io_close(fd);
    return how == IO_READ ? -kind : -ENXIO;
}

FILE *io_open_stream(const char *path, IoOpen how) {
    int   fd = io_open(path, how);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    int   error = fd < 0 ? -fd : errno;
    if (!file && fd >= 0) io_close(fd);
    if (!file) errno = error;
    return file;
}

/* Writes all bytes at offset, or at the descriptor's position if offset is negative. */
static int write_all(int fd, const void *data, size_t bytes, int64_t offset) {
    for (size_t done = 0; done < bytes;) {
        const char *at = (const char *)data + done;
        size_t      left = bytes - done;
        off_t       place = (off_t)(offset + (int64_t)done);
        ssize_t     n = offset < 0 ? FAILABLE("io.write", write(fd, at, MOVED(left)))
                                   : FAILABLE("io.pwrite", pwrite(fd, at, MOVED(left), place));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

int io_write(int fd, const void *data, size_t bytes) { return write_all(fd, data, bytes, -1); }
int io_pwrite(int fd, const void *data, size_t bytes, uint64_t offset) {
    return write_all(fd, data, bytes, (int64_t)offset);
}

void io_start_writeback(int fd, uint64_t offset, size_t bytes) {
    STATUS("io.writeback", sync_file_range(fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE));
}

int io_truncate(int fd, uint64_t bytes) { return RETRIED("io.ftruncate", ftruncate(fd, (off_t)bytes)); }
int io_fsync(int fd) { return RETRIED("io.fsync", fsync(fd)); }

/* A close that fails, or is interrupted, has closed the descriptor all the same. It is not repeated, because a second
 * close could close another thread's descriptor. */
int io_close(int fd) {
    Failpoint f = failpoint("io.close");
    int       rc = close(fd) < 0 && errno != EINTR ? -errno : 0;
    failpoint_done(f);
    return f.error && f.error != EINTR ? -f.error : rc;
}

int io_rename(const char *from, const char *to) { return STATUS("io.rename", rename(from, to)); }
int io_link(const char *from, const char *to) { return STATUS("io.link", link(from, to)); }
int io_unlink(const char *path) { return STATUS("io.unlink", unlink(path)); }
int io_rmdir(const char *path) { return STATUS("io.rmdir", rmdir(path)); }

/* Makes one folder. An existing one is no error, even where mkdir fails with EROFS or EACCES instead of EEXIST. */
static int make_folder(const char *path) {
    int rc = STATUS("io.mkdir", mkdir(path, 0777));
    if (rc == 0 || io_is_folder(path)) return 0;
    return rc == -EEXIST ? -ENOTDIR : rc;
}

int io_mkdirs(const char *path) {
    char *prefix = xstrdup(path, "the name of a folder");
    int   rc = 0;
    for (char *at = prefix + (*prefix == '/'); rc == 0 && (at = strchr(at, '/')); at++) {
        *at = 0;
        rc = make_folder(prefix);
        *at = '/';
    }
    if (rc == 0) rc = make_folder(path);
    free(prefix);
    return rc;
}

int io_mkdir_own(const char *path) {
    struct stat st;
    int         rc = STATUS("io.mkdir", mkdir(path, 0700));
    if (rc != -EEXIST) return rc;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() ? 0 : -EPERM;
}

/* Removes a folder and its content. Links are removed, never followed. Folders more than `below` levels deep are
 * refused. */
static int remove_tree(const char *path, int below) {
    int fd = open_retrying(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd < 0) return fd == -ENOENT ? 0 : fd;
    DIR *folder = fdopendir(fd);
    if (!folder) {
        int error = errno;
        io_close(fd);
        return -error;
    }
    int            rc = 0;
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char       *child = xformat("the name of a file", "%s/%s", path, entry->d_name);
        struct stat st;
        if (lstat(child, &st) == 0 && S_ISDIR(st.st_mode)) rc = below > 0 ? remove_tree(child, below - 1) : -ENOTEMPTY;
        else rc = io_unlink(child);
        if (rc == -ENOENT) rc = 0;
        free(child);
    }
    closedir(folder);
    if (rc == 0) rc = io_rmdir(path);
    return rc == -ENOENT ? 0 : rc;
}

int io_remove_tree(const char *path) { return remove_tree(path, 1); }

int io_fsync_dir(const char *path) {
    int fd = open_retrying(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fd;
    int rc = io_fsync(fd);
    io_close(fd);
    return rc == -EINVAL ? 0 : rc; /* EINVAL: the file system cannot sync folders, which is no error */
}

int io_fsync_parent(const char *path) {
    size_t bytes = (size_t)(basename(path) - path); /* bytes of the folder's path with its last slash */
    char  *folder = xstrndup(bytes ? path : ".", bytes ? bytes : 1, "the name of a folder");
    int    rc = io_fsync_dir(folder);
    free(folder);
    return rc;
}

/* Opens the empty file path.tmp for this writer alone. If another process holds path.tmp, waits until that process
 * renames or removes it, at most 5 s. On a file system without flock(2) two writers may open it at once. */
static int open_alone(const char *tmp) {
    enum { PAUSE_US = 10000, PAUSES = 500 };
    for (int pauses = 0;;) {
        struct stat opened, named;
        int         fd = io_open(tmp, IO_SHARED);
        /* a link or pipe of this name is not a file of this program, and is removed */
        if ((fd == -ELOOP || fd == -ENXIO) && io_unlink(tmp) == 0) continue;
        if (fd < 0) return fd;
        int is_held = flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
        int is_named = fstat(fd, &opened) == 0 && stat(tmp, &named) == 0 && opened.st_ino == named.st_ino;
        int rc = is_held && pauses == PAUSES ? -EBUSY : 0;
        if (!is_held && is_named && opened.st_size > 0) rc = io_truncate(fd, 0);
        if (rc == 0 && !is_held && is_named) return fd;
        io_close(fd);
        if (rc < 0) return rc;
        if (is_held) usleep(PAUSE_US), pauses++;
    }
}

/* Writes path.tmp and renames it to path. The descriptor `lock` keeps path.tmp locked until the rename. The descriptor
 * fd is closed before the rename, because a network file system may report a failed write only at close. */
int io_replace_file(const char *path, const void *data, size_t bytes) {
    char *tmp = xformat("the name of a file", "%s.tmp", path);
    int   fd = open_alone(tmp), lock = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    int   rc = fd < 0 ? fd : lock < 0 ? -errno : io_write(fd, data, bytes);
    if (rc == 0) rc = io_fsync(fd);
    if (fd >= 0) {
        int closed = io_close(fd);
        if (rc == 0) rc = closed;
        if (rc == 0) rc = io_rename(tmp, path);
        if (rc < 0) io_unlink(tmp);
    }
    if (lock >= 0) close(lock);
    free(tmp);
    return rc;
}

/* Allocates all pages on disk before mapping the file. Without that a write to a page might find the disk full and
 * raise SIGBUS. */
int io_map_new(const char *path, size_t bytes, void **memory) {
    int fd = io_open(path, IO_SHARED), rc = fd < 0 ? fd : io_truncate(fd, 0);
    if (rc == 0) rc = RETRIED("io.fallocate", fallocate(fd, 0, 0, (off_t)bytes));
    if (rc == 0)
        *memory = FAILABLE("io.mmap", mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0));
    if (rc == 0 && *memory == MAP_FAILED) rc = -errno;
    if (fd >= 0) io_close(fd);
    return rc;
}

void io_unmap(void *memory, size_t bytes) { munmap(memory, bytes); }

/* Reads at most `bytes` from offset, or from the descriptor's position if offset is negative. Returns the bytes read or
 * -errno. */
static int64_t read_up_to(int fd, char *data, size_t bytes, int64_t offset) {
    size_t have = 0;
    while (have < bytes) {
        size_t  left = bytes - have;
        ssize_t n = offset < 0
                        ? FAILABLE("io.read", read(fd, data + have, MOVED(left)))
                        : FAILABLE("io.pread", pread(fd, data + have, MOVED(left), (off_t)(offset + (int64_t)have)));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        if (n == 0) break;
        have += (size_t)n;
    }
    return (int64_t)have;
}

/* Reads a file into malloc'ed memory with a NUL after the end. If the file has more than `limit` bytes, reads only the
 * first `limit` bytes (is_cut 1) or returns -EFBIG (is_cut 0). */
static int64_t read_whole(const char *path, IoOpen how, size_t limit, int is_cut, char **data) {
    *data = NULL;
    int fd = io_open(path, how);
    if (fd < 0) return fd;
    struct stat st;
    int         is_sized = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
    size_t      room = is_sized ? (size_t)st.st_size + 1 : 4096, have = 0;
    char       *text = NULL;
    int64_t     n = 0;
    do { /* reads until the end of the file: a pipe has no size, and a file may grow */
        if (have == room) room *= 2;
        if (room - 1 > limit) room = limit + 1; /* reads at most one byte more than `limit`; that byte shows that the
                                                 * file is too long */
        char *grown = realloc(text, room + 1);
        if (!grown) n = -ENOMEM;
        else text = grown, n = read_up_to(fd, text + have, room - have, -1);
        if (n > 0) have += (size_t)n;
        if (n >= 0 && have > limit && !is_cut) n = -EFBIG;
    } while (n > 0 && have == room && have <= limit);
    io_close(fd);
    if (n < 0) {
        free(text);
        return n;
    }
    if (have > limit) have = limit;
    text[have] = 0;
    *data = text;
    return (int64_t)have;
}

int64_t io_read_file(const char *path, size_t limit, char **data) { return read_whole(path, IO_READ, limit, 0, data); }
int64_t io_read_start(const char *path, size_t limit, char **data) { return read_whole(path, IO_READ, limit, 1, data); }
int64_t io_read_input(const char *path, size_t limit, char **data) {
    return read_whole(path, IO_READ_ANY, limit, 0, data);
}

int io_pread(int fd, void *data, size_t bytes, uint64_t offset) {
    int64_t n = read_up_to(fd, data, bytes, (int64_t)offset);
    if (n < 0) return (int)n;
    return n == (int64_t)bytes ? 0 : -ENODATA;
}

int64_t io_file_bytes(const char *path) {
    struct stat st;
    if (stat(path, &st) < 0) return -errno;
    return S_ISDIR(st.st_mode) ? -EISDIR : (int64_t)st.st_size;
}

int io_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int64_t io_free_bytes(const char *folder) {
    struct statvfs fs;
    if (statvfs(folder, &fs) < 0) return -errno;
    return (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
}

/* --- names and patterns ------------------------------------------------------------------------------------------- */

static const char NAMES[] = "the names of files"; /* purpose in the message "no memory for ..." */

void io_paths_add(IoPaths *list, const char *path) {
    list->path = xrealloc(list->path, sizeof *list->path * (list->count + 1), NAMES);
    list->path[list->count++] = xstrdup(path, NAMES);
}

void io_paths_free(IoPaths *list) {
    for (size_t i = 0; i < list->count; i++) free(list->path[i]);
    free(list->path);
    *list = (IoPaths){NULL, 0};
}

static int end_without_memory(const char *folder, int error) { return (void)folder, error == ENOMEM; }

/* Matches the sections of a path pattern one after another, and adds the paths that match to *found. The first `folder`
 * bytes of path, with their last slash, are matched already. */
static void match_rest(const char *path, size_t folder, IoPaths *found) {
    struct stat st;
    size_t      from = folder + strspn(path + folder, "/"), end = from + strcspn(path + from, "/");
    char       *as_typed = xstrndup(path, end, NAMES);
    glob_t      globbed = {0};
    int         is_there = lstat(as_typed, &st) == 0;
    if (!is_there && strpbrk(as_typed + from, "*?[\\")) {
        /* matches the section path [from, end) against the names in the folder path [0, from); the folder's wildcards
         * are escaped, so that glob() takes them literally */
        char *pattern = xmalloc(2 * end + 1, NAMES), *to = pattern;
        for (size_t i = 0; i < end; i++) {
            if (i < from && strchr("*?[\\", path[i])) *to++ = '\\';
            *to++ = path[i];
        }
        *to = 0;
        int rc = glob(pattern, GLOB_NOSORT, end_without_memory, &globbed);
        free(pattern);
        if (rc == GLOB_NOSPACE || rc == GLOB_ABORTED)
            fail(EXIT_MEMORY, "no memory for %s; free memory on this host", NAMES);
    }
    for (size_t i = 0; i < (is_there ? 1 : globbed.gl_pathc); i++) {
        const char *match = is_there ? as_typed : globbed.gl_pathv[i];
        char       *whole = xformat(NAMES, "%s%s", match, path + end);
        if (path[end]) match_rest(whole, strlen(match), found);
        else io_paths_add(found, whole);
        free(whole);
    }
    if (globbed.gl_pathc) globfree(&globbed);
    free(as_typed);
}

Path path_of(const char *fmt, ...) {
    Path    path;
    va_list args;
    va_start(args, fmt);
    int bytes = vsnprintf(path.text, sizeof path.text, fmt, args);
    va_end(args);
    if ((size_t)bytes >= sizeof path.text)
        fail(EXIT_CONFIG, "the path %.200s... has %d bytes, at most %zu are allowed: choose shorter names", path.text,
             bytes, sizeof path.text - 1);
    return path;
}

int has_ending(const char *path, const char *ending) {
    size_t length = strlen(path), end = strlen(ending);
    return length >= end && strcmp(path + length - end, ending) == 0;
}

int ascending_texts(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

void io_match(const char *name, IoPaths *found) {
    size_t before = found->count;
    if (*name) match_rest(name, 0, found);
    if (found->count > before) qsort(found->path + before, found->count - before, sizeof *found->path, ascending_texts);
}

/* --- a FILE in memory --------------------------------------------------------------------------------------------- */

typedef struct {
    char  **text;
    size_t *bytes, room;
} Cookie;

static ssize_t write_memory(void *cookie, const char *data, size_t bytes) {
    Cookie *c = (Cookie *)cookie;
    size_t  need = *c->bytes + bytes + 1; /* bytes of the whole text including its NUL */
    if (need > c->room) *c->text = xrealloc(*c->text, c->room = 2 * need, "a text");
    memcpy(*c->text + *c->bytes, data, bytes);
    *c->bytes += bytes;
    (*c->text)[*c->bytes] = 0;
    return (ssize_t)bytes;
}

static int close_memory(void *cookie) { return free(cookie), 0; }

FILE *memory_file_open(char **text, size_t *bytes) {
    Cookie *c = xmalloc(sizeof *c, "a text");
    *text = xcalloc(1, 1, "a text");
    *bytes = 0;
    *c = (Cookie){text, bytes, 1};
    FILE *file = fopencookie(c, "w", (cookie_io_functions_t){.write = write_memory, .close = close_memory});
    if (!file)
        fail(EXIT_MEMORY, "no memory for a text of this program; free memory on this host, or raise the job's "
             "limit (sbatch --mem=, ulimit -v)");
    setvbuf(file, NULL, _IONBF, 0);
    return file;
}
