/* documents.c - see documents.h. */
#include "data/documents.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "core/terminal.h"
#include "data/json_line.h"
#include "data/parquet.h"
#include "data/split.h"

enum {
    CHUNK_BYTES = 1 << 16,
    /* ms of one wait for a pipe; the wait ends, so that a signal which arrives just before it is noticed */
    STOP_CHECK_MS = 200,
    DEEPEST_FOLDER = 32,
    SHOWN_FILES = 20, /* most files of which each is printed on a line of its own */
    SHOWN_NAMES = 5,  /* most names of files that are printed for one kind of file */
    NAME_CHARS = 1024,
    REFUSED_CHARS = 800,
    /* TRIAL_BYTES: bytes that are read of a pipe before its format is judged. If a file of rows is refused, as many
     * bytes of each of the next TRIAL_FILES files are read. The message then also names those that would be refused. */
    TRIAL_BYTES = 1 << 20,
    TRIAL_FILES = 1000
};

const char *const DOCUMENT_FORMATS[] = {"text", "jsonl", "parquet", NULL};
static const char *const FORMAT_NAMES[] = {"", "text", "JSON Lines", "parquet"};
static const char NAMES[] = "the names of the texts"; /* purpose of an allocation in the message "no memory for ..." */

typedef struct {
    char          *path;       /* path that is opened, which may be a copy of a pipe; owned */
    char          *typed;      /* path as the user typed it or would type it; owned */
    char          *name;       /* `typed` for messages, without characters that could steer a terminal; owned */
    DocumentFormat format;
    TextEncoding   encoding;   /* the detected encoding of the text */
    Packing        packing;
    /* a remark for the user about an unexpected format, or why the file is left out; NULL: none; owned */
    char          *note;
    /* bytes of the text if it is an unpacked UTF-8 file; -1 if they are known only after reading */
    int64_t        plain_bytes;
    int            is_unnamed; /* 1 for standard input and pipes: no path gives their bytes again */
    /* 1 if the source can be read only once, like a pipe; its format is then detected when it is opened */
    int            is_pipe;
    dev_t          device;     /* number of the file system; with inode, identifies the file */
    ino_t          inode;
    int            is_again;   /* 1 if an earlier source is the same file */
    int            is_named;   /* 1 if the user named the file; 0 if it was found in a folder */
    /* documents, bytes of text, and bytes of text that are not UTF-8; counted by documents_read */
    int64_t        documents, bytes, invalid;
    TextControls   controls;   /* control characters of the text, counted by documents_read */
    /* documents and bytes of text, counted by documents_measure; -1 before */
    int64_t        due_documents, due_bytes;
} Source;

/* Refusals of several files: the sentence about the first, the names of the next ones, and how many files were
 * refused. */
typedef struct {
    char    fault[DOCUMENT_FAULT_CHARS], names[REFUSED_CHARS];
    int     exit_code;
    int64_t count, named;
} Refusals;

typedef struct { Source *source; int64_t count; } Sources; /* owned [count]: the files */

struct Documents {
    /* files that are read, and files that are left out; Source.note says why a file is left out */
    Sources         read, left_out;
    DocumentOptions options;
    char           *fault;          /* borrowed [DOCUMENT_FAULT_CHARS]: gets the sentence about a fault */
    /* owned [options.skips]: how many files and folders each glob of skip= has left out */
    int64_t        *skipped;
    Refusals        refused;
    int             is_trial;       /* 1 while a file is read only to find out whether its start is refused */
};

/* A source that is being read, and the sink that gets its text. judge() may have read the start of the text already to
 * detect the format. That start is returned first. */
typedef struct {
    const Documents *documents; /* borrowed: all inputs and their options */
    Source          *source;    /* borrowed: the input that is read */
    DocumentSink     sink;      /* gets the text; a function that is NULL is not called */
    TextFile        *file;      /* owned: reads the input as text */
    /* owned [room]: the first `helds` bytes of the text, which judge() has read; `given` of them have been returned */
    char            *held;
    size_t           helds, room, given;
    /* index in `held` of the first byte that is no white space, set by look_at_first_line() */
    size_t           first;
    int64_t          trial;     /* bytes that may still be read, if only the start of the file is checked for
                                 * faults (is_trial); -1: all of the file is read */
    const char      *reason;    /* why the file must be left out of its folder; NULL if it is read */
} OpenSource;

static const char *field_of(const Documents *d) { return d->options.field ? d->options.field : "text"; }
static int is_stopped(const Documents *d) { return d->options.is_stopped && d->options.is_stopped(); }

/* Writes the sentence about a fault to d->fault: the name, followed by the formatted text. Returns exit_code. */
PRINTF_LIKE(4, 5) static int refuse(const Documents *d, int exit_code, const char *name, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int used = snprintf(d->fault, DOCUMENT_FAULT_CHARS, "%.*s", NAME_CHARS, name);
    vsnprintf(d->fault + used, (size_t)(DOCUMENT_FAULT_CHARS - used), fmt, args);
    va_end(args);
    return exit_code;
}

/* Adds a source to a list. Returns the address of the copy in the list. */
static Source *list_add(Sources *list, Source s) {
    list->source = xgrow(list->source, list->count, sizeof s, NAMES);
    list->source[list->count] = s;
    return &list->source[list->count++];
}

/* Returns a name for messages, malloc'ed: quoted with escapes if it has control characters or is not UTF-8. */
static char *shown_name(const char *name) {
    int    is_plain = 1;
    size_t length = strlen(name);
    for (size_t at = 0; at < length && is_plain;) {
        int n = utf8_bytes(name + at, length - at);
        is_plain = n > 0 && (unsigned char)name[at] >= 32 && name[at] != 127 &&
                   !(n == 2 && name[at] == '\xc2' && (unsigned char)name[at + 1] < 0xA0);
        at += n > 0 ? (size_t)n : 1;
    }
    char *shown = xmalloc(6 * length + 3, NAMES);
    if (is_plain) memcpy(shown, name, length + 1);
    else json_quote(shown, 6 * length + 3, name);
    return shown;
}

/* Puts the name of the file into the shell commands of a sentence for the user. Each command then unpacks and decodes
 * the file as this program does. */
static void name_source(const Source *s, char *sentence, size_t capacity) {
    int is_wide = s->encoding > ENCODING_UTF8 && s->encoding < ENCODING_LATIN1;
    char decode[64];
    snprintf(decode, sizeof decode, "iconv -f %s -t utf-8", is_wide ? TEXT_ENCODINGS[s->encoding - 1] : "");
    shell_read_file(sentence, capacity,
                    (ShellFile){.path = s->is_unnamed ? NULL : s->typed,
                                .unpack = PACKINGS[s->packing].command,
                                .decode = is_wide && s->format != FORMAT_TEXT ? decode : NULL});
}

/* Completes the sentence about a fault of this file. Puts the path of the file into the shell commands that the
 * sentence offers as a cure. For a file found in a folder adds the skip= that leaves it out. Returns exit_code. */
