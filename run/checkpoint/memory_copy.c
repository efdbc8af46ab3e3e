/* memory_copy.c - see memory_copy.h. */
#include "run/checkpoint/memory_copy.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/io.h"

/* --- names -------------------------------------------------------------------------------------------------------- */

MemoryName memory_name(int rank, int slot, int is_next) {
    MemoryName name;
    snprintf(name.text, sizeof name.text, "rank_%05d.%d%s", rank, slot, is_next ? ".next" : "");
    return name;
}

int memory_is_name(const char *name) {
    int rank, slot, used = 0;
    return sscanf(name, "rank_%9d.%1d%n", &rank, &slot, &used) == 2 && rank >= 0 && slot >= 0 && slot < MEMORY_SLOTS &&
           (name[used] == 0 || strcmp(name + used, ".next") == 0);
}

Path memory_folder(const CheckpointState *state) {
    char        whole[PATH_MAX];
    const char *dir = state->config->run.dir, *found = realpath(dir, whole) ? whole : dir;
    return path_of("%s/train_gpt-%u-%016" PRIx64 "-%s", state->config->checkpoint.memory_dir, (unsigned)geteuid(),
                   manifest_hash(found, strlen(found)), comm_host(state->comm, comm_rank(state->comm)));
}

/* The ranks of a host have consecutive numbers (comm/world.c). */
MemoryHost memory_host(Comm *c, int rank) {
    MemoryHost h = {0};
    for (int r = 0; r < comm_size(c); r++) {
        if (r == 0 || strcmp(comm_host(c, r), comm_host(c, r - 1)) != 0) {
            h.hosts++;
            if (r > rank) continue;
            h.host = h.hosts - 1, h.ranks = 0, h.place = rank - r;
        }
        h.ranks += strcmp(comm_host(c, r), comm_host(c, rank)) == 0;
    }
    return h;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static const uint64_t HASHED_FROM = offsetof(MemoryHeader, session);

static uint64_t meta_used(uint64_t runs, uint64_t head_bytes) {
    return sizeof(MemoryHeader) + runs * sizeof(WrittenExtent) + head_bytes;
}

uint64_t memory_meta_bytes(uint64_t runs, uint64_t head_bytes) {
    return (meta_used(runs, head_bytes) + MEMORY_PAGE - 1) / MEMORY_PAGE * MEMORY_PAGE;
}

void memory_seal(void *base, MemoryHeader h, const WrittenExtent *run, const char *head) {
    char *at = (char *)base + sizeof h;
    memcpy(at, run, h.runs * sizeof *run);
    memcpy(at + h.runs * sizeof *run, head, h.head_bytes);
    memcpy(h.magic, MEMORY_MAGIC, sizeof h.magic);
    memcpy(base, &h, sizeof h);
    h.hash = manifest_hash((char *)base + HASHED_FROM, meta_used(h.runs, h.head_bytes) - HASHED_FROM);
    memcpy((char *)base + offsetof(MemoryHeader, hash), &h.hash, sizeof h.hash);
}

/* Returns 1 if the extents are in the two large files, and their lengths sum to data_bytes. */
static int are_runs(const WrittenExtent *run, uint64_t runs, uint64_t data_bytes) {
    uint64_t left = data_bytes;
    for (uint64_t i = 0; i < runs; i++) {
        if (run[i].file > FILE_OPTIMIZER || run[i].extent.bytes < 1 || run[i].extent.bytes > left ||
            run[i].extent.offset > INT64_MAX)
            return 0;
        left -= run[i].extent.bytes;
    }
    return left == 0;
}

int memory_parse(char *bytes, uint64_t count, uint64_t file_bytes, MemoryCopy *copy, char *fault) {
    static const char zeros[sizeof ((MemoryHeader *)0)->magic] = {0};
    MemoryHeader      h;
    memset(copy, 0, sizeof *copy);
    fault[0] = 0;
    if (count < sizeof h) return manifest_fault(fault, "it is cut short (%" PRIu64 " bytes)", count);
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, zeros, sizeof zeros) == 0) return 0;
    if (memcmp(h.magic, MEMORY_MAGIC, sizeof h.magic) != 0) return manifest_fault(fault, "it is no copy of this program's");
    if (h.data_offset > count || h.data_offset > file_bytes || h.data_bytes != file_bytes - h.data_offset ||
        h.runs > h.data_offset / sizeof(WrittenExtent) || h.head_bytes > h.data_offset ||
        meta_used(h.runs, h.head_bytes) > h.data_offset ||
        h.hash != manifest_hash(bytes + HASHED_FROM, meta_used(h.runs, h.head_bytes) - HASHED_FROM))
        return manifest_fault(fault, "its head is damaged: the hash does not match");
    copy->bytes = bytes;
    copy->header = (const MemoryHeader *)(const void *)bytes;
    copy->run = (const WrittenExtent *)(const void *)(bytes + sizeof h);
    copy->head = bytes + sizeof h + h.runs * sizeof *copy->run;
    if (h.step < 0 || h.step > MANIFEST_COUNT_LIMIT || h.rank < 0 || h.rank >= h.ranks || !are_runs(copy->run, h.runs, h.data_bytes))
        return manifest_fault(fault, "its head is of another program's");
    return 1;
}

