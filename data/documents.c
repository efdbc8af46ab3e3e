/* documents.c - see documents.h. */
#include "data/documents.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "data/json_line.h"
#include "data/parquet.h"
#include "data/text_file.h"

enum { CHUNK_BYTES = 1 << 16, DEEPEST_FOLDER = 32 };

typedef enum { SOURCE_TEXT, SOURCE_LINES, SOURCE_ROWS } SourceKind;
typedef struct {
    char      *path;    /* owned */
    char      *name;    /* owned: in messages */
    SourceKind kind;
    int64_t    bytes;   /* of a plain text's file; -1: known after reading */
    int        is_pipe; /* read once only; its kind is known when it is opened */
} Source;

struct Documents {
    Source     *source;  /* owned */
    int64_t     sources, room;
    const char *field;   /* borrowed; NULL: none was named */
    int         binary;
};

static const char *field_of(const Documents *d) { return d->field ? d->field : "text"; }

static int say(char fault[DOCUMENT_FAULT_CHARS], int exit_code, const char *path, const char *what) {
    snprintf(fault, DOCUMENT_FAULT_CHARS, "%s %s", path, what);
    return exit_code;
}

/* --- what a file is ----------------------------------------------------------------------------------------------- */

static int ends_in(const char *name, size_t length, const char *ending) {
    size_t n = strlen(ending);
    return length > n && strncasecmp(name + length - n, ending, n) == 0;
}

/* 1: the name says JSON Lines, -1: it says text, 0: neither. */
static int name_says_lines(const char *path) {
    static const char *const PACKED[] = {".gz", ".zst", ".xz"}, *const LINES[] = {".jsonl", ".ndjson", ".json"},
                             *const TEXT[] = {".txt", ".md", ".text"};
    size_t length = strlen(path);
    for (int i = 0; i < 3; i++)
        if (ends_in(path, length, PACKED[i])) length -= strlen(PACKED[i]);
    for (int i = 0; i < 3; i++) {
        if (ends_in(path, length, LINES[i])) return 1;
        if (ends_in(path, length, TEXT[i])) return -1;
    }
    return 0;
}

/* Whether the text begins with a line that is an object. */
static int begins_with_object(const TextFile *f) {
    char        fault[JSON_LINE_FAULT_CHARS], *text;
    size_t      bytes, length;
    const char *start = text_file_start(f, &bytes), *end = (const char *)memchr(start, '\n', bytes);
    if (bytes == 0 || start[0] != '{') return 0;
    if (!end) return bytes == TEXT_FILE_START || start[bytes - 1] == '}';
    char *line = (char *)malloc((size_t)(end - start) + 1);
    if (!line) fail(EXIT_MEMORY, "no memory for a line of JSON");
    memcpy(line, start, (size_t)(end - start));
    int is_object = json_line_text(line, (size_t)(end - start), "text", &text, &length, fault) >= 0 ||
                    strstr(fault, "has no field") || strstr(fault, "under its field");
    free(line);
    return is_object;
}

static int judge(const Documents *d, const char *name, const TextFile *f, SourceKind *kind, char fault[DOCUMENT_FAULT_CHARS]) {
    const char *what;
    char        text[300];
    int         says = d->field ? 1 : name_says_lines(name);
    switch (text_file_kind(f, &what)) {
        case TEXT_PARQUET:
            if (text_file_is_packed(f)) return say(fault, EXIT_DATA, name, "is a packed parquet file: unpack it first");
            return *kind = SOURCE_ROWS, 0;
        case TEXT_JSON:
            *kind = says > 0 || (says == 0 && begins_with_object(f)) ? SOURCE_LINES : SOURCE_TEXT;
            return 0;
        case TEXT_OTHER:
            if (!what && d->binary) return *kind = SOURCE_TEXT, 0;
            snprintf(text, sizeof text, "is %s, not text", what ? what : "binary (it holds zero bytes)");
            return say(fault, EXIT_DATA, name, text);
        default: return *kind = name_says_lines(name) > 0 ? SOURCE_LINES : SOURCE_TEXT, 0;
    }
}

