/* tokenize.c - the verb `tokenize`: documents in, llm.c token shards out, a part of them held out for validation.
 *
 * Documents are read twice where some are held out: to count them, and to write them. Every n-th is held out whole; of fewer
 * than n the last part of the text, from a line on. Memory is constant. Pipes are first copied beside the output. Everything
 * is written into out/tokenize.tmp and moved to its place once all of it is there: a run that fails leaves an earlier run's
 * shards as they were, and one that succeeds leaves none of them.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "data/documents.h"
#include "data/encoder.h"
#include "data/shard.h"
#include "run/verbs.h"

#define SHARD_NAME "%s_%06lld.bin"
#define USAGE      "./train_gpt tokenize TEXT... out=FOLDER [tokenizer=PATH] [field=text] [val=0.01] [eot=first] [shard_tokens=100000000]"
#define NOTES      "tokens.json" /* what the shards hold, and that they are this verb's */

enum { MAX_SHARDS = 1000000, NAME_ROOM = 64 };

typedef enum { EOT_FIRST, EOT_LAST, EOT_NONE } Eot; /* where a document has its <|endoftext|> */

typedef struct {
    char        out[PATH_MAX - 2 * NAME_ROOM], tmp[PATH_MAX - NAME_ROOM]; /* tmp = out/tokenize.tmp */
    double      val;
    int64_t     shard_tokens;
    char      **name;           /* owned [names]: of the inputs; each borrowed */
    int         names;
    const char *field;          /* NULL: not given */
    const char *tokenizer_path; /* NULL: bytes */
    Tokenizer   tokenizer;
    Eot         eot;
    Documents  *documents;      /* owned */
} Job;

/* The shards of a split, as they fill. */
typedef struct {
    const Job   *job;
    const char  *split;
    ShardWriter *writer;
    int64_t      files, tokens, in_shard, bytes;
} Shards;