static int with_cure(const Documents *d, const Source *s, int exit_code) {
    char        glob[2 * NAME_MAX + 8] = "skip=", *fault = d->fault;
    const char *base = basename(s->typed);
    size_t      n = strlen(glob), name = strlen(s->name);
    if (name >= NAME_CHARS || strncmp(fault, s->name, name) != 0) name = 0;
    if (exit_code == EXIT_DATA || exit_code == EXIT_MEMORY) name_source(s, fault + name, DOCUMENT_FAULT_CHARS - name);
    if ((exit_code != EXIT_DATA && exit_code != EXIT_IO) || s->is_named) return exit_code;
    for (; *base && n + 2 < sizeof glob; glob[n++] = *base++)
        if (strchr("*?[]\\", *base)) glob[n++] = '\\';
    size_t    used = strlen(fault);
    ShellWord word = shell_word(glob);
    int       is_bare = word.text[0] == 's';
    snprintf(fault + used, DOCUMENT_FAULT_CHARS - used,
             is_bare ? "; skip='%s' leaves it out of its folder" : "; %s leaves it out of its folder",
             is_bare ? glob + 5 : word.text);
    return exit_code;
}

/* Keeps the fault of a refused file, so that one message names all refused files. Returns 0 if the search for files
 * continues, otherwise exit_code. */
static int refuse_later(Documents *d, const char *typed, int exit_code) {
    Refusals *r = &d->refused;
    if (exit_code != EXIT_DATA && exit_code != EXIT_IO) return exit_code;
    if (r->count++ == 0) return r->exit_code = exit_code, strcpy(r->fault, d->fault), 0;
    char  *name = shown_name(typed);
    size_t used = strlen(r->names), needed = strlen(name) + 3;
    if (r->named == r->count - 2 && used + needed < sizeof r->names)
        r->named++, snprintf(r->names + used, sizeof r->names - used, "%s%s", used ? ", " : "", name);
    free(name);
    return 0;
}

/* Writes all refusals as one sentence to d->fault. Returns the exit code of the first refusal, or 0 if there is
 * none. */
static int refusals_say(const Documents *d) {
    const Refusals *r = &d->refused;
    char           *fault = d->fault;
    if (r->count == 0) return 0;
    int used = snprintf(fault, DOCUMENT_FAULT_CHARS, "%.*s", DOCUMENT_FAULT_CHARS - REFUSED_CHARS - 80, r->fault);
    if (r->count > 1)
        used += snprintf(fault + used, (size_t)(DOCUMENT_FAULT_CHARS - used), "; %lld more %s refused: %s",
                         (long long)r->count - 1, r->count == 2 ? "file is" : "files are", r->names);
    if (r->count - 1 > r->named)
        snprintf(fault + used, (size_t)(DOCUMENT_FAULT_CHARS - used), " and %lld more",
                 (long long)(r->count - 1 - r->named));
    return r->exit_code;
}

/* --- the text of a source ----------------------------------------------------------------------------------------- */

static int refuse_stopped(const Documents *d, const Source *s) {
    return refuse(d, EXIT_STOPPED, s->name, " was not read to its end, because a signal asked the program to stop");
}

/* Reads the next bytes of the text from the file, after those in r->held. Returns how many, 0 at the end, or minus an
 * exit code. */
static int64_t read_further(OpenSource *r, char *data, size_t bytes) {
    char    why[TEXT_FILE_FAULT_CHARS];
    int64_t n = text_file_read(r->file, data, bytes, why);
    return n < 0 ? -refuse(r->documents, (int)-n, r->source->name, " %s", why) : n;
}

/* Reads the next bytes of the text, first those in r->held. Returns how many, 0 at the end, or minus an exit code. */
static int64_t read_next(OpenSource *r, char *data, size_t bytes) {
    if (is_stopped(r->documents)) return -refuse_stopped(r->documents, r->source);
    if (r->trial >= 0 && r->trial < (int64_t)bytes) return r->trial = 0;
    if (r->trial >= 0) r->trial -= (int64_t)bytes;
    size_t n = r->helds - r->given < bytes ? r->helds - r->given : bytes;
    if (n == 0) return read_further(r, data, bytes);
    memcpy(data, r->held + r->given, n);
    r->given += n;
    return (int64_t)n;
}

static void close_source(OpenSource *r) {
    text_file_close(r->file);
    free(r->held);
}

/* --- what a file is ----------------------------------------------------------------------------------------------- */

static int ends_in(const char *name, size_t length, const char *ending) {
    size_t n = strlen(ending);
    return length > n && strncasecmp(name + length - n, ending, n) == 0;
}

/* Returns 1 if a name has this ending; .gz, .zst or .xz may follow the ending. */
static int name_ends_in(const char *path, const char *ending) {
    size_t length = strlen(path), packed = 0;
    if (ends_in(path, length, ".gz") || ends_in(path, length, ".xz")) packed = 3;
    if (ends_in(path, length, ".zst")) packed = 4;
    return ends_in(path, length - packed, ending);
}

typedef enum { NAME_SILENT, NAME_ROWS, NAME_TEXT, NAME_JSON, NAME_PARQUET } NameSays;
static NameSays name_says(const char *path) {
    static const struct { const char *ending; NameSays says; } ENDINGS[] = {
        {".jsonl", NAME_ROWS}, {".ndjson", NAME_ROWS}, {".json", NAME_JSON}, {".txt", NAME_TEXT}, {".md", NAME_TEXT},
        {".text", NAME_TEXT}, {".parquet", NAME_PARQUET}};
    for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++)
        if (name_ends_in(path, ENDINGS[i].ending)) return ENDINGS[i].says;
    return NAME_SILENT;
}

/* Kinds of a text's first line that is not blank. LINE_OBJECT is a whole JSON object. LINE_OPEN begins an object and
 * does not end it. LINE_ARRAY begins with a bracket. */
typedef enum { LINE_NONE, LINE_OBJECT, LINE_OPEN, LINE_ARRAY, LINE_OTHER } FirstLine;

/* Reads the first line that is not blank and writes its kind into *line. A line ends in LF. In old files it ends in CR
 * alone, so the first line may also end at its first CR. */
