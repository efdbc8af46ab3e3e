/* recorded_disk.h - records each call that changes files below a folder, and builds the states that a power failure may
 * leave. The linker puts the functions __wrap_open() and so on in the place of open(), wherever the program calls it.
 *
 * The model assumes no more than POSIX promises. Until an fsync of a file, each of its writes and sizes may be kept,
 * lost, or kept in part. Until an fsync of a folder, each name made, moved or removed in it may be changed or not,
 * regardless of later changes. fsync makes all earlier changes of its file or folder permanent, and nothing else: not
 * even the file's own name. A rename is one change.
 */
#ifndef TRAIN_GPT_TEST_RUN_RECORDED_DISK_H
#define TRAIN_GPT_TEST_RUN_RECORDED_DISK_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/io.h"

typedef enum { CHANGE_LINK, CHANGE_UNLINK, CHANGE_RENAME, CHANGE_WRITE, CHANGE_SIZE, CHANGE_SYNC } ChangeKind;

typedef struct {
    ChangeKind     kind;
    /* number of the node (file or folder) that is written, resized or synced; for a link, the node that gets the
     * name */
    int            node;
    int            folder;          /* number of the folder of a link, unlink or rename */
    char           name[48], to[48];
    uint64_t       offset, bytes;   /* write: offset and length; new size: `bytes` is the size of the file */
    unsigned char *data;            /* owned: the written bytes */
} Change;

typedef struct {
    int            is_folder;
    unsigned char *data;            /* owned: the file's bytes when the recording began */
    uint64_t       bytes;
} Node;

typedef struct { int folder, node; char name[48]; } Entry;

enum { DISK_NODES = 200, DISK_ENTRIES = 200, DISK_CHANGES = 400, DISK_FDS = 1024 };

typedef struct {
    char    root[64];               /* path of the run folder, which is node 0 */
    int     recording;
    Node    node[DISK_NODES];
    int     nodes;
    Entry   first[DISK_ENTRIES];    /* names that the files in all folders had when the recording began */
    int     firsts;
    Entry   now[DISK_ENTRIES];      /* names that the files in all folders have after the changes so far */
    int     nows;
    Change  change[DISK_CHANGES];
    int     changes;
    int     of_fd[DISK_FDS];        /* [descriptor] number of its node (file or folder); -1: not below root */
} Disk;

static Disk disk;

/* --- names -------------------------------------------------------------------------------------------------------- */

static Entry *entry_of(Entry *list, int count, int folder, const char *name) {
    for (int i = 0; i < count; i++)
        if (list[i].folder == folder && strcmp(list[i].name, name) == 0) return &list[i];
    return NULL;
}

/* Applies a recorded link, unlink or rename to a list of names in folders. */
static void apply_name(Entry *list, int *count, const Change *c) {
    Entry *e = entry_of(list, *count, c->folder, c->name);
    if (e && c->kind != CHANGE_LINK) *e = list[--*count];
    if (c->kind == CHANGE_UNLINK || (e && c->kind == CHANGE_LINK)) return;
    const char *name = c->kind == CHANGE_RENAME ? c->to : c->name;
    Entry      *old = entry_of(list, *count, c->folder, name);
    CHECK(*count < DISK_ENTRIES, "more than %d names", DISK_ENTRIES);
    if (!old) old = &list[(*count)++];
    *old = (Entry){.folder = c->folder, .node = c->node};
    snprintf(old->name, sizeof old->name, "%s", name);
}

/* Finds the folder of a path below root, and sets *name to its last part. Returns -1 if the path is not below root. */
static int folder_of(const char *path, const char **name) {
    size_t root = strlen(disk.root);
    int    folder = 0;
    if (strncmp(path, disk.root, root) != 0 || (path[root] && path[root] != '/')) return -1;
    for (*name = path + root + (path[root] == '/'); strchr(*name, '/'); *name = strchr(*name, '/') + 1) {
        char part[48];
        snprintf(part, sizeof part, "%.*s", (int)strcspn(*name, "/"), *name);
        Entry *e = entry_of(disk.now, disk.nows, folder, part);
        if (!e) return -1;
        folder = e->node;
    }
    return folder;
}

static int node_of(const char *path) {
    const char *name;
    int         folder = folder_of(path, &name);
    if (folder < 0) return -1;
    if (!*name) return 0;
    Entry *e = entry_of(disk.now, disk.nows, folder, name);
    return e ? e->node : -1;
}

static int new_node(int is_folder) {
    CHECK(disk.nodes < DISK_NODES, "more than %d files", DISK_NODES);
    disk.node[disk.nodes] = (Node){.is_folder = is_folder};
    return disk.nodes++;
}

/* --- recording ---------------------------------------------------------------------------------------------------- */

static Change *note_change(ChangeKind kind, int node) {
    CHECK(disk.changes < DISK_CHANGES, "more than %d changes", DISK_CHANGES);
    disk.change[disk.changes] = (Change){.kind = kind, .node = node};
    return &disk.change[disk.changes++];
}