/* Ends the verb; nothing half-written stays. */
NORETURN static void give_up(const Job *job, int exit_code, const char *fmt, ...) PRINTF_LIKE(3, 4);
NORETURN static void give_up(const Job *job, int exit_code, const char *fmt, ...) {
    char    text[PATH_MAX + 512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    io_remove_tree(job->tmp);
    fail(exit_code, "tokenize: %s", text);
}

const VerbKey TOKENIZE_KEYS[] = {
    {"out", "datasets/my", NULL, "where the shards go; made if need be"},
    {"tokenizer", "datasets/bpe", "bytes",
     "tokenizer.json, vocab.json with merges.txt, NAME.tiktoken, or their folder; without it each byte is a token "
     "(model.vocab_size 256). out gets a copy, and training finds it there"},
    {"field", "body", "text", "where JSON Lines and parquet have their text"},
    {"val", "0.05", "0.01",
     "the part for validation, from 0 to below 1: whole documents, or the end of a single one; 0 writes no val shards"},
    {"eot", "last", "first", "<|endoftext|> stands before each document (first), after it (last), or nowhere (none)"},
    {"shard_tokens", "10000000", "100000000", "tokens of a file"},
    {.name = NULL},
};

/* key=value words with a plain key are options; everything else names a text. */
static int is_option(const char *word) {
    size_t key = strspn(word, "abcdefghijklmnopqrstuvwxyz_");
    return key > 0 && word[key] == '=';
}

static void parse_option(Job *job, const char *word) {
    const char *value = strchr(word, '=') + 1;
    char       *end = NULL;
    errno = 0;
    if (strncmp(word, "out=", 4) == 0) {
        size_t length = strlen(value);
        while (length > 1 && value[length - 1] == '/') length--;
        if (length == 0 || length >= sizeof job->out) fail(EXIT_CONFIG, "tokenize: out= takes the name of a folder");
        snprintf(job->out, sizeof job->out, "%.*s", (int)length, value);
        snprintf(job->tmp, sizeof job->tmp, "%s/tokenize.tmp", job->out);
    } else if (strncmp(word, "val=", 4) == 0) {
        job->val = strtod(value, &end);
        if (end == value || *end || !(job->val >= 0 && job->val < 1))
            fail(EXIT_CONFIG, "tokenize: val=%s: the part held out is a number from 0 to below 1, for example val=0.01", value);
    } else if (strncmp(word, "field=", 6) == 0) {
        if (!*value) fail(EXIT_CONFIG, "tokenize: field= takes the name of a field or column, as in field=text");
        job->field = value;
    } else if (strncmp(word, "tokenizer=", 10) == 0) {
        job->tokenizer_path = value;
    } else if (strncmp(word, "eot=", 4) == 0) {
        static const char *const WORDS[] = {"first", "last", "none"};
        int which = 0;
        while (which < 3 && strcmp(value, WORDS[which]) != 0) which++;
        if (which == 3) fail(EXIT_CONFIG, "tokenize: eot=%s: first, last or none is meant", value);
        job->eot = (Eot)which;
    } else if (strncmp(word, "shard_tokens=", 13) == 0) {
        job->shard_tokens = strtoll(value, &end, 10);
        if (end == value || *end || errno || job->shard_tokens < 1 || job->shard_tokens > INT32_MAX)
            fail(EXIT_CONFIG, "tokenize: shard_tokens=%s: a whole number from 1 to %d is meant", value, INT32_MAX);
    } else {
        fail(EXIT_CONFIG,
             "tokenize: unknown option %s: there are out=, tokenizer=, field=, val=, eot= and shard_tokens= (a file of that name is given as ./%s)",
             word, word);
    }
}

static Job parse_arguments(int argc, char **argv) {
    Job job = {.val = 0.01, .shard_tokens = 100000000};
    job.name = calloc((size_t)argc, sizeof *job.name);
    if (!job.name) fail(EXIT_MEMORY, "tokenize: no memory for the names of the inputs");
    for (int i = 1; i < argc; i++) {
        if (is_option(argv[i])) {
            parse_option(&job, argv[i]);
            continue;
        }
        if (argv[i][0] == '-' && argv[i][1]) fail(EXIT_CONFIG, "tokenize: unknown option %s; usage: " USAGE, argv[i]);
        job.name[job.names++] = argv[i];
    }
    if (job.names == 0) fail(EXIT_CONFIG, "tokenize: no text to read; usage: " USAGE);
    if (!job.out[0]) fail(EXIT_CONFIG, "tokenize: out=FOLDER is missing; usage: " USAGE);
    job.tokenizer = job.tokenizer_path ? tokenizer_create(job.tokenizer_path, BPE_MOST_IDS) : tokenizer_create("", 256);
    if (job.tokenizer_path && job.eot != EOT_NONE && job.tokenizer.file.end_of_text < 0)
        fail(EXIT_CONFIG, "tokenize: %s has no <|endoftext|> to put between texts: eot=none", job.tokenizer_path);
    return job;
}

/* Looks at every input before anything is written; then pipes are copied. */
static void find_documents(Job *job) {
    char fault[DOCUMENT_FAULT_CHARS];
    int  exit_code = documents_find(&job->documents, job->name, job->names, job->field, !job->tokenizer_path, fault);
    if (exit_code) fail(exit_code, "tokenize: %s", fault);
    if (documents_are_empty(job->documents))
        fail(EXIT_DATA, "tokenize: %s%s", job->name[0], job->names > 1 ? " and the other inputs are empty" : " is empty");
    int rc = io_mkdirs(job->out);
    if (rc == 0) rc = io_remove_tree(job->tmp); /* of a run that was killed */
    if (rc == 0) rc = io_mkdirs(job->tmp);
    if (rc < 0) fail(EXIT_IO, "tokenize: cannot write into the folder %s: %s", job->out, strerror(-rc));
    exit_code = documents_keep_pipes(job->documents, job->tmp, fault);
    if (exit_code) give_up(job, exit_code, "%s", fault);
}

/* --- shards of an earlier run ------------------------------------------------------------------------------------- */

/* The number in the name of a shard of the split; -1: the name is no such shard's. */
static int64_t shard_number(const char *name, const char *split) {
    char   again[PATH_MAX];
    size_t length = strlen(split);
    if (strncmp(name, split, length) != 0 || name[length] != '_') return -1;
    long long number = strtoll(name + length + 1, NULL, 10);
    snprintf(again, sizeof again, SHARD_NAME, split, number);
    return strcmp(name, again) == 0 ? number : -1;
}

/* Whether the file is a shard of this verb, one token per byte, or empty. */
static int is_byte_shard(const char *path) {
    uint8_t     start[SHARD_HEADER_BYTES];
    char        fault[SHARD_FAULT_CHARS];
    ShardHeader header;
    int64_t     bytes = io_file_bytes(path);
    if (bytes == 0) return 1;
    int         fd = bytes < (int64_t)sizeof start ? -1 : io_open(path, IO_READ);
    int         read = fd >= 0 && io_pread(fd, start, sizeof start, 0) == 0;
    if (fd >= 0) io_close(fd);
    if (!read || shard_parse_header(start, sizeof start, (uint64_t)bytes, &header, fault) < 0 ||
        header.data_offset == 0 || header.token_bytes != 2)
        return 0;
    Shard shard = shard_open(path);
    int   is_bytes = shard_find_foreign(&shard, 256) < 0;
    shard_close(&shard);
    return is_bytes;
}

/* Shards beside the notes are this verb's, whatever their tokens. */
static int has_notes(const Job *job) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" NOTES, job->out);
    return access(path, F_OK) == 0;
}