static int look_at_first_line(OpenSource *s, FirstLine *line) {
    size_t  first = 0, end = 0;
    int     has_cr = 0;
    int64_t n = 1;
    for (;; end++) {
        if (end == s->helds && n > 0) {
            if (s->room - s->helds < CHUNK_BYTES) {
                s->room = 2 * s->room + CHUNK_BYTES;
                s->held = xrealloc(s->held, s->room, "a line of text");
            }
            n = read_further(s, s->held + s->helds, CHUNK_BYTES);
            if (n < 0) return (int)-n;
            s->helds += (size_t)n;
        }
        int is_end = end == s->helds;
        if (first == end && !is_end && strchr(" \t\r\n", s->held[end]) && s->held[end]) {
            first++;
            continue;
        }
        if (is_end && first == end) return *line = LINE_NONE, 0;
        s->first = first;
        *line = s->held[first] == '[' ? LINE_ARRAY : s->held[first] == '{' ? LINE_OPEN : LINE_OTHER;
        if (*line != LINE_OPEN) return 0;
        int ends_by_cr = !is_end && s->held[end] == '\r' && !has_cr;
        if (!ends_by_cr && !is_end && s->held[end] != '\n') {
            const char *next = (const char *)memchr(s->held + end, '\n', s->helds - end), *cr = NULL;
            if (!has_cr)
                cr = (const char *)memchr(s->held + end, '\r', next ? (size_t)(next - s->held) - end : s->helds - end);
            if (cr) next = cr;
            end = (next ? (size_t)(next - s->held) : s->helds) - 1;
            if (s->helds - first > DOCUMENT_LONGEST_LINE)
                return refuse(s->documents, EXIT_DATA, s->source->name, ": the first line is JSON and longer than %d "
                              "MiB, the limit: format=text reads the file as text", DOCUMENT_LONGEST_LINE >> 20);
            continue;
        }
        if (json_line_is_object(s->held + first, end - first) == 1) return *line = LINE_OBJECT, 0;
        if (!ends_by_cr) return 0;
        has_cr = 1;
    }
}

/* Returns 1 if the text begins as JSON over several lines does. Then a line break follows the first bracket, or a name
 * or an object does. */
static int begins_json(const OpenSource *s) {
    size_t at = s->first + 1;
    if (at >= s->helds) return 0;
    if (s->held[at] == '\n' || s->held[at] == '\r') return 1;
    while (at < s->helds && (s->held[at] == ' ' || s->held[at] == '\t')) at++;
    return at < s->helds && (s->held[at] == '"' || s->held[at] == '{');
}

/* Returns the note on a text that begins with a JSON object but is not JSON Lines. The note has the command that makes
 * rows of the text. The command depends on what follows the object in the first line. */
static const char *note_on_objects(const OpenSource *s) {
    size_t at = s->first, end;
    for (end = at; end < s->helds && s->held[end] != '\n';) end++;
    for (size_t i = at; i < end; i++) {
        if (s->held[i] != '}') continue;
        size_t next = i + 1;
        int    commas = 0;
        for (; next < end && s->held[next] && strchr(" \t\r,", s->held[next]); next++) commas += s->held[next] == ',';
        int is_last = next == end && commas > 0, is_between = next < end && s->held[next] == '{';
        if ((!is_last && !is_between) || json_line_is_object(s->held + at, i + 1 - at) != 1) continue;
        return is_last  ? "JSON objects with commas behind them, not rows ($ sed 's/,[[:space:]]*$//' < FILE > "
                          "NEW.jsonl makes rows of them)"
               : commas ? "JSON objects with commas between them, not rows ($ sed '1s/^/[/; $s/,*[[:space:]]*$/]/' < "
                          "FILE | jq -c '.[]' > NEW.jsonl makes rows of them)"
                        : "several JSON values on a line, not rows ($ jq -c . < FILE > NEW.jsonl makes rows of them)";
    }
    return "one JSON value over several lines, not rows ($ jq -c . < FILE > NEW.jsonl makes a row of it)";
}

/* Refuses a file of a kind that is not text. If the file was found in a folder, sets r->reason, so that it is left out
 * instead. */
static int refuse_kind(OpenSource *r, TextKind kind, const char *what) {
    const Documents *d = r->documents;
    const Source    *s = r->source;
    int is_rows = d->options.field || d->options.format == FORMAT_JSONL ||
                  (d->options.format == FORMAT_FOUND && name_says(s->typed) == NAME_ROWS);
    /* no refusal here, because the parser of rows names the first bad row */
    if (kind == TEXT_BINARY && is_rows) return 0;
    if (s->is_named && d->options.format == FORMAT_TEXT) return 0;
    if ((kind == TEXT_OTHER || kind == TEXT_BINARY) && !s->is_named) return r->reason = what, EXIT_DATA;
    if (kind == TEXT_SHARD && s->packing != PACKED_NOT)
        return refuse(d, EXIT_DATA, s->name, " is %s: $ %s < PACKED > NEW.bin unpacks it, and data.train= takes "
                      "NEW.bin", what, PACKINGS[s->packing].command);
    return refuse(d, EXIT_DATA, s->name, " is %s%s", what,
                  kind != TEXT_BINARY  ? strchr(what, ':') ? "" : ": name a file of text instead"
                  : strstr(what, "$ ") ? "; format=text reads its bytes all the same"
                                       : ", not text: format=text reads its bytes all the same, encoding= text in "
                                         "UTF-16 or UTF-32");
}

/* Endings of file names that suggest another format than plain text. The file is read as text, with this remark for the
 * user. */
static const struct { const char *ending, *note; } FORMS[] = {
    {".csv", "a table, read as text with its commas: field= and format= read JSON Lines and parquet"},
    {".tsv", "a table, read as text with its tabs: field= and format= read JSON Lines and parquet"},
    {".html", "its tags are read as text"}, {".htm", "its tags are read as text"},
    {".xml", "its tags are read as text"},
    {".warc", "its headers are read as text"}, {".mbox", "its headers are read as text"},
    {".eml", "its headers are read as text"}};

/* Detects how a source is read. Returns 0 or an exit code. With an exit code and r->reason set, the file is left out of
 * its folder. */
static int judge(OpenSource *r) {
    const Documents       *d = r->documents;
    const DocumentOptions *o = &d->options;
    Source                *s = r->source;
    const char *what;
    NameSays    says = name_says(s->typed);
    TextKind    kind = text_file_kind(r->file, &what);
    FirstLine   line = LINE_OTHER;
    TextForm    form = text_file_form(r->file);
    int         exit_code = 0;
    s->format = o->format, s->encoding = form.encoding, s->packing = form.packing;
    if (kind == TEXT_PARQUET && o->format == FORMAT_JSONL)
        return refuse(d, EXIT_DATA, s->name, " is parquet, and format=jsonl is given: leave format= out");
    int is_parquet = kind == TEXT_PARQUET || (says == NAME_PARQUET && (kind == TEXT_PLAIN || kind == TEXT_BINARY));
    /* the ending .parquet alone is enough, because parquet_open refuses a file that is not parquet */
    if (is_parquet && o->format == FORMAT_FOUND) s->format = FORMAT_PARQUET;
    if (s->format == FORMAT_PARQUET && s->packing != PACKED_NOT)
        return refuse(d, EXIT_DATA, s->name, " is a packed parquet file: $ %s < PACKED > NEW.parquet unpacks it",
                      PACKINGS[s->packing].command);
    if (s->format == FORMAT_PARQUET && o->encoding > ENCODING_UTF8)
        return refuse(d, EXIT_DATA, s->name, " is parquet, whose text is UTF-8: leave encoding= out");
    if (s->format == FORMAT_PARQUET) return 0;
    /* finds JSON Lines with control characters, which are refused later, with the number of the line */
    if (kind == TEXT_BINARY && o->format == FORMAT_FOUND) exit_code = look_at_first_line(r, &line);
    if (exit_code == 0 && kind != TEXT_PLAIN && kind != TEXT_PARQUET && line != LINE_OBJECT)
        exit_code = refuse_kind(r, kind, what);
    if (exit_code || s->format != FORMAT_FOUND) return exit_code;
    s->format = FORMAT_TEXT;
    if (!o->field && says == NAME_ROWS) s->format = FORMAT_JSONL;
    if (!o->field && (says == NAME_TEXT || says == NAME_ROWS)) return 0;
    if (line != LINE_OBJECT) exit_code = look_at_first_line(r, &line);
    if (exit_code) return exit_code;
    if (o->field && line == LINE_OTHER)
        return refuse(d, EXIT_DATA, s->name, " is plain text, and field=%s is for rows (JSON Lines, parquet): leave "
                      "field= out, or name only files with rows", o->field);
    if (o->field || line == LINE_OBJECT) s->format = FORMAT_JSONL;
    else if (line == LINE_OPEN && (says == NAME_JSON || begins_json(r)))
        s->note = xstrdup(note_on_objects(r), NAMES);
    else if (line == LINE_ARRAY && (says == NAME_JSON || begins_json(r))) {
        const char *rows = json_line_array_rows(r->held + r->first, r->helds - r->first);
        s->note = xformat(NAMES, "a JSON array, not rows (%s)", rows);
    }
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS && !s->note && s->format == FORMAT_TEXT; i++)
        if (name_ends_in(s->typed, FORMS[i].ending)) s->note = xstrdup(FORMS[i].note, NAMES);
    return 0;
}