static char *read_meta(int fd, uint64_t file_bytes, uint64_t *count, char *fault) {
    MemoryHeader h;
    int          error = io_pread(fd, &h, sizeof h, 0);
    *count = !error && h.data_offset >= sizeof h && h.data_offset <= file_bytes && h.data_offset <= MEMORY_META_LIMIT ? h.data_offset
                                                                                                                    : sizeof h;
    char *bytes = malloc(*count);
    if (bytes && !error) error = io_pread(fd, bytes, *count, 0);
    if (bytes && !error) return bytes;
    free(bytes);
    manifest_fault(fault, "cannot read it: %s", io_error_text(error ? -error : ENOMEM));
    return NULL;
}

/* Does not read a file that belongs to another user, because the folder may be writable for everybody. */
int memory_read(const char *path, MemoryCopy *copy, char *fault) {
    struct stat st;
    uint64_t    count = 0;
    int         fd = io_open(path, IO_READ), good = 0;
    memset(copy, 0, sizeof *copy);
    fault[0] = 0;
    if (fd < 0) return manifest_fault(fault, "cannot read it: %s", io_error_text(fd));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) manifest_fault(fault, "it is another user's");
    else {
        char *bytes = read_meta(fd, (uint64_t)st.st_size, &count, fault);
        good = bytes && memory_parse(bytes, count, (uint64_t)st.st_size, copy, fault);
        if (bytes && !good) free(bytes), memset(copy, 0, sizeof *copy);
    }
    io_close(fd);
    return good;
}

void memory_free(MemoryCopy *copy) {
    free(copy->bytes);
    memset(copy, 0, sizeof *copy);
}

int memory_each_run(const char *path, const MemoryCopy *copy, void (*put)(void *ctx, WrittenExtent run, const void *bytes),
                    void *ctx, char *fault) {
    uint64_t at = copy->header->data_offset, most = 1;
    for (uint64_t i = 0; i < copy->header->runs; i++)
        if (copy->run[i].extent.bytes > most) most = copy->run[i].extent.bytes;
    char *bytes = malloc(most);
    int   fd = io_open(path, IO_READ), error = fd < 0 ? fd : bytes ? 0 : -ENOMEM;
    fault[0] = 0;
    for (uint64_t i = 0; !error && !fault[0] && i < copy->header->runs; i++) {
        WrittenExtent run = copy->run[i];
        error = io_pread(fd, bytes, run.extent.bytes, at);
        if (!error && manifest_hash(bytes, run.extent.bytes) != run.extent.hash)
            manifest_fault(fault, "it is damaged: the hash of bytes %" PRIu64 " to %" PRIu64 " does not match", at,
                           at + run.extent.bytes - 1);
        else if (!error && put) put(ctx, run, bytes);
        at += run.extent.bytes;
    }
    if (error) manifest_fault(fault, "cannot read it: %s", io_error_text(error));
    if (fd >= 0) io_close(fd);
    free(bytes);
    return !fault[0];
}

/* --- whose they are ----------------------------------------------------------------------------------------------- */

int memory_write_run_id(const char *run_dir, const char *run_id) {
    char line[48];
    int  bytes = snprintf(line, sizeof line, "%s\n", run_id);
    return io_replace_file(path_of("%s/run_id", run_dir).text, line, (size_t)bytes);
}

int memory_read_run_id(const char *run_dir, char run_id[40]) {
    char   *text;
    Path    path = path_of("%s/run_id", run_dir);
    int64_t bytes = io_read_file(path.text, 40, &text);
    io_expect_file(path.text, bytes);
    int     good = bytes > 1 && bytes <= 40 && text[bytes - 1] == '\n' && strspn(text, "0123456789abcdef") == (size_t)bytes - 1;
    if (good) snprintf(run_id, 40, "%.*s", (int)bytes - 1, text);
    if (bytes >= 0) free(text);
    return good;
}