/* Opens a source's text, and learns what it is. */
static int open_source(const Documents *d, const Source *s, TextFile **f, SourceKind *kind, char fault[DOCUMENT_FAULT_CHARS]) {
    char why[TEXT_FILE_FAULT_CHARS];
    int  exit_code = text_file_open(f, s->path, why);
    if (exit_code) return say(fault, exit_code, s->name, why);
    exit_code = judge(d, s->name, *f, kind, fault);
    if (exit_code == 0 && *kind == SOURCE_ROWS && s->is_pipe)
        exit_code = say(fault, EXIT_DATA, s->name, "is parquet, whose end is read first: name the file");
    if (exit_code) text_file_close(*f), *f = NULL;
    return exit_code;
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

static int look_into(const Documents *d, Source *s, char fault[DOCUMENT_FAULT_CHARS]) {
    TextFile *f = NULL;
    int       exit_code = open_source(d, s, &f, &s->kind, fault);
    if (exit_code) return exit_code;
    if (s->kind != SOURCE_TEXT || text_file_is_packed(f)) s->bytes = -1;
    text_file_close(f);
    if (s->kind != SOURCE_ROWS) return 0;
    char     why[PARQUET_FAULT_CHARS];
    Parquet *rows = NULL;
    if (!parquet_open(&rows, s->path, field_of(d), why)) return say(fault, EXIT_DATA, s->name, why);
    parquet_close(rows);
    return 0;
}

static void add_source(Documents *d, const char *path, const char *name, const struct stat *st) {
    if (d->sources == d->room) {
        d->room = d->room ? 2 * d->room : 16;
        d->source = (Source *)realloc(d->source, sizeof *d->source * (size_t)d->room);
    }
    Source source = {.path = strdup(path), .name = strdup(name), .kind = SOURCE_TEXT, .is_pipe = !S_ISREG(st->st_mode)};
    if (!d->source || !source.path || !source.name) fail(EXIT_MEMORY, "no memory for the names of the texts");
    source.bytes = source.is_pipe ? -1 : (int64_t)st->st_size;
    d->source[d->sources++] = source;
}

static int is_seen(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int add_path(Documents *d, const char *path, const char *name, int depth, char fault[DOCUMENT_FAULT_CHARS]) {
    struct stat st;
    if (stat(path, &st) < 0 || access(path, R_OK) < 0) {
        snprintf(fault, DOCUMENT_FAULT_CHARS, "cannot read %s: %s", name, strerror(errno));
        return EXIT_DATA;
    }
    if (!S_ISDIR(st.st_mode)) {
        add_source(d, path, name, &st);
        return d->source[d->sources - 1].is_pipe ? 0 : look_into(d, &d->source[d->sources - 1], fault);
    }
    struct dirent **entry = NULL;
    int             exit_code = 0, entries = depth < DEEPEST_FOLDER ? scandir(path, &entry, is_seen, alphasort) : -1;
    if (entries < 0) return say(fault, EXIT_DATA, path, depth < DEEPEST_FOLDER ? "cannot be listed" : "is a folder too deep in folders");
    for (int i = 0; i < entries; i++) {
        char inside[PATH_MAX];
        int  fits = snprintf(inside, sizeof inside, "%s/%s", path, entry[i]->d_name) < (int)sizeof inside;
        if (exit_code == 0) exit_code = fits ? add_path(d, inside, inside, depth + 1, fault) : say(fault, EXIT_DATA, path, "has names that are too long");
        free(entry[i]);
    }
    free(entry);
    return exit_code;
}

const char *documents_input_name(const char *input) { return strcmp(input, "-") == 0 ? "standard input" : input; }

int documents_find(Documents **found, char **names, int count, const char *field, int binary, char fault[DOCUMENT_FAULT_CHARS]) {
    Documents *d = (Documents *)calloc(1, sizeof *d);
    if (!d) fail(EXIT_MEMORY, "no memory for the names of the texts");
    d->field = field, d->binary = binary;
    int exit_code = 0;
    for (int i = 0; i < count && exit_code == 0; i++) {
        int64_t before = d->sources;
        exit_code = add_path(d, strcmp(names[i], "-") == 0 ? "/dev/stdin" : names[i], documents_input_name(names[i]), 0, fault);
        if (exit_code == 0 && d->sources == before) exit_code = say(fault, EXIT_DATA, names[i], "is a folder without files");
    }
    if (exit_code) documents_free(d), d = NULL;
    *found = d;
    return exit_code;
}

void documents_free(Documents *d) {
    if (!d) return;
    for (int64_t i = 0; i < d->sources; i++) free(d->source[i].path), free(d->source[i].name);
    free(d->source);
    free(d);
}

int documents_have_rows(const Documents *d) {
    for (int64_t i = 0; i < d->sources; i++)
        if (d->source[i].kind != SOURCE_TEXT) return 1;
    return 0;
}

int documents_are_empty(const Documents *d) {
    for (int64_t i = 0; i < d->sources; i++)
        if (d->source[i].bytes != 0) return 0;
    return 1;
}

/* --- pipes -------------------------------------------------------------------------------------------------------- */

static int copy_bytes(int from, int to) {
    char chunk[CHUNK_BYTES];
    for (ssize_t n; (n = read(from, chunk, sizeof chunk)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        int rc = n < 0 ? -errno : io_write(to, chunk, (size_t)n);
        if (rc < 0) return rc;
    }
    return 0;
}

int documents_keep_pipes(Documents *d, const char *folder, char fault[DOCUMENT_FAULT_CHARS]) {
    for (int64_t i = 0; i < d->sources; i++) {
        Source *s = &d->source[i];
        char   *copy = NULL;
        if (!s->is_pipe) continue;
        if (asprintf(&copy, "%s/input_%lld", folder, (long long)i) < 0) fail(EXIT_MEMORY, "no memory for the names of the texts");
        int from = io_open(s->path, IO_READ), to = from < 0 ? -1 : io_open(copy, IO_CREATE), rc = from < 0 ? from : to;
        if (to >= 0) {
            rc = copy_bytes(from, to);
            int closed = io_close(to);
            if (rc == 0) rc = closed;
        }
        if (from >= 0) io_close(from);
        free(s->path);
        s->path = copy, s->is_pipe = 0;
        snprintf(fault, DOCUMENT_FAULT_CHARS, "cannot write %s: %s", copy, strerror(-rc));
        if (rc < 0) return EXIT_IO;
        s->bytes = io_file_bytes(copy);
        int exit_code = look_into(d, s, fault);
        if (exit_code) return exit_code;
    }
    return 0;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int read_text(TextFile *f, const char *name, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]) {
    char chunk[CHUNK_BYTES], why[TEXT_FILE_FAULT_CHARS];
    int  has_begun = 0;
    for (int64_t n; (n = text_file_read(f, chunk, sizeof chunk, why)) != 0;) {
        if (n < 0) return say(fault, (int)-n, name, why);
        if (!has_begun) sink.begin(sink.with, 0), has_begun = 1;
        sink.text(sink.with, chunk, (size_t)n);
    }
    if (has_begun) sink.end(sink.with);
    return 0;
}

static void put_row(DocumentSink sink, const char *text, size_t bytes) {
    if (bytes == 0) return;
    sink.begin(sink.with, 1);
    sink.text(sink.with, text, bytes);
    sink.end(sink.with);
}

typedef struct { char *text; size_t bytes, room; } Line;

static void add_to_line(Line *l, const char *text, size_t bytes) {
    if (l->bytes + bytes > l->room) {
        l->room = 2 * (l->bytes + bytes);
        l->text = (char *)realloc(l->text, l->room);
        if (!l->text) fail(EXIT_MEMORY, "no memory for a line of JSON of %zu bytes", l->room);
    }
    if (bytes > 0) memcpy(l->text + l->bytes, text, bytes);
    l->bytes += bytes;
}

static int put_line(const Documents *d, const char *name, int64_t number, Line *l, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]) {
    char   why[JSON_LINE_FAULT_CHARS], *text = NULL;
    size_t length = 0;
    int    found = json_line_text(l->text, l->bytes, field_of(d), &text, &length, why);
    l->bytes = 0;
    if (found < 0) {
        snprintf(fault, DOCUMENT_FAULT_CHARS, "%s: line %lld %s", name, (long long)number, why);
        return EXIT_DATA;
    }
    if (found) put_row(sink, text, length);
    return 0;
}

static int read_lines(const Documents *d, TextFile *f, const char *name, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]) {
    char    chunk[CHUNK_BYTES], why[TEXT_FILE_FAULT_CHARS];
    Line    line = {.room = 0};
    int64_t n, number = 1;
    int     exit_code = 0;
    while (exit_code == 0 && (n = text_file_read(f, chunk, sizeof chunk, why)) != 0) {
        if (n < 0) {
            exit_code = say(fault, (int)-n, name, why);
            break;
        }
        for (char *at = chunk, *end = chunk + n; exit_code == 0 && at < end;) {
            char *newline = (char *)memchr(at, '\n', (size_t)(end - at));
            add_to_line(&line, at, (size_t)((newline ? newline : end) - at));
            if (line.bytes > DOCUMENT_LONGEST_LINE) {
                snprintf(fault, DOCUMENT_FAULT_CHARS, "%s: line %lld is longer than %d MiB, the most that is read", name,
                         (long long)number, DOCUMENT_LONGEST_LINE >> 20);
                exit_code = EXIT_DATA;
            } else if (newline) {
                exit_code = put_line(d, name, number++, &line, sink, fault);
            }
            at = newline ? newline + 1 : end;
        }
    }
    if (exit_code == 0 && line.bytes > 0) exit_code = put_line(d, name, number, &line, sink, fault);
    free(line.text);
    return exit_code;
}

static int read_rows(const Documents *d, const Source *s, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]) {
    char        why[PARQUET_FAULT_CHARS];
    const char *text;
    size_t      bytes;
    Parquet    *rows = NULL;
    if (!parquet_open(&rows, s->path, field_of(d), why)) return say(fault, EXIT_DATA, s->name, why);
    int found;
    while ((found = parquet_next(rows, &text, &bytes, why)) > 0) put_row(sink, text, bytes);
    parquet_close(rows);
    return found < 0 ? say(fault, EXIT_DATA, s->name, why) : 0;
}