/* Refuses a shard's name on another's file: the verb replaces or removes only its own. Returns their number. */
static int64_t refuse_others_files(const Job *job) {
    int64_t        count = 0;
    struct dirent *entry;
    DIR           *folder = opendir(job->out);
    if (!folder && (errno == ENOENT || errno == ENOTDIR)) return 0; /* made, or refused, later */
    if (!folder)
        fail(errno == ENOMEM ? EXIT_MEMORY : EXIT_IO, "tokenize: cannot read the folder %s: %s", job->out,
             strerror(errno));
    while ((entry = readdir(folder))) {
        char path[PATH_MAX];
        if (shard_number(entry->d_name, "train") < 0 && shard_number(entry->d_name, "val") < 0) continue;
        snprintf(path, sizeof path, "%s/%.63s", job->out, entry->d_name);
        if (!has_notes(job) && !is_byte_shard(path))
            fail(EXIT_CONFIG,
                 "tokenize: %s is in the way: it is no whole shard of text as tokenize writes them; move it away, or take another out=",
                 path);
        count++;
    }
    closedir(folder);
    return count;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

NORETURN static void cannot_write(Shards *s, int error) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" SHARD_NAME, s->job->tmp, s->split, (long long)s->files);
    if (s->writer) shard_writer_destroy(s->writer);
    give_up(s->job, EXIT_IO, "cannot write %s: %s", path, strerror(-error));
}

static void finish_shard(Shards *s) {
    ShardWriter *w = s->writer;
    s->writer = NULL; /* finish frees it */
    int rc = w ? shard_writer_finish(w) : 0;
    if (rc < 0) cannot_write(s, rc);
    s->files += w != NULL;
    s->in_shard = 0;
}

static int64_t vocab_size_of(const Tokenizer *t) { return t->kind == TOKENIZER_BPE ? bpe_ids(t->file.bpe) : t->vocab_size; }