/* Opens a source and detects its format if that is not known. Returns 0. On a fault closes the source and returns an
 * exit code. */
static int open_source(const Documents *d, Source *s, OpenSource *r) {
    char why[TEXT_FILE_FAULT_CHARS];
    *r = (OpenSource){.documents = d, .source = s, .trial = d->is_trial ? TRIAL_BYTES : -1};
    IoOpen how = s->is_pipe ? IO_READ_ANY : IO_READ;
    int    exit_code = text_file_open(&r->file, s->path, how, d->options.encoding, why);
    if (exit_code) return with_cure(d, s, refuse(d, exit_code, s->name, " %s", why));
    if (s->format == FORMAT_FOUND) exit_code = judge(r);
    if (exit_code && !r->reason) with_cure(d, s, exit_code);
    if (exit_code == 0 && s->format == FORMAT_PARQUET && s->is_pipe)
        exit_code = refuse(d, EXIT_DATA, s->name,
                           " is parquet from a pipe, and parquet is read from its end: give the path of the file");
    if (exit_code) close_source(r);
    return exit_code;
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

/* Returns 1 if a text has white space and nothing else. Reads the text up to the first other character. */
static int holds_only_space(OpenSource *r) {
    char    chunk[CHUNK_BYTES];
    int64_t all = 0, n;
    for (; (n = read_next(r, chunk, sizeof chunk)) > 0; all += n)
        for (int64_t i = 0; i < n; i++)
            if (!(chunk[i] == ' ' || (chunk[i] >= 9 && chunk[i] <= 13))) return 0;
    /* a fault also gives 0, because it is reported later, when this text is read again */
    return n == 0 && all > 0;
}

/* Detects the format of a source. Returns 0 or an exit code. If the file must be left out of its folder, returns 0 and
 * sets *reason. */
static int look_into(const Documents *d, Source *s, const char **reason) {
    OpenSource r;
    int        exit_code = open_source(d, s, &r);
    if ((*reason = r.reason)) return 0;
    if (exit_code) return exit_code;
    if (s->format == FORMAT_TEXT && s->packing == PACKED_NOT && s->encoding == ENCODING_UTF8)
        s->plain_bytes -= text_file_form(r.file).mark;
    else s->plain_bytes = -1;
    int is_blank = s->format == FORMAT_TEXT && d->options.format != FORMAT_TEXT && holds_only_space(&r);
    close_source(&r);
    if (is_blank && !s->is_named) return *reason = "nothing but white space", 0;
    if (is_blank)
        return refuse(d, EXIT_DATA, s->name, " holds nothing but white space: name a file with text; format=text reads "
                      "its bytes all the same");
    if (s->format != FORMAT_PARQUET) return 0;
    char     why[PARQUET_FAULT_CHARS];
    Parquet *rows = NULL;
    if (!parquet_open(&rows, s->path, field_of(d), why))
        return with_cure(d, s, refuse(d, EXIT_DATA, s->name, " %s", why));
    parquet_close(rows);
    return 0;
}

/* Adds a path to the list of files that are left out. Returns 0, the exit code with which the search for files
 * continues. */
static int leave_out(Documents *d, const char *path, const char *reason, Packing packing) {
    list_add(&d->left_out, (Source){.typed = xstrdup(path, NAMES),
                                    .name = shown_name(path),
                                    .note = xstrdup(reason, NAMES),
                                    .packing = packing});
    return 0;
}

/* Writes why a source was left out. Shell commands in the text read `path`. Returns out. */
static const char *reason_of(const Source *s, const char *path, char out[NAME_CHARS]) {
    snprintf(out, NAME_CHARS, "%s", s->note);
    shell_read_file(out, NAME_CHARS, (ShellFile){.path = path, .unpack = PACKINGS[s->packing].command});
    return out;
}

static void free_source(Source *s) { free(s->path), free(s->typed), free(s->name), free(s->note); }

/* Returns 1 for the names that editors and downloads give to unfinished files and spare copies. */
static int is_unfinished(const char *name) {
    static const char *const ENDINGS[] = {".part", ".partial", ".crdownload", ".download", ".tmp", ".swp", ".bak", "~"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++)
        if (ends_in(name, length, ENDINGS[i])) return 1;
    return length > 2 && name[0] == '#' && name[length - 1] == '#';
}

/* A folder, and in `above` the chain of folders that contain it. Serves to detect a link to one of them, which would be
 * followed for ever. */
typedef struct Above { const struct Above *above; dev_t device; ino_t inode; int depth; size_t root; } Above;

static int add_file(Documents *d, const char *path, const char *typed, const struct stat *st, int is_named) {
    const char *reason = NULL;
    int         is_plain = S_ISREG(st->st_mode), is_standard = strcmp(path, "/dev/stdin") == 0;
    if (!is_named && !is_plain) return leave_out(d, path, "a pipe, a socket or a device", PACKED_NOT);
    if ((S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)) && !is_standard)
        return refuse(d, EXIT_DATA, typed, " is a device, not a file of text: name a file, or - for standard input");
    int is_pipe = !is_plain;
    if (is_plain && st->st_size == 0) { /* a file that gives bytes all the same, as those of /proc do, is like a pipe */
        char byte;
        int  fd = io_open(path, IO_READ);
        is_pipe = fd >= 0 && read(fd, &byte, 1) > 0;
        if (fd >= 0) io_close(fd);
    }
    Source *s = list_add(&d->read, (Source){.path = xstrdup(path, NAMES),
                                            .typed = xstrdup(typed, NAMES),
                                            .name = shown_name(typed),
                                            .device = st->st_dev,
                                            .inode = st->st_ino,
                                            .is_named = is_named,
                                            .is_unnamed = !is_plain || is_standard,
                                            .is_pipe = is_pipe,
                                            .due_documents = -1,
                                            .due_bytes = -1});
    s->plain_bytes = is_pipe ? -1 : (int64_t)st->st_size;
    int exit_code = is_pipe ? 0 : look_into(d, s, &reason);
    if (!reason) return exit_code;
    leave_out(d, path, reason, s->packing);
    free_source(&d->read.source[--d->read.count]);
    return 0;
}

