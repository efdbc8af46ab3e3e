/* record.c - reads and writes files of named tensors (record.h). */
#include "test/ref/record.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static const char magic[8] = {'t', 'e', 'n', 's', 'o', 'r', 's', '1'};

static size_t value_bytes(int32_t type) { return type == RECORD_F64 ? 8 : 4; }
static size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

static int64_t header_elems(const RecordHeader *h) { return h->dim[0] * h->dim[1] * h->dim[2] * h->dim[3]; }

RecordFile record_load(const char *path) {
    FILE *f = fopen(path, "rb");
    CHECK(f, "cannot open %s; tests run from the top of the checkout", path);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    rewind(f);
    RecordFile file = {malloc(size), NULL, 0};
    CHECK(file.bytes && fread(file.bytes, 1, size, f) == size, "cannot read %s", path);
    fclose(f);
    CHECK(size >= sizeof magic && memcmp(file.bytes, magic, sizeof magic) == 0, "%s holds no tensors", path);
    for (size_t at = sizeof magic; at < size;) {
        Record r;
        CHECK(size - at >= sizeof r.head, "%s is torn", path);
        memcpy(&r.head, file.bytes + at, sizeof r.head);
        r.elems = header_elems(&r.head);
        r.data = file.bytes + at + sizeof r.head;
        at += sizeof r.head + padded((size_t)r.elems * value_bytes(r.head.type));
        CHECK(at <= size, "%s is torn in %s", path, r.head.name);
        file.record = realloc(file.record, sizeof(Record) * (size_t)(file.records + 1));
        CHECK(file.record, "no memory");
        file.record[file.records++] = r;
    }
    return file;
}

void record_unload(RecordFile *file) {
    free(file->bytes);
    free(file->record);
}

const Record *record_find(const RecordFile *file, const char *name) {
    for (int i = 0; i < file->records; i++)
        if (strcmp(file->record[i].head.name, name) == 0) return &file->record[i];
    CHECK(0, "no tensor %s among the records", name);
    return NULL;
}

double record_value(const Record *r, int64_t i) {
    if (r->head.type == RECORD_F64) return ((const double *)r->data)[i];
    return r->head.type == RECORD_F32 ? (double)((const float *)r->data)[i] : (double)((const int32_t *)r->data)[i];
}

void record_begin(FILE *out) { CHECK(fwrite(magic, sizeof magic, 1, out) == 1, "cannot write records"); }

void record_append(FILE *out, const char *name, RecordType type, int dims, const int64_t *dim, const void *data) {
    RecordHeader h = {{0}, type, dims, {1, 1, 1, 1}};
    CHECK(strlen(name) < sizeof h.name, "name %s is too long", name);
    memcpy(h.name, name, strlen(name));
    memcpy(h.dim, dim, sizeof *dim * (size_t)dims);
    size_t     bytes = (size_t)header_elems(&h) * value_bytes(h.type), padding = padded(bytes) - bytes;
    const char zeros[8] = {0};
    CHECK(fwrite(&h, sizeof h, 1, out) == 1 && fwrite(data, 1, bytes, out) == bytes && fwrite(zeros, 1, padding, out) == padding,
          "cannot write %s", name);
}