static void put_ids(void *with, const int32_t *ids, int64_t count) {
    Shards *s = (Shards *)with;
    for (int64_t n; count > 0; ids += n, count -= n) {
        char path[PATH_MAX];
        int  rc = 0;
        if (s->in_shard == s->job->shard_tokens) finish_shard(s);
        if (s->files == MAX_SHARDS)
            give_up(s->job, EXIT_CONFIG, "shard_tokens=%lld makes over %d files; give a larger one",
                    (long long)s->job->shard_tokens, MAX_SHARDS);
        snprintf(path, sizeof path, "%s/" SHARD_NAME, s->job->tmp, s->split, (long long)s->files);
        if (!s->writer) rc = shard_writer_create(&s->writer, path, vocab_size_of(&s->job->tokenizer));
        n = s->job->shard_tokens - s->in_shard < count ? s->job->shard_tokens - s->in_shard : count;
        if (rc == 0) rc = shard_writer_put(s->writer, ids, n);
        if (rc < 0) cannot_write(s, rc);
        s->in_shard += n, s->tokens += n;
    }
}

static void put_eot(Shards *s, Eot where) {
    if (s->job->tokenizer.kind == TOKENIZER_BPE && s->job->eot == where) put_ids(s, &s->job->tokenizer.file.end_of_text, 1);
}

/* What is held out: document i of n where a share of them falls on it, or all text from a byte on. */
typedef struct { int64_t documents, count, first_byte; } HeldOut;

/* The documents on their way into the shards of the two splits. */
typedef struct {
    Shards  train, val, *now;
    HeldOut held;
    Encoder encoder;
    int64_t document, bytes; /* begun and read so far */
    int     is_row;
    char    last;            /* byte read; '\n' before the first */
} Writer;

static void put_encoded(void *writer, const int32_t *ids, int64_t count) { put_ids(((Writer *)writer)->now, ids, count); }

static void put_text(Writer *w, const char *text, size_t bytes) {
    if (bytes == 0) return;
    encoder_put(&w->encoder, text, bytes);
    w->now->bytes += (int64_t)bytes, w->bytes += (int64_t)bytes;
    w->last = text[bytes - 1];
}

static int is_held(const HeldOut *h, int64_t document) {
    return h->count > 0 && (document + 1) * h->count / h->documents > document * h->count / h->documents;
}

static void begin_document(void *writer, int is_row) {
    Writer *w = (Writer *)writer;
    w->now = is_held(&w->held, w->document++) || w->bytes >= w->held.first_byte ? &w->val : &w->train;
    w->is_row = is_row, w->last = '\n';
    put_eot(w->now, EOT_FIRST);
}

/* Where the held-out text begins within these bytes of a document: at a byte; of tokens behind a line. -1: not here. */
static int64_t cut_in(const Writer *w, const char *text, size_t bytes) {
    int64_t from = w->held.first_byte - w->bytes;
    if (w->now == &w->val || from >= (int64_t)bytes) return -1;
    if (from < 0) from = 0;
    if (w->train.job->tokenizer.kind == TOKENIZER_BYTES || (from > 0 ? text[from - 1] : w->last) == '\n') return from;
    const char *newline = (const char *)memchr(text + from, '\n', bytes - (size_t)from);
    return newline ? newline + 1 - text : -1;
}

static void take_text(void *writer, const char *text, size_t bytes) {
    Writer *w = (Writer *)writer;
    int64_t cut = cut_in(w, text, bytes);
    if (cut >= 0) {
        put_text(w, text, (size_t)cut);
        encoder_end(&w->encoder);
        w->now = &w->val;
        text += cut, bytes -= (size_t)cut;
    }
    put_text(w, text, bytes);
}

/* Bytes have no token between rows: a newline ends one. */
static void end_document(void *writer) {
    Writer *w = (Writer *)writer;
    if (w->is_row && w->last != '\n' && w->now->job->tokenizer.kind == TOKENIZER_BYTES) encoder_put(&w->encoder, "\n", 1);
    encoder_end(&w->encoder);
    put_eot(w->now, EOT_LAST);
}