static int add_path(Documents *d, const char *path, const char *typed, const Above *above);

static int add_entry(Documents *d, const char *path, const char *entry, const Above *here) {
    char        inside[PATH_MAX];
    const char *slash = path[0] && path[strlen(path) - 1] == '/' ? "" : "/";
    if (strcmp(entry, ".") == 0 || strcmp(entry, "..") == 0) return 0;
    if (snprintf(inside, sizeof inside, "%s%s%s", path, slash, entry) >= (int)sizeof inside)
        return refuse(d, EXIT_DATA, path,
                      " holds a file whose path is longer than %d bytes: shorten its name or move it", PATH_MAX - 1);
    if (entry[0] == '.') return leave_out(d, inside, "hidden", PACKED_NOT);
    if (is_unfinished(entry)) return leave_out(d, inside, "by its name unfinished or a spare copy", PACKED_NOT);
    for (int i = 0; i < d->options.skips; i++) {
        const char *glob = d->options.skip[i];
        char        reason[NAME_CHARS];
        /* a glob matches the last part of a path, or the path inside the folder that the user named */
        if (fnmatch(glob, entry, 0) != 0 && fnmatch(glob, inside + here->root, 0) != 0) continue;
        snprintf(reason, sizeof reason, "skip=%.900s", glob);
        d->skipped[i]++;
        return leave_out(d, inside, reason, PACKED_NOT);
    }
    int exit_code = add_path(d, inside, inside, here);
    return exit_code ? refuse_later(d, inside, exit_code) : 0;
}

static int add_path(Documents *d, const char *path, const char *typed, const Above *above) {
    struct stat st, out;
    if (stat(path, &st) < 0 || access(path, R_OK) < 0) {
        const char *error = io_error_text(errno);
        Source      s = {.typed = (char *)typed, .name = shown_name(typed), .is_named = !above};
        snprintf(d->fault, DOCUMENT_FAULT_CHARS, "cannot read %.*s: %s", NAME_CHARS, s.name, error);
        with_cure(d, &s, EXIT_DATA);
        free(s.name);
        return EXIT_DATA;
    }
    if (!S_ISDIR(st.st_mode)) return add_file(d, path, typed, &st, !above);
    Above here = {above, st.st_dev, st.st_ino, above ? above->depth + 1 : 0,
                  above ? above->root : strlen(path) + (path[strlen(path) - 1] != '/')};
    for (const Above *a = above; a; a = a->above)
        if (a->device == st.st_dev && a->inode == st.st_ino)
            return leave_out(d, path, "a link to a folder above it", PACKED_NOT);
    if (above && d->options.out && stat(d->options.out, &out) == 0 && out.st_dev == st.st_dev &&
        out.st_ino == st.st_ino)
        return leave_out(d, path, "the folder of out=", PACKED_NOT);
    if (here.depth >= DEEPEST_FOLDER)
        return refuse(d, EXIT_DATA, path,
                      " is a folder more than %d folders below the one that you named, the limit: name it as an input "
                      "of its own",
                      DEEPEST_FOLDER);
    struct dirent **entry = NULL;
    int             exit_code = 0, entries = scandir(path, &entry, NULL, alphasort);
    if (entries < 0) return refuse(d, EXIT_DATA, path, " cannot be listed: %s", io_error_text(errno));
    for (int i = 0; i < entries; i++) {
        if (exit_code == 0) exit_code = add_entry(d, path, entry[i]->d_name, &here);
        free(entry[i]);
    }
    free(entry);
    return exit_code;
}

static int compare_files(const void *a, const void *b) {
    const Source *const *x = (const Source *const *)a, *const *y = (const Source *const *)b;
    if ((*x)->device != (*y)->device) return (*x)->device < (*y)->device ? -1 : 1;
    if ((*x)->inode != (*y)->inode) return (*x)->inode < (*y)->inode ? -1 : 1;
    return *x < *y ? -1 : *x > *y;
}

/* Leaves out each file that is already earlier in the list, under the same or another name. */
static void leave_out_again(Documents *d) {
    char     reason[NAME_CHARS];
    int64_t  kept = 0, count = d->read.count;
    Source  *source = d->read.source, **by_file = xmalloc(sizeof *by_file * (size_t)(count + 1), NAMES);
    for (int64_t i = 0; i < count; i++) by_file[i] = &source[i];
    qsort(by_file, (size_t)count, sizeof *by_file, compare_files);
    for (int64_t i = 1, first = 0; i < count; i++) {
        if (by_file[i]->device != by_file[first]->device || by_file[i]->inode != by_file[first]->inode) first = i;
        if (i == first) continue;
        snprintf(reason, sizeof reason, "the same file as %s", by_file[first]->typed);
        leave_out(d, by_file[i]->typed, reason, PACKED_NOT);
        by_file[i]->is_again = 1;
    }
    for (int64_t i = 0; i < count; i++)
        if (source[i].is_again) free_source(&source[i]);
        else source[kept++] = source[i];
    d->read.count = kept;
    free(by_file);
}

const char *documents_input_name(const char *input) { return strcmp(input, "-") == 0 ? "standard input" : input; }

