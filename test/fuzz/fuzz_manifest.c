/* fuzz_manifest.c - any bytes as a checkpoint's state.json. The file contains its own hash, which no mutation would
 * match. So the input is read once as it is, and once with the hash corrected, to reach the code behind that check. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void parse(const char *text, size_t bytes) {
    char     fault[MANIFEST_FAULT_BYTES] = "";
    Manifest m;
    if (manifest_parse(text, bytes, &m, fault) != MANIFEST_GOOD) {
        if (!fault[0] || !memchr(fault, 0, sizeof fault)) abort();
        return;
    }
    for (int f = 0; f < MANIFEST_FILES; f++) {
        uint64_t at = 0;
        for (int64_t r = 0; r < m.file[f].extents; r++) {
            if (m.file[f].extent[r].offset != at || m.file[f].extent[r].bytes < 1 ||
                m.file[f].extent[r].bytes > manifest_extent_bytes(m.file[f].bytes))
                abort();
            at += m.file[f].extent[r].bytes;
        }
        if (at != m.file[f].bytes) abort();
    }
    const int64_t counted[] = {m.step, m.samples, m.tokens, m.loss_scale_steps, m.guard.skips, m.guard.rollbacks, m.guard.furthest};
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        if (counted[i] < 0 || counted[i] > MANIFEST_COUNT_LIMIT) abort();
    if (m.ranks < 1 || !m.config) abort();
    manifest_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    parse((const char *)data, bytes);
    static const char mark[] = ",\n\"hash\":\"";
    char *text = malloc(bytes + 64);
    if (!text) return 0;
    memcpy(text, data, bytes);
    size_t end = bytes;
    while (end > 0 && (end + sizeof mark - 1 > bytes || memcmp(text + end, mark, sizeof mark - 1) != 0)) end--;
    if (end > 0) {
        int tail = snprintf(text + end, 64, "%s%016" PRIx64 "\"}\n", mark, manifest_hash(text, end));
        parse(text, end + (size_t)tail);
    }
    free(text);
    return 0;
}