static int read_source(const Documents *d, const Source *s, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]) {
    TextFile  *f = NULL;
    SourceKind kind;
    int        exit_code = open_source(d, s, &f, &kind, fault);
    if (exit_code) return exit_code;
    switch (kind) {
        case SOURCE_TEXT: exit_code = read_text(f, s->name, sink, fault); break;
        case SOURCE_LINES: exit_code = read_lines(d, f, s->name, sink, fault); break;
        case SOURCE_ROWS: exit_code = read_rows(d, s, sink, fault); break;
    }
    text_file_close(f);
    return exit_code;
}

int documents_read(const Documents *d, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]) {
    int exit_code = 0;
    for (int64_t i = 0; i < d->sources && exit_code == 0; i++) exit_code = read_source(d, &d->source[i], sink, fault);
    return exit_code;
}

/* --- counting ----------------------------------------------------------------------------------------------------- */

typedef struct { int64_t documents, bytes; } Count;
static void count_begin(void *with, int is_row) { (void)is_row, ((Count *)with)->documents++; }
static void count_text(void *with, const char *text, size_t bytes) { (void)text, ((Count *)with)->bytes += (int64_t)bytes; }
static void count_end(void *with) { (void)with; }

int documents_measure(const Documents *d, int64_t *documents, int64_t *bytes, char fault[DOCUMENT_FAULT_CHARS]) {
    Count count = {0, 0};
    int   exit_code = 0;
    for (int64_t i = 0; i < d->sources && exit_code == 0; i++) {
        const Source *s = &d->source[i];
        if (s->bytes < 0) exit_code = read_source(d, s, (DocumentSink){count_begin, count_text, count_end, &count}, fault);
        else count.bytes += s->bytes, count.documents += s->bytes > 0;
    }
    *documents = count.documents, *bytes = count.bytes;
    return exit_code;
}