int documents_find(Documents **found, char **names, int count, const DocumentOptions *options,
                   char fault[DOCUMENT_FAULT_CHARS]) {
    Documents *d = xcalloc(1, sizeof *d, NAMES);
    d->options = *options, d->fault = fault;
    d->skipped = xcalloc((size_t)options->skips + 1, sizeof *d->skipped, NAMES);
    int exit_code = 0;
    /* refuses options that contradict each other, because one of them would be ignored silently */
    if (options->field && options->format == FORMAT_TEXT)
        exit_code = refuse(d, EXIT_CONFIG, "field=", "%.100s is for rows, and format=text has no rows: leave one of "
                           "the two out", options->field);
    else if (options->format == FORMAT_PARQUET && options->encoding > ENCODING_UTF8)
        exit_code = refuse(d, EXIT_CONFIG, "encoding=", "%s is given with format=parquet, whose text is always UTF-8: "
                           "leave encoding= out", TEXT_ENCODINGS[options->encoding - 1]);
    for (int i = 0; i < count && exit_code == 0; i++) {
        const char *name = documents_input_name(names[i]);
        int64_t     before = d->read.count + d->refused.count, lefts = d->left_out.count;
        char        reason[NAME_CHARS];
        exit_code = add_path(d, strcmp(names[i], "-") == 0 ? "/dev/stdin" : names[i], name, NULL);
        int is_empty = exit_code == 0 && d->read.count + d->refused.count == before;
        if (is_empty && d->left_out.count == lefts)
            exit_code = refuse(d, EXIT_DATA, names[i], " is a folder without files: name one that has some");
        else if (is_empty) {
            const Source *left = &d->left_out.source[lefts];
            exit_code = refuse(d, EXIT_DATA, names[i], " is a folder without a file that can be read: %lld files were "
                               "left out, the first %s (%s); name a folder with files of text",
                               (long long)(d->left_out.count - lefts), left->name,
                               reason_of(left, left->typed, reason));
        }
        if (exit_code) exit_code = refuse_later(d, name, exit_code);
    }
    if (exit_code == 0) exit_code = refusals_say(d);
    if (exit_code == 0) leave_out_again(d);
    for (int i = 0; i < options->skips && exit_code == 0; i++)
        if (d->skipped[i] == 0)
            exit_code = refuse(d, EXIT_CONFIG, "skip=", "%.200s leaves nothing out: no file or folder inside the given "
                               "folders has this name or path; correct it or leave it out", options->skip[i]);
    if (exit_code) documents_free(d), d = NULL;
    *found = d;
    return exit_code;
}

static void free_sources(Sources *list) {
    for (int64_t i = 0; i < list->count; i++) free_source(&list->source[i]);
    free(list->source);
}

void documents_free(Documents *d) {
    if (!d) return;
    free_sources(&d->read), free_sources(&d->left_out);
    free(d->skipped);
    free(d);
}

int documents_have_rows(const Documents *d) {
    for (int64_t i = 0; i < d->read.count; i++)
        if (d->read.source[i].format != FORMAT_TEXT) return 1;
    return 0;
}

int documents_are_empty(const Documents *d) {
    for (int64_t i = 0; i < d->read.count; i++)
        if (d->read.source[i].plain_bytes != 0) return 0;
    return 1;
}

/* --- pipes -------------------------------------------------------------------------------------------------------- */

/* Copies the bytes of a pipe up to its end, or until at least `bytes` are copied. Returns 0 at the end of the pipe, 1
 * before it, or an error. */
static int copy_bytes(const Documents *d, int from, int to, int64_t bytes) {
    char          chunk[CHUNK_BYTES];
    struct pollfd input = {.fd = from, .events = POLLIN};
    while (bytes > 0) {
        int     ready = poll(&input, 1, STOP_CHECK_MS);
        ssize_t n = ready > 0 ? read(from, chunk, sizeof chunk) : ready;
        if (is_stopped(d)) return -ECANCELED;
        if (ready == 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) continue;
        int rc = n < 0 ? -errno : io_write(to, chunk, (size_t)n);
        if (rc < 0 || n == 0) return rc;
        bytes -= n;
    }
    return 1;
}

/* Judges a pipe by its first bytes, which the file start.path holds, because the writer of the pipe may never end.
 * Returns 0, or an exit code if they are not of a kind that is read. A file that cannot be opened without its end, such
 * as a packed one, gives 0 here and is judged when all of it is there. */
static int judge_start(const Documents *d, Source start) {
    OpenSource r;
    int        exit_code = open_source(d, &start, &r);
    if (exit_code == 0) close_source(&r);
    free(start.note);
    return start.encoding == ENCODING_FOUND ? 0 : exit_code;
}