static void note_name(ChangeKind kind, const char *path, const char *to, int node) {
    const char *name, *new_name = "";
    int         folder = disk.recording ? folder_of(path, &name) : -1;
    if (folder < 0) return;
    CHECK(!to || folder_of(to, &new_name) == folder, "%s is renamed into another folder", path);
    Change *c = note_change(kind, node);
    c->folder = folder;
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->to, sizeof c->to, "%s", new_name);
    apply_name(disk.now, &disk.nows, c);
}

static int node_of_fd(int fd) { return disk.recording && fd >= 0 && fd < DISK_FDS ? disk.of_fd[fd] : -1; }

int     __real_open(const char *path, int flags, ...);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __real_write(int fd, const void *data, size_t bytes);
int     __real_ftruncate(int fd, off_t bytes);
int     __real_fsync(int fd);
int     __real_rename(const char *from, const char *to);
int     __real_mkdir(const char *path, mode_t mode);
int     __real_unlink(const char *path);
int     __real_rmdir(const char *path);

int __wrap_open(const char *path, int flags, ...) {
    va_list     rest;
    const char *name;
    va_start(rest, flags);
    int mode = flags & O_CREAT ? va_arg(rest, int) : 0; /* the mode of a new file is an additional argument */
    va_end(rest);
    int node = disk.recording ? node_of(path) : -1, fd = __real_open(path, flags, mode);
    if (fd < 0 || fd >= DISK_FDS || !disk.recording) return fd;
    if (node < 0 && flags & O_CREAT && folder_of(path, &name) >= 0) note_name(CHANGE_LINK, path, NULL, node = new_node(0));
    else if (node >= 0 && flags & O_TRUNC) note_change(CHANGE_SIZE, node);
    disk.of_fd[fd] = node;
    return fd;
}
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    ssize_t n = __real_pwrite(fd, data, bytes, offset);
    if (n <= 0 || node_of_fd(fd) < 0) return n;
    Change *c = note_change(CHANGE_WRITE, node_of_fd(fd));
    c->offset = (uint64_t)offset;
    c->bytes = (uint64_t)n;
    c->data = malloc((size_t)n);
    CHECK(c->data, "no memory");
    memcpy(c->data, data, (size_t)n);
    return n;
}
ssize_t __wrap_write(int fd, const void *data, size_t bytes) {
    if (node_of_fd(fd) < 0) return __real_write(fd, data, bytes);
    off_t   at = lseek(fd, 0, SEEK_CUR);
    ssize_t n = __wrap_pwrite(fd, data, bytes, at);
    if (n > 0) lseek(fd, at + n, SEEK_SET);
    return n;
}
int __wrap_ftruncate(int fd, off_t bytes) {
    int result = __real_ftruncate(fd, bytes);
    if (result == 0 && node_of_fd(fd) >= 0) note_change(CHANGE_SIZE, node_of_fd(fd))->bytes = (uint64_t)bytes;
    return result;
}
int __wrap_fsync(int fd) {
    if (node_of_fd(fd) >= 0) note_change(CHANGE_SYNC, node_of_fd(fd));
    return __real_fsync(fd);
}
int __wrap_rename(const char *from, const char *to) {
    int result = __real_rename(from, to);
    if (result == 0) note_name(CHANGE_RENAME, from, to, node_of(from));
    return result;
}
int __wrap_mkdir(const char *path, mode_t mode) {
    int result = __real_mkdir(path, mode);
    if (result == 0 && disk.recording) note_name(CHANGE_LINK, path, NULL, new_node(1));
    return result;
}
int __wrap_unlink(const char *path) {
    int result = __real_unlink(path);
    if (result == 0) note_name(CHANGE_UNLINK, path, NULL, -1);
    return result;
}
int __wrap_rmdir(const char *path) {
    int result = __real_rmdir(path);
    if (result == 0) note_name(CHANGE_UNLINK, path, NULL, -1);
    return result;
}

static void read_folder(const char *path, int folder) {
    DIR           *d = opendir(path);
    struct dirent *e;
    char           below[512];
    CHECK(d, "cannot read %s", path);
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        int node = new_node(io_file_bytes(below) == -EISDIR);
        CHECK(disk.firsts < DISK_ENTRIES, "more than %d names", DISK_ENTRIES);
        disk.first[disk.firsts] = (Entry){.folder = folder, .node = node};
        snprintf(disk.first[disk.firsts++].name, sizeof disk.first->name, "%.40s", e->d_name);
        if (disk.node[node].is_folder) read_folder(below, node);
        else disk.node[node].bytes = (uint64_t)io_read_file(below, 1 << 28, (char **)&disk.node[node].data);
    }
    closedir(d);
}

