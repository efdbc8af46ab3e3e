/* manifest_verify.c - compares the files of a checkpoint with the hashes of the saved bytes. Each thread holds 1 MiB of
 * an extent. */
#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "core/io.h"
#include "run/checkpoint/manifest.h"

int manifest_unread(char *fault, const char *name, int error) {
    switch (error) {
        case ENOENT: case ENOTDIR: return manifest_fault(fault, "%s is missing", name);
        case ENODATA: return manifest_fault(fault, "%s ends too early", name);
        case EFBIG: return manifest_fault(fault, "%s is too long", name);
        case ENOMEM: return manifest_fault(fault, MANIFEST_NO_MEMORY);
        default: return manifest_fault(fault, MANIFEST_UNREADABLE "%s: %s", name, io_error_text(error));
    }
}

static int size_ok(const char *path, const char *name, uint64_t bytes, char *fault) {
    struct stat st;
    if (lstat(path, &st) < 0) return manifest_unread(fault, name, errno);
    if (!S_ISREG(st.st_mode)) return manifest_fault(fault, "%s %s", name, io_error_text(io_kind(st.st_mode)));
    if ((uint64_t)st.st_size != bytes)
        return manifest_fault(fault, "%s has %lld bytes instead of %" PRIu64, name, (long long)st.st_size, bytes);
    return 1;
}

/* Checks one extent. Returns 1, or 0 with a fault. */
static int run_ok(int fd, const char *name, const ManifestExtent *run, char *buffer, char *fault) {
    XXH3_state_t *hash = XXH3_createState();
    int           error = hash ? 0 : -ENOMEM;
    uint64_t      got = 0;
    if (hash) XXH3_64bits_reset(hash);
    for (uint64_t at = 0, n; !error && at < run->bytes; at += n) {
        n = run->bytes - at < MANIFEST_EXTENT_BYTES ? run->bytes - at : MANIFEST_EXTENT_BYTES;
        error = io_pread(fd, buffer, n, run->offset + at);
        if (!error) XXH3_64bits_update(hash, buffer, n);
    }
    if (hash) got = XXH3_64bits_digest(hash), XXH3_freeState(hash);
    if (error) return manifest_unread(fault, name, -error);
    if (got == run->hash) return 1;
    return manifest_fault(fault, "%s is damaged: the hash of bytes %" PRIu64 " to %" PRIu64 " does not match", name, run->offset,
                          run->offset + run->bytes - 1);
}

typedef struct {
    void (*progress)(void *ctx);
    void *ctx;
} Listener;

static int runs_ok(const char *path, const char *name, const ManifestFile *file, int part, int parts, Listener listener,
                   char *fault) {
    int fd = io_open(path, IO_READ), good = 1;
    if (fd < 0) return manifest_unread(fault, name, -fd);
    int64_t mine = file->extents > part ? (file->extents - part - 1) / parts + 1 : 0;
    #pragma omp parallel if (mine > 1)
    {
        char  wrong[MANIFEST_FAULT_BYTES] = "";
        char *buffer = malloc(MANIFEST_EXTENT_BYTES);
        if (!buffer) manifest_fault(wrong, MANIFEST_NO_MEMORY);
        #pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < mine; i++) {
            if (!wrong[0]) run_ok(fd, name, &file->extent[part + i * parts], buffer, wrong);
            if (listener.progress && omp_get_thread_num() == 0) listener.progress(listener.ctx);
        }
        #pragma omp critical(manifest_verify)
        if (wrong[0]) good = manifest_fault(fault, "%s", wrong);
        free(buffer);
    }
    io_close(fd);
    return good;
}

int manifest_verify(const Manifest *m, const char *folder, int part, int parts, void (*progress)(void *ctx), void *ctx,
                    char *fault) {
    char *path[MANIFEST_FILES] = {0};
    int   good = 1;
    for (int f = 0; good && f < MANIFEST_FILES; f++)
        if (asprintf(&path[f], "%s/%s", folder, manifest_file_name[f]) < 0)
            path[f] = NULL, good = manifest_fault(fault, MANIFEST_NO_MEMORY);
    for (int f = 0; good && f < MANIFEST_FILES; f++)
        good = m->file[f].extents == 0 || size_ok(path[f], manifest_file_name[f], m->file[f].bytes, fault);
    for (int f = 0; good && f < MANIFEST_FILES; f++)
        good = m->file[f].extents == 0 || runs_ok(path[f], manifest_file_name[f], &m->file[f], part, parts, (Listener){progress, ctx}, fault);
    for (int f = 0; f < MANIFEST_FILES; f++) free(path[f]);
    return good;
}