int documents_keep_pipes(Documents *d, const char *folder, char fault[DOCUMENT_FAULT_CHARS]) {
    d->fault = fault;
    for (int64_t i = 0; i < d->read.count; i++) {
        Source *s = &d->read.source[i], start = *s;
        if (!s->is_pipe) continue;
        char *copy = xformat(NAMES, "%s/input_%lld", folder, (long long)i);
        int   from = io_open(s->path, IO_READ_LATER), exit_code = 0;
        if (from < 0) {
            free(copy);
            snprintf(fault, DOCUMENT_FAULT_CHARS, "cannot read %.*s: %s", NAME_CHARS, s->name, io_error_text(from));
            return EXIT_DATA;
        }
        int to = io_open(copy, IO_CREATE), rc = to;
        if (to >= 0) {
            rc = copy_bytes(d, from, to, TRIAL_BYTES);
            start.path = copy;
            if (rc > 0) exit_code = judge_start(d, start);
            if (rc > 0 && exit_code == 0) rc = copy_bytes(d, from, to, INT64_MAX);
            int closed = io_close(to);
            if (rc == 0) rc = closed;
        }
        io_close(from);
        if (exit_code) return free(copy), exit_code;
        free(s->path);
        s->path = copy, s->is_pipe = 0;
        if (rc == -ECANCELED) return refuse_stopped(d, s);
        if (rc < 0) return refuse(d, EXIT_IO, "cannot write ", "%s: %s", copy, io_error_text(rc));
        s->plain_bytes = io_file_bytes(copy);
        const char *reason;
        exit_code = look_into(d, s, &reason);
        if (exit_code) return exit_code;
    }
    return 0;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Passes bytes of a document to the sink, and counts them for its source. */
static void put_text(const OpenSource *r, const char *text, size_t bytes) {
    r->source->bytes += (int64_t)bytes;
    if (r->source->format == FORMAT_TEXT) text_count_controls(&r->source->controls, text, bytes);
    if (r->sink.text) r->sink.text(r->sink.with, text, bytes);
}

static void begin_document(const OpenSource *r, int is_row) {
    r->source->documents++;
    if (r->sink.begin) r->sink.begin(r->sink.with, is_row);
}

/* Refuses a text if over 1 % of its bytes are not valid in its encoding, because it then has another encoding. `of` is
 * the number of bytes of the whole text. */
static int refuse_invalid(const OpenSource *r, int64_t of) {
    const Documents *d = r->documents;
    Source          *s = r->source;
    int64_t          at, invalid = text_file_invalid(r->file, &at);
    if (s->format != FORMAT_PARQUET) s->invalid = invalid;
    const long long wrong = s->invalid, all = of, first = at;
    if (s->invalid * 100 <= of || (s->format == FORMAT_TEXT && d->options.format == FORMAT_TEXT)) return 0;
    if (s->encoding == ENCODING_LATIN1)
        return refuse(d, EXIT_DATA, s->name, ": %lld of %lld bytes are not Latin-1, the first at byte %lld; at most 1 "
                      "%% may be: give the encoding it has, or leave encoding= out (for Windows-1252: $ iconv -f "
                      "CP1252 -t UTF-8 < FILE > NEW)", wrong, all, first);
    if (s->format == FORMAT_PARQUET)
        return refuse(d, EXIT_DATA, s->name, ": %lld of the %lld bytes of its text are not UTF-8, over 1 %%: write the "
                      "column as UTF-8", wrong, all);
    /* 1 if the message suggests Latin-1. Any bytes are valid Latin-1, so text of another script would be read as
     * Latin-1 without a fault. But in Latin-1 text few bytes are above 127. */
    const int may_be_latin1 = s->invalid * 4 < s->bytes;
    return refuse(d, EXIT_DATA, s->name, ": %lld of %lld bytes are not UTF-8, the first at byte %lld; at most 1 %% may "
                  "be: give the encoding it has, encoding=%sutf-16le, utf-16be, utf-32le or utf-32be (for another%s: "
                  "$ iconv -f NAME -t utf-8 < FILE > NEW); format=text keeps the bytes as they are", wrong, all, first,
                  may_be_latin1 ? "latin-1, " : "", may_be_latin1 ? "" : ", such as GB18030, SHIFT_JIS or KOI8-R");
}

/* Reads a source as one document of plain text. Refuses it if over 1 % of the text are control characters, even if its
 * start looked like text. This also finds text in another encoding than the given one. */
static int read_text(OpenSource *r) {
    const Documents *d = r->documents;
    char             chunk[CHUNK_BYTES];
    Source          *s = r->source;
    int              exit_code = 0;
    for (int64_t n; exit_code == 0 && (n = read_next(r, chunk, sizeof chunk)) != 0;) {
        if (n < 0) return (int)-n;
        if (s->documents == 0) begin_document(r, 0);
        put_text(r, chunk, (size_t)n);
        /* may refuse before the rest is read, because the rest cannot lower the number of invalid bytes */
        if (s->plain_bytes > s->bytes) exit_code = refuse_invalid(r, s->plain_bytes);
    }
    if (exit_code == 0) exit_code = refuse_invalid(r, s->bytes);
    if (exit_code == 0 && text_is_binary(&s->controls, s->bytes) && d->options.format != FORMAT_TEXT) {
        const char *cure = text_controls_cure(&s->controls);
        exit_code = refuse(d, EXIT_DATA, s->name, ": %lld of its %lld bytes, read as %s, are control characters, and "
                           "1 %% is the most that a text holds: %s; format=text reads its bytes all the same",
                           (long long)s->controls.all, (long long)s->bytes, TEXT_ENCODINGS[s->encoding - 1],
                           cure ? cure : "damaged, no text, or in another encoding (encoding=)");
    }
    if (s->documents > 0 && exit_code == 0 && r->sink.end) r->sink.end(r->sink.with);
    return exit_code;
}

static void put_row(const OpenSource *r, const char *text, size_t bytes) {
    if (bytes == 0) return;
    begin_document(r, 1);
    put_text(r, text, bytes);
    if (r->sink.end) r->sink.end(r->sink.with);
}

static int put_line(const OpenSource *r, int64_t number, char *line, size_t bytes) {
    char   why[JSON_LINE_FAULT_CHARS], *text = NULL;
    size_t length = 0;
    int    found = json_line_text(line, bytes, field_of(r->documents), &text, &length, why);
    if (found < 0)
        return refuse(r->documents, EXIT_DATA, r->source->name, ": line %lld %s", (long long)number, why);
    if (found) put_row(r, text, length);
    return 0;
}

static int read_lines(OpenSource *r) {
    char    chunk[CHUNK_BYTES], *line = NULL;
    size_t  bytes = 0, room = 0; /* bytes in `line`, and its capacity */
    int64_t n = 0, number = 1;
    int     exit_code = 0;
    while (exit_code == 0 && (n = read_next(r, chunk, sizeof chunk)) > 0) {
        for (char *at = chunk, *end = chunk + n; exit_code == 0 && at < end;) {
            char  *newline = (char *)memchr(at, '\n', (size_t)(end - at));
            size_t part = (size_t)((newline ? newline : end) - at);
            if (bytes + part > room) line = xrealloc(line, room = 2 * (bytes + part), "a line of JSON");
            if (part > 0) memcpy(line + bytes, at, part);
            bytes += part;
            if (bytes > DOCUMENT_LONGEST_LINE)
                exit_code = refuse(r->documents, EXIT_DATA, r->source->name,
                                   ": line %lld is longer than %d MiB, the limit: divide it into several rows",
                          (long long)number,
                                   DOCUMENT_LONGEST_LINE >> 20);
            else if (newline) exit_code = put_line(r, number++, line, bytes), bytes = 0;
            at = newline ? newline + 1 : end;
        }
    }
    if (n < 0) exit_code = (int)-n;
    if (exit_code == 0 && bytes > 0 && r->trial != 0) exit_code = put_line(r, number, line, bytes);
    free(line);
    return exit_code ? exit_code : refuse_invalid(r, r->source->bytes);
}

static int read_rows(const OpenSource *r) {
    char             why[PARQUET_FAULT_CHARS];
    const char      *text;
    size_t           bytes;
    const Documents *d = r->documents;
    Source          *s = r->source;
    Parquet         *rows = NULL;
    if (!parquet_open(&rows, s->path, field_of(d), why)) return refuse(d, EXIT_DATA, s->name, " %s", why);
    int found;
    while ((found = parquet_next(rows, &text, &bytes, why)) > 0 && !is_stopped(d)) {
        s->invalid += utf8_invalid(text, bytes);
        put_row(r, text, bytes);
    }
    parquet_close(rows);
    if (found > 0) return refuse_stopped(d, s);
    return found < 0 ? refuse(d, EXIT_DATA, s->name, " %s", why) : refuse_invalid(r, s->bytes);
}

static int read_source(const Documents *d, Source *s, DocumentSink sink) {
    OpenSource r;
    s->documents = s->bytes = s->invalid = 0, s->controls = (TextControls){0, 0, 0};
    int exit_code = open_source(d, s, &r);
    if (exit_code) return exit_code;
    r.sink = sink;
    error_set_input(s->name);
    exit_code = s->format == FORMAT_JSONL     ? read_lines(&r)
                : s->format == FORMAT_PARQUET ? read_rows(&r)
                                              : read_text(&r);
    error_set_input(NULL);
    close_source(&r);
    return with_cure(d, s, exit_code);
}

/* Reads source i. If it is refused, also tries the starts of later JSON Lines files. Adds the names of those that are
 * refused, too, to the message. */
static int read_or_name_others(Documents *d, int64_t i, DocumentSink sink) {
    char *fault = d->fault, other[DOCUMENT_FAULT_CHARS];
    int   exit_code = read_source(d, &d->read.source[i], sink);
    if (exit_code != EXIT_DATA) return exit_code;
    refuse_later(d, d->read.source[i].typed, exit_code);
    d->is_trial = 1, d->fault = other;
    for (int64_t k = i + 1; k < d->read.count && k - i <= TRIAL_FILES; k++) {
        Source *s = &d->read.source[k];
        if (s->format == FORMAT_JSONL && !s->is_pipe && read_source(d, s, (DocumentSink){.with = NULL}) == EXIT_DATA)
            refuse_later(d, s->typed, EXIT_DATA);
    }
    d->fault = fault;
    return refusals_say(d);
}

int documents_read(Documents *d, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]) {
    int exit_code = 0;
    d->fault = fault;
    for (int64_t i = 0; i < d->read.count && exit_code == 0; i++) {
        const Source *s = &d->read.source[i];
        exit_code = read_or_name_others(d, i, sink);
        if (exit_code == 0 && s->due_bytes >= 0 && (s->bytes != s->due_bytes || s->documents != s->due_documents))
            exit_code = refuse(d, EXIT_DATA, s->name, " was changed while it was read: it had %lld documents of %lld "
                               "bytes, then %lld of %lld; copy it, and read the copy", (long long)s->due_documents,
                               (long long)s->due_bytes, (long long)s->documents, (long long)s->bytes);
    }
    return exit_code;
}