static HeldOut choose_held(const Job *job) {
    char    fault[DOCUMENT_FAULT_CHARS];
    int64_t documents, bytes;
    if (job->val == 0) return (HeldOut){.first_byte = INT64_MAX};
    int exit_code = documents_measure(job->documents, &documents, &bytes, fault);
    if (exit_code) give_up(job, exit_code, "%s", fault);
    if (bytes == 0) return (HeldOut){.first_byte = INT64_MAX};
    HeldOut held = {documents, (int64_t)(job->val * (double)documents), INT64_MAX};
    if (held.count > 0) return held;
    int64_t held_bytes = (int64_t)(job->val * (double)bytes);
    if (held_bytes == 0)
        give_up(job, EXIT_DATA, "%lld bytes of text are too few to hold out val=%g of them; give more text or val=0",
                (long long)bytes, job->val);
    held.first_byte = bytes - held_bytes;
    return held;
}

/* Writes all shards; returns the bytes that are no UTF-8. */
static int64_t write_shards(const Job *job, Shards *train, Shards *val) {
    char   fault[DOCUMENT_FAULT_CHARS];
    Writer w = {.train = {.job = job, .split = "train"}, .val = {.job = job, .split = "val"}, .held = choose_held(job)};
    w.encoder = (Encoder){.tokenizer = &job->tokenizer, .sink = put_encoded, .with = &w};
    int exit_code = documents_read(job->documents, (DocumentSink){begin_document, take_text, end_document, &w}, fault);
    if (exit_code) give_up(job, exit_code, "%s", fault);
    if (w.bytes == 0) give_up(job, EXIT_DATA, "%s%s", job->name[0], job->names > 1 ? " and the other inputs hold no text" : " holds no text");
    finish_shard(&w.train), finish_shard(&w.val);
    if (job->val > 0 && w.val.tokens == 0)
        give_up(job, EXIT_DATA,
                "no line begins in the last part of the text, val=%g, so nothing can be held out; give more text or val=0",
                job->val);
    encoder_free(&w.encoder);
    *train = w.train, *val = w.val;
    return w.encoder.invalid;
}

/* Copies a file of the tokenizer's folder, if it is there (or was named), into the folder of the shards. Returns whether it
 * did. name NULL: the file that was named, whatever it is called. */
static int copy_beside(const Job *job, const char *name) {
    char        from[PATH_MAX], to[PATH_MAX], *text = NULL;
    const char *path = job->tokenizer_path, *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    struct stat st;
    int         is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode),
        is_pair = strcmp(base, "vocab.json") == 0 || strcmp(base, "merges.txt") == 0;
    if (!name) name = base;
    else if (!is_folder && strcmp(name, base) != 0 && !(is_pair && strcmp(name, "tokenizer.json") != 0)) return 0;
    if (is_folder) snprintf(from, sizeof from, "%s/%s", path, name);
    else snprintf(from, sizeof from, "%.*s%s", (int)(base - path), path, name);
    snprintf(to, sizeof to, "%s/%s", job->out, name);
    if (access(from, R_OK) != 0) return 0;
    int64_t bytes = io_read_file(from, 1 << 28, &text);
    int     rc = bytes < 0 ? (int)bytes : io_replace_file(to, text, (size_t)bytes);
    free(text);
    if (rc < 0) give_up(job, EXIT_IO, "cannot copy %s to %s: %s", from, to, strerror(-rc));
    return 1;
}

/* Copies the tokenizer's files, and notes what the shards hold. */
static void write_notes(const Job *job, const Shards *train, const Shards *val) {
    static const char *const FILES[] = {"tokenizer.json", "vocab.json", "merges.txt"};
    char   text[1024], path[PATH_MAX];
    double tokens = (double)(train->tokens + val->tokens);
    int    copied = 0;
    for (int i = 0; i < 3 && job->tokenizer_path; i++) copied += copy_beside(job, FILES[i]);
    if (job->tokenizer_path && !copied) copy_beside(job, NULL);
    snprintf(path, sizeof path, "%s/" NOTES, job->out);
    snprintf(text, sizeof text,
             "{\"vocab_size\": %lld, \"train_tokens\": %lld, \"val_tokens\": %lld, \"bytes\": %lld, \"bytes_per_token\": %.6f}\n",
             (long long)vocab_size_of(&job->tokenizer), (long long)train->tokens, (long long)val->tokens,
             (long long)(train->bytes + val->bytes), (double)(train->bytes + val->bytes) / (tokens > 0 ? tokens : 1));
    int rc = io_replace_file(path, text, strlen(text));
    if (rc < 0) give_up(job, EXIT_IO, "cannot write %s: %s", path, strerror(-rc));
}