/* Starts to record changes of files. The files that are now below the folder root are the state before all changes. */
static void disk_record(const char *root) {
    memset(&disk, 0, sizeof disk);
    memset(disk.of_fd, -1, sizeof disk.of_fd);
    snprintf(disk.root, sizeof disk.root, "%s", root);
    read_folder(root, new_node(1));
    memcpy(disk.now, disk.first, sizeof disk.first);
    disk.nows = disk.firsts;
    disk.recording = 1;
}

static void disk_free(void) {
    for (int i = 0; i < disk.nodes; i++) free(disk.node[i].data);
    for (int i = 0; i < disk.changes; i++) free(disk.change[i].data);
    disk.changes = disk.nodes = 0;
}

/* --- states after a power failure --------------------------------------------------------------------------------- */

typedef enum { FATE_LOST, FATE_THERE, FATE_TORN /* torn: some blocks of 512 bytes of a write are kept */ } Fate;

/* Returns 1 if a power failure after the first `count` changes certainly keeps change i: a later sync of its file or
 * folder precedes the failure. */
static int is_sure(int i, int count) {
    const Change *c = &disk.change[i];
    int           is_name = c->kind <= CHANGE_RENAME;
    for (int s = i + 1; s < count; s++)
        if (disk.change[s].kind == CHANGE_SYNC && disk.change[s].node == (is_name ? c->folder : c->node)) return 1;
    return 0;
}

static unsigned char *resized(unsigned char *data, uint64_t *have, uint64_t bytes) {
    if (bytes > *have) {
        data = realloc(data, bytes);
        CHECK(data, "no memory");
        memset(data + *have, 0, bytes - *have);
    }
    *have = bytes;
    return data;
}

static void apply_write(unsigned char *data, const Change *c, Fate fate, uint64_t seed) {
    for (uint64_t at = 0; at < c->bytes; at += 512) {
        uint64_t block = c->bytes - at < 512 ? c->bytes - at : 512;
        uint64_t place = seed + at;
        if (fate == FATE_TORN && XXH3_64bits(&place, sizeof place) & 1) continue;
        memcpy(data + c->offset + at, c->data + at, block);
    }
}

/* Returns the malloc'ed content of file `node` after the first `count` changes. fate [count] says which of them a power
 * failure keeps. Sets *bytes to the length. */
static unsigned char *file_after(int node, const Fate *fate, int count, uint64_t seed, uint64_t *bytes) {
    unsigned char *data = malloc(disk.node[node].bytes + 1);
    CHECK(data, "no memory");
    *bytes = disk.node[node].bytes;
    if (*bytes) memcpy(data, disk.node[node].data, *bytes);
    for (int i = 0; i < count; i++) {
        const Change *c = &disk.change[i];
        if (c->node != node || fate[i] == FATE_LOST) continue;
        if (c->kind == CHANGE_SIZE) data = resized(data, bytes, c->bytes);
        if (c->kind != CHANGE_WRITE) continue;
        if (*bytes < c->offset + c->bytes) data = resized(data, bytes, c->offset + c->bytes);
        apply_write(data, c, fate[i], seed + (uint64_t)i);
    }
    return data;
}

static uint64_t put_folder(const char *path, int folder, const Entry *list, int entries, const Fate *fate, int count,
                           uint64_t seed) {
    uint64_t hash = 0;
    for (int i = 0; i < entries; i++) {
        if (list[i].folder != folder) continue;
        char     below[512];
        uint64_t bytes = 0, part[3] = {0};
        snprintf(below, sizeof below, "%s/%s", path, list[i].name);
        part[0] = XXH3_64bits(list[i].name, strlen(list[i].name));
        if (disk.node[list[i].node].is_folder) {
            if (*path) CHECK(mkdir(below, 0777) == 0, "cannot make %s", below);
            part[1] = 1 + put_folder(*path ? below : "", list[i].node, list, entries, fate, count, seed);
        } else {
            unsigned char *data = file_after(list[i].node, fate, count, seed, &bytes);
            int            fd = *path ? io_open(below, IO_CREATE) : -1;
            if (*path) CHECK(fd >= 0 && io_write(fd, data, bytes) == 0 && io_close(fd) == 0, "cannot write %s", below);
            part[1] = XXH3_64bits(data, bytes), part[2] = bytes;
            free(data);
        }
        /* hashes of names and contents are added, so their order does not matter */
        hash += XXH3_64bits(part, sizeof part);
    }
    return hash;
}

/* Builds below `path` the files that a power failure leaves after the first `count` changes. fate [count] says which of
 * them it keeps. With path "" it builds nothing. Returns a hash of these files. */
static uint64_t disk_after(const char *path, const Fate *fate, int count, uint64_t seed) {
    Entry list[DISK_ENTRIES];
    int   entries = disk.firsts;
    memcpy(list, disk.first, sizeof list);
    for (int i = 0; i < count; i++)
        if (disk.change[i].kind <= CHANGE_RENAME && fate[i] != FATE_LOST) apply_name(list, &entries, &disk.change[i]);
    return put_folder(path, 0, list, entries, fate, count, seed);
}

#endif