int documents_measure(Documents *d, int64_t *documents, int64_t *bytes, char fault[DOCUMENT_FAULT_CHARS]) {
    int exit_code = 0;
    d->fault = fault;
    *documents = *bytes = 0;
    for (int64_t i = 0; i < d->read.count && exit_code == 0; i++) {
        Source *s = &d->read.source[i];
        if (s->plain_bytes < 0) exit_code = read_or_name_others(d, i, (DocumentSink){.with = NULL});
        s->due_bytes = s->plain_bytes < 0 ? s->bytes : s->plain_bytes;
        s->due_documents = s->plain_bytes < 0 ? s->documents : s->plain_bytes > 0;
        *bytes += s->due_bytes, *documents += s->due_documents;
    }
    return exit_code;
}

/* --- what was read ------------------------------------------------------------------------------------------------ */

/* Writes how a file was read, such as "JSON Lines, utf-8, gzip". Returns out. */
static char *kind_of(const Source *s, char out[NAME_CHARS]) {
    snprintf(out, NAME_CHARS, "%s, %s%s%s%s%s", FORMAT_NAMES[s->format], TEXT_ENCODINGS[s->encoding - 1],
             s->packing != PACKED_NOT ? ", " : "", s->packing != PACKED_NOT ? PACKINGS[s->packing].name : "",
             s->note ? ", " : "", s->note ? s->note : "");
    return out;
}

static void print_counts(int64_t documents, int64_t bytes, int64_t invalid, FILE *out) {
    fprintf(out, ", %lld document%s, %lld bytes", (long long)documents, plural(documents), (long long)bytes);
    if (invalid) fprintf(out, ", %lld of them not valid in the encoding", (long long)invalid);
}

/* Counts of the files that are read in the same way, or that are left out for the same reason. */
typedef struct { char kind[NAME_CHARS]; int64_t files, documents, bytes, invalid; const char *name[SHOWN_NAMES]; } Kind;

/* Prints a line for each kind of files in a list. With are_read the line of the most frequent kind names no files. */
static void print_kinds(const Sources *list, int are_read, FILE *out) {
    Kind   *kinds = NULL;
    char    name[NAME_CHARS];
    int64_t count = 0, most = are_read ? 0 : -1;
    for (int64_t i = 0; i < list->count; i++) {
        const Source *s = &list->source[i];
        int64_t       at = 0;
        if (are_read) kind_of(s, name);
        else snprintf(name, sizeof name, "%s", s->note);
        shell_read_file(name, sizeof name, (ShellFile){.path = "FILE", .unpack = PACKINGS[s->packing].command});
        while (at < count && strcmp(kinds[at].kind, name) != 0) at++;
        if (at == count) {
            kinds = xrealloc(kinds, sizeof *kinds * (size_t)++count, "the kinds of the texts");
            kinds[at] = (Kind){.files = 0};
            strcpy(kinds[at].kind, name);
        }
        Kind *k = &kinds[at];
        if (k->files < SHOWN_NAMES) k->name[k->files] = s->name;
        k->files++;
        k->documents += s->documents, k->bytes += s->bytes, k->invalid += s->invalid;
    }
    for (int64_t i = 1; are_read && i < count; i++)
        if (kinds[i].files > kinds[most].files) most = i;
    for (int64_t i = 0; i < count; i++) {
        const Kind *k = &kinds[i];
        if (are_read) {
            fprintf(out, "  read     %lld file%s: %s", (long long)k->files, plural(k->files), k->kind);
            print_counts(k->documents, k->bytes, k->invalid, out);
        } else {
            fprintf(out, "  left out %lld (%s)", (long long)k->files, k->kind);
        }
        int64_t shown = i == most ? 0 : k->files < SHOWN_NAMES ? k->files : SHOWN_NAMES;
        for (int64_t n = 0; n < shown; n++) print_plain(out, "%s%s", n ? ", " : ": ", k->name[n]);
        if (i != most && k->files > shown) fprintf(out, " and %lld more", (long long)(k->files - shown));
        fputc('\n', out);
    }
    free(kinds);
}

void documents_print(const Documents *d, FILE *out) {
    char kind[NAME_CHARS];
    if (d->read.count + d->left_out.count > SHOWN_FILES) {
        print_kinds(&d->read, 1, out), print_kinds(&d->left_out, 0, out);
        return;
    }
    for (int64_t i = 0; i < d->read.count; i++) {
        const Source *s = &d->read.source[i];
        name_source(s, kind_of(s, kind), sizeof kind);
        print_plain(out, "  read     %s: %s", s->name, kind);
        print_counts(s->documents, s->bytes, s->invalid, out);
        fputc('\n', out);
    }
    for (int64_t i = 0; i < d->left_out.count; i++) {
        const Source *s = &d->left_out.source[i];
        print_plain(out, "  left out %s (%s)\n", s->name, reason_of(s, s->typed, kind));
    }
}

int64_t documents_write_json(const Documents *d, DocumentList which, const char *between, FILE *out) {
    const Sources *list = which == DOCUMENTS_READ ? &d->read : &d->left_out;
    char           reason[NAME_CHARS];
    for (int64_t i = 0; i < list->count; i++) {
        const Source *s = &list->source[i];
        fprintf(out, "%s{\"path\": ", i ? between : "");
        json_print_string(out, s->typed);
        /* writes a path that is not UTF-8 also in hexadecimal, because JSON must be UTF-8 */
        if (utf8_invalid(s->typed, strlen(s->typed)) > 0) {
            fputs(", \"path_hex\": \"", out);
            for (const char *c = s->typed; *c; c++) fprintf(out, "%02x", (unsigned char)*c);
            fputc('"', out);
        }
        if (which == DOCUMENTS_LEFT_OUT) {
            fputs(", \"left_out\": ", out);
            json_print_string(out, reason_of(s, s->typed, reason));
        } else {
            fprintf(out, ", \"format\": \"%s\", \"encoding\": \"%s\", \"packing\": \"%s\", \"documents\": %lld, "
                    "\"bytes\": %lld, \"invalid_bytes\": %lld", DOCUMENT_FORMATS[s->format - 1],
                    TEXT_ENCODINGS[s->encoding - 1], PACKINGS[s->packing].name, (long long)s->documents,
                    (long long)s->bytes, (long long)s->invalid);
        }
        fputc('}', out);
    }
    return list->count;
}
