/* manifest_verify.c - are the files of a checkpoint still the bytes that were saved? One run of at most 1 MiB is in memory at a time. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/io.h"
#include "run/manifest.h"

static int size_ok(const char *path, const char *name, uint64_t bytes, char *fault) {
    struct stat st;
    if (lstat(path, &st) < 0) return manifest_fault(fault, errno == ENOENT ? "%s is missing" : "%s cannot be read: %s", name, strerror(errno));
    if (!S_ISREG(st.st_mode)) return manifest_fault(fault, "%s is not a plain file", name);
    if ((uint64_t)st.st_size != bytes)
        return manifest_fault(fault, "%s has %lld bytes instead of %" PRIu64, name, (long long)st.st_size, bytes);
    return 1;
}

static int runs_ok(const char *path, const char *name, const ManifestFile *file, int part, int parts, char *buffer, char *fault) {
    int fd = io_open(path, IO_READ), good = 1;
    if (fd < 0) return manifest_fault(fault, "%s cannot be opened: %s", name, strerror(-fd));
    for (int64_t i = part; good && i < file->runs; i += parts) {
        const ManifestRun *run = &file->run[i];
        int                error = io_pread(fd, buffer, run->bytes, run->offset);
        if (error)
            good = manifest_fault(fault, "%s cannot be read at byte %" PRIu64 ": %s", name, run->offset, strerror(-error));
        else if (manifest_hash(buffer, run->bytes) != run->hash)
            good = manifest_fault(fault, "%s is damaged: the hash of bytes %" PRIu64 " to %" PRIu64 " does not match", name, run->offset,
                            run->offset + run->bytes - 1);
    }
    io_close(fd);
    return good;
}

int manifest_verify(const Manifest *m, const char *folder, int part, int parts, char *fault) {
    char *path[MANIFEST_FILES] = {0}, *buffer = (char *)malloc(MANIFEST_RUN_BYTES);
    int   good = 1;
    for (int f = 0; f < MANIFEST_FILES; f++)
        if (!buffer || asprintf(&path[f], "%s/%s", folder, manifest_file_name[f]) < 0) fail(EXIT_MEMORY, "no memory to verify %s", folder);
    for (int f = 0; good && f < MANIFEST_FILES; f++) good = size_ok(path[f], manifest_file_name[f], m->file[f].bytes, fault);
    for (int f = 0; good && f < MANIFEST_FILES; f++)
        good = runs_ok(path[f], manifest_file_name[f], &m->file[f], part, parts, buffer, fault);
    for (int f = 0; f < MANIFEST_FILES; f++) free(path[f]);
    free(buffer);
    return good;
}