static void move_into_place(const Job *job, const char *split, int64_t files) {
    for (int64_t i = 0; i < files; i++) {
        char from[PATH_MAX], to[PATH_MAX];
        snprintf(from, sizeof from, "%s/" SHARD_NAME, job->tmp, split, (long long)i);
        snprintf(to, sizeof to, "%s/" SHARD_NAME, job->out, split, (long long)i);
        int rc = io_rename(from, to);
        if (rc < 0) give_up(job, EXIT_IO, "cannot write %s: %s", to, strerror(-rc));
    }
}

/* Removes the shards that an earlier run has left beyond ours: a glob over the folder must find this run's and no
 * others. */
static int64_t remove_stale(const Job *job, int64_t train_files, int64_t val_files) {
    int64_t        removed = 0;
    struct dirent *entry;
    DIR           *folder = opendir(job->out);
    if (!folder) give_up(job, EXIT_IO, "cannot read the folder %s: %s", job->out, strerror(errno));
    while ((entry = readdir(folder))) {
        if (shard_number(entry->d_name, "train") < train_files && shard_number(entry->d_name, "val") < val_files) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%.63s", job->out, entry->d_name);
        int rc = io_unlink(path);
        if (rc < 0) give_up(job, EXIT_IO, "cannot remove %s, left by an earlier run: %s", path, strerror(-rc));
        removed++;
    }
    closedir(folder);
    return removed;
}

static void print_split(const Job *job, const char *split, int64_t tokens, int64_t files) {
    if (files == 1) printf("  %-5s %12lld tokens  %s/" SHARD_NAME "\n", split, (long long)tokens, job->out, split, 0ll);
    if (files > 1)
        printf("  %-5s %12lld tokens  %s/%s_*.bin, %lld files\n", split, (long long)tokens, job->out, split,
               (long long)files);
}

int verb_tokenize(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a file size limit then comes back as an error to report */
    Job     job = parse_arguments(argc, argv);
    Shards  trained, held;
    int64_t earlier = refuse_others_files(&job);
    find_documents(&job);
    int64_t invalid = write_shards(&job, &trained, &held), total = trained.bytes + held.bytes;
    move_into_place(&job, "train", trained.files);
    move_into_place(&job, "val", held.files);
    int64_t removed = remove_stale(&job, trained.files, held.files);
    if (job.tokenizer_path) write_notes(&job, &trained, &held);
    io_remove_tree(job.tmp);
    io_fsync_dir(job.out);

    if (job.tokenizer.kind == TOKENIZER_BYTES)
        printf("tokenize: %lld bytes of text, one token per byte (model.vocab_size 256)\n", (long long)total);
    else
        printf("tokenize: %lld bytes of text, %.3f a token, ids from 0 to %lld\n", (long long)total,
               (double)total / (double)(trained.tokens + held.tokens), (long long)vocab_size_of(&job.tokenizer) - 1);
    print_split(&job, "train", trained.tokens, trained.files);
    print_split(&job, "val", held.tokens, held.files);
    if (earlier)
        printf("  replaced %lld shard%s of an earlier run in %s", (long long)(earlier - removed),
               earlier - removed == 1 ? "" : "s", job.out);
    if (earlier) printf(removed ? ", removed %lld\n" : "\n", (long long)removed);
    if (invalid) printf("  %lld bytes are no UTF-8; they were kept as they are\n", (long long)invalid);
    documents_free(job.documents);
    free(job.name);
    return EXIT_DONE;
}
