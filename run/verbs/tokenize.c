/* tokenize.c - the verb `tokenize`: reads documents and writes token shards of llm.c, some of them held out for
 * validation.
 *
 * If documents are held out, all are read twice: to count them, and to write them. Every n-th document is held out
 * whole. If there are fewer than n documents, the end of the text is held out, from the beginning of a line on. Memory
 * is constant. Pipes are first copied into the folder of the output. Everything is written into out/tokenize.tmp and
 * moved into place at the end. A call that fails or is interrupted leaves the shards of an earlier call unchanged, and
 * one that succeeds removes them.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/format.h"
#include "core/terminal.h"
#include "data/documents.h"
#include "data/tokenizer.h"
#include "data/shard.h"
#include "data/tokens_json.h"
#include "run/guard/lock.h"
#include "run/guard/requests.h"
#include "run/verbs/verbs.h"

#define SHARD_NAME "%s_%06lld.bin"

enum { MAX_SHARDS = 1000000, CUT_WINDOW = 1 << 20, COPIED_BYTES = 1 << 28 };
enum { NOTES_ROOM = 1 << 12 }; /* most bytes of tokens.json */

enum { EOT_FIRST, EOT_LAST, EOT_NONE }; /* place of <|endoftext|> in each document */

static struct {
    const char *out_key;        /* value of out=, with slashes at its end */
    Path        out, tmp;       /* folder of the shards, and its subfolder tokenize.tmp */
    RunLock    *lock;           /* owned: lock of the folder `out` */
    double      val;
    int64_t     shard_tokens;
    char      **name;           /* [names] paths of the inputs; borrowed */
    int         names;
    const char *tokenizer_path; /* path of the tokenizer; NULL if tokens are bytes */
    Tokenizer   tokenizer;
    int         eot;            /* place of <|endoftext|>: EOT_FIRST, EOT_LAST or EOT_NONE */
    Documents  *documents;      /* owned */
} job;

/* The token shards of one split (train or val) that are being written. */
typedef struct {
    const char  *split;
    ShardWriter *writer;
    int64_t      files, tokens, in_shard, bytes;
} Shards;
static Shards train = {.split = "train"}, val = {.split = "val"};

/* Returns the path of shard `number` of a split in `folder`: the output folder, or its temporary folder. */
static Path shard_path(Path folder, const Shards *s, int64_t number) {
    return path_of("%s/" SHARD_NAME, folder.text, s->split, (long long)number);
}

static const char *const PLACES[] = {[EOT_FIRST] = "first", [EOT_LAST] = "last", [EOT_NONE] = "none", NULL};
static const VerbKey TOKENIZE_KEYS[] = {
    {"out", "datasets/my", NULL, "where the shards go; made if need be", .text = &job.out_key},
    {"tokenizer", "datasets/bpe", NULL,
     "tokenizer.json, vocab.json with merges.txt, or their folder; NAME.tiktoken; without it each byte is a token "
     "(model.vocab_size 256). out gets a copy, and training finds it there",
     .text = &job.tokenizer_path, .unset = "bytes"},
    INPUT_KEYS,
    {"val", "0.05", "0.01",
     "the part for validation, from 0 to below 1: whole documents, or the end of a single one; 0 writes no val shards",
     .number = &job.val, .most = 0.999},
    {"eot", "last", "first",
     "<|endoftext|> stands before each document (first), after it (last), or nowhere (none)",
     .choice = &job.eot, .words = PLACES},
    {"shard_tokens", "10000000", "100000000", "tokens of a file", .count = &job.shard_tokens, .least = 1,
     .most = INT32_MAX},
    {.name = NULL},
};

/* Refuses an out= folder that has another tokenizer, because new tokens would silently be read as other text. */
static void refuse_other_tokenizer(void) {
    char beside[PATH_MAX], why[TOKENIZER_WHY_CHARS];
    if (!tokenizer_beside(shard_path(job.out, &train, 0).text, beside, sizeof beside)) return;
    Tokenizer there = tokenizer_create(beside, BPE_MOST_IDS);
    if (tokenizer_difference(&there, &job.tokenizer, why))
        fail(EXIT_CONFIG,
             "tokenize: %s differs from the tokenizer of this command (%s): give tokenizer=%s or another out=, or move "
             "that file away",
             beside, why, shell_word(job.out.text).text);
    tokenizer_destroy(&there);
}

/* Checks every input before anything is written. Then copies pipes. */
static void find_documents(void) {
    char fault[DOCUMENT_FAULT_CHARS];
    verb_inputs.is_stopped = signals_stop;
    verb_inputs.out = job.out.text;
    int exit_code = documents_find(&job.documents, job.name, job.names, &verb_inputs, fault);
    if (exit_code) fail(exit_code, "tokenize: %s", fault);
    if (documents_are_empty(job.documents))
        fail(EXIT_DATA, "tokenize: %s%s", documents_input_name(job.name[0]),
             job.names > 1 ? " and the other inputs are empty" : " is empty");
    signals_install(); /* from here on a request to stop removes unfinished files first */
    int rc = io_remove_tree(job.tmp.text); /* the folder may be left by a killed call */
    if (rc == 0) rc = io_mkdirs(job.tmp.text);
    if (rc < 0) fail(EXIT_IO, "tokenize: cannot write into the folder %s: %s", job.out.text, io_error_text(rc));
    lock_unfinished(job.lock, job.tmp.text);
    exit_code = documents_keep_pipes(job.documents, job.tmp.text, fault);
    if (exit_code) fail(exit_code, "tokenize: %s", fault);
}

/* --- shards of an earlier run ------------------------------------------------------------------------------------- */

/* Returns the number in the file name of a shard of the split, or -1 for another name. */
static int64_t shard_number(const char *name, const char *split) {
    char   again[PATH_MAX];
    size_t length = strlen(split);
    if (strncmp(name, split, length) != 0 || name[length] != '_') return -1;
    long long number = strtoll(name + length + 1, NULL, 10);
    snprintf(again, sizeof again, SHARD_NAME, split, number);
    return strcmp(name, again) == 0 ? number : -1;
}

/* Returns the number of tokens in a shard that this verb wrote, 0 for an empty file, or -1 for any other file.
 * vocab_size is from the tokens.json in its folder. If tokens are bytes, every value is checked. */
static int64_t own_tokens(const char *path, int64_t vocab_size) {
    char        sentence[SHARD_SENTENCE_CHARS];
    ShardHeader header;
    if (io_file_bytes(path) == 0) return 0;
    if (shard_look(path, 0, &header, sentence) || header.data_offset == 0 ||
        (header.token_bytes != 2 && vocab_size == 256))
        return -1;
    if (vocab_size != 256) return header.tokens;
    Shard shard = shard_open(path, 0);
    int   is_bytes = shard_find_foreign(&shard, 256) < 0;
    shard_close(&shard);
    return is_bytes ? header.tokens : -1;
}

static DIR *open_folder(const char *path) {
    DIR *folder = opendir(path);
    if (!folder)
        fail(errno == ENOMEM ? EXIT_MEMORY : EXIT_IO, "tokenize: cannot read the folder %s: %s", path,
             io_error_text(errno));
    return folder;
}

/* Ends the verb because its output would replace or remove a file that is not its own. */
NORETURN static void refuse_folder(const char *what, const char *why) {
    struct stat st;
    int         i = 2; /* number of a folder that does not exist yet */
    while (i < 10000 && lstat(path_of("%s-%d", job.out.text, i).text, &st) == 0) i++;
    fail(EXIT_CONFIG, "tokenize: %s is in the way: %s; take another folder, out=%s, or move it away", what, why,
         shell_word(path_of("%s-%d", job.out.text, i).text).text);
}

/* Refuses an out/tokenize.tmp that has other files than those of a killed run. Returns 1 if the folder exists. */
static int refuse_others_folder(void) {
    struct stat    st;
    struct dirent *entry;
    if (lstat(job.tmp.text, &st) < 0) return 0;
    if (!S_ISDIR(st.st_mode))
        refuse_folder(job.tmp.text, "it is not a folder, and tokenize needs a folder of this name");
    DIR *folder = open_folder(job.tmp.text);
    while ((entry = readdir(folder))) {
        char   name[NAME_MAX + 1];
        size_t length = strlen(strcpy(name, entry->d_name));
        if (length > 4 && strcmp(name + length - 4, ".tmp") == 0) name[length - 4] = 0;
        int is_input = strncmp(name, "input_", 6) == 0 && name[6] && strspn(name + 6, "0123456789") == strlen(name + 6);
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !is_input && shard_number(name, "train") < 0 &&
            shard_number(name, "val") < 0)
            refuse_folder(path_of("%s/%s", job.tmp.text, entry->d_name).text,
                          "tokenize did not make it, and would delete it, because it empties this folder");
    }
    closedir(folder);
    return 1;
}

/* Refuses notes in the folder that this verb did not write, because it replaces tokens.json and removes the list of
 * inputs. Empty files, which a killed call may leave, are its own. */
static void refuse_others_notes(int64_t shards) {
    static const char *const NAMES[] = {"tokens.json", TOKENS_INPUTS_NAME},
                      *const STARTS[] = {"{\"vocab_size\":", "{\"path\":"};
    for (int i = 0; i < 2; i++) {
        Path        path = path_of("%s/%s", job.out.text, NAMES[i]);
        struct stat st;
        char       *start;
        if (lstat(path.text, &st) < 0) continue;
        if (i == 0 && shards > 0) continue; /* the caller compares the counts in tokens.json with the shards */
        if (!S_ISREG(st.st_mode)) refuse_folder(path.text, path_of("it %s", io_error_text(io_kind(st.st_mode))).text);
        int64_t bytes = io_read_start(path.text, strlen(STARTS[i]), &start);
        if (bytes < 0) fail(EXIT_IO, "tokenize: cannot read %s: %s", path.text, io_error_text((int)bytes));
        int is_own = start[0] == 0 || strncmp(start, STARTS[i], strlen(STARTS[i])) == 0;
        free(start);
        if (!is_own) refuse_folder(path.text, "tokenize did not write it, and would replace it");
    }
}

/* Refuses files that are named like a shard but were not written by this verb, because it replaces or removes only its
 * own. tokens.json in the folder has the counts of its own shards. A call that was killed while it moved its shards
 * leaves other counts. Returns the number of shards. */
static int64_t refuse_others_files(void) {
    int64_t        count = 0, tokens[2] = {0, 0}, noted[2];
    Path           path;
    struct dirent *entry;
    int            was_killed = refuse_others_folder();
    DIR           *folder = open_folder(job.out.text);
    while ((entry = readdir(folder))) {
        int is_val = shard_number(entry->d_name, "val") >= 0;
        if (!is_val && shard_number(entry->d_name, "train") < 0) continue;
        path = path_of("%s/%s", job.out.text, entry->d_name);
        int64_t vocab_size = tokens_json_vocab_size(path.text);
        int64_t own = own_tokens(path.text, vocab_size > 0 ? vocab_size : 256);
        if (own < 0) refuse_folder(path.text, "it is not a complete shard of tokens that tokenize wrote");
        tokens[is_val] += own, count++;
    }
    closedir(folder);
    if (count > 0 && !tokens_json_counts(path.text, noted))
        refuse_folder(path.text, "no tokens.json beside it says that tokenize wrote it");
    refuse_others_notes(count);
    if (count == 0) return 0;
    if (!was_killed && (noted[0] < tokens[0] || noted[1] < tokens[1]))
        refuse_folder(path.text,
                      "the shards here hold more tokens than the tokens.json beside it counts, so another program "
                      "wrote some of them");
    return count;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

NORETURN static void cannot_write(const Shards *s, int error) {
    fail(EXIT_IO, "tokenize: cannot write %s: %s", shard_path(job.tmp, s, s->files).text, io_error_text(error));
}

static void finish_shard(Shards *s) {
    ShardWriter *w = s->writer;
    s->writer = NULL; /* shard_writer_finish frees it */
    int rc = w ? shard_writer_finish(w) : 0;
    if (rc < 0) cannot_write(s, rc);
    s->files += w != NULL;
    s->in_shard = 0;
}

static int64_t vocab_size(void) {
    return job.tokenizer.kind == TOKENIZER_BPE ? bpe_ids(job.tokenizer.file.bpe) : job.tokenizer.vocab_size;
}

static void put_ids(void *with, const int32_t *ids, int64_t count) {
    Shards *s = (Shards *)with;
    for (int64_t n; count > 0; ids += n, count -= n) {
        int rc = 0;
        if (s->in_shard == job.shard_tokens) finish_shard(s);
        if (s->files == MAX_SHARDS)
            fail(EXIT_CONFIG, "tokenize: shard_tokens=%lld makes over %d files; give a larger shard_tokens=",
                 (long long)job.shard_tokens, MAX_SHARDS);
        if (!s->writer) rc = shard_writer_create(&s->writer, shard_path(job.tmp, s, s->files).text, vocab_size());
        n = job.shard_tokens - s->in_shard < count ? job.shard_tokens - s->in_shard : count;
        if (rc == 0) rc = shard_writer_put(s->writer, ids, n);
        if (rc < 0) cannot_write(s, rc);
        s->in_shard += n, s->tokens += n;
    }
}

static void put_eot(Shards *s, int where) {
    const Tokenizer *t = &job.tokenizer;
    if (t->kind == TOKENIZER_BPE && job.eot == where) put_ids(s, &t->file.end_of_text, 1);
}

/* The held-out text, for validation: `count` of `documents`, evenly spread, or all text from byte first_byte on. */
typedef struct { int64_t documents, count, first_byte; } HeldOut;

/* State of the writer, which divides documents between the shards of the two splits. */
typedef struct {
    Shards *now;
    HeldOut held;
    Encoder encoder;
    int64_t document, bytes; /* number of documents begun, and of bytes read so far */
    int     is_row;
    char    last;            /* last byte read; '\n' before the first byte */
    char *window; /* owned [CUT_WINDOW]: text not yet written, from the planned beginning of the held-out text on */
    size_t  windows;
} Writer;

static void put_encoded(void *writer, const int32_t *ids, int64_t count) {
    put_ids(((Writer *)writer)->now, ids, count);
}

static void put_text(Writer *w, const char *text, size_t bytes) {
    if (bytes == 0) return;
    encoder_put(&w->encoder, text, bytes);
    w->now->bytes += (int64_t)bytes, w->bytes += (int64_t)bytes;
    w->last = text[bytes - 1];
}

static void begin_document(void *writer, int is_row) {
    Writer *w = (Writer *)writer;
    const HeldOut *h = &w->held;
    int64_t        n = w->document++;
    int            is_held = h->count > 0 && (n + 1) * h->count / h->documents > n * h->count / h->documents;
    w->now = is_held || w->bytes >= h->first_byte ? &val : &train;
    w->is_row = is_row, w->last = '\n';
    put_eot(w->now, EOT_FIRST);
}

/* Returns the index in the window where the held-out text begins: the beginning of a line. If there is none and no more
 * text follows (is_last), it begins at a space between words, otherwise at a character. If tokens are bytes, any
 * character will do. Returns -1 if there is no such index. */
static int64_t cut_in(const Writer *w, int is_last) {
    const char *text = w->window;
    size_t      n = w->windows, at;
    if (job.tokenizer.kind == TOKENIZER_BPE) {
        if (n > 0 && (w->last == '\n' || (w->last == '\r' && text[0] != '\n'))) return 0;
        for (at = 1; at < n; at++)
            if (text[at - 1] == '\n' || (text[at - 1] == '\r' && text[at] != '\n')) return (int64_t)at;
        if (!is_last) return -1;
        for (at = 1; at < n; at++)
            if (text[at] == ' ' && text[at - 1] != ' ') return (int64_t)at;
    }
    for (at = 0; at < n && (text[at] & 0xC0) == 0x80;) at++;
    return at < n ? (int64_t)at : -1;
}

static void put_window(Writer *w, int64_t cut) {
    size_t n = w->windows, first = cut < 0 ? n : (size_t)cut;
    w->windows = 0;
    put_text(w, w->window, first);
    if (cut < 0) return;
    encoder_end(&w->encoder);
    w->now = &val;
    put_text(w, w->window + first, n - first);
}

/* Writes a part of a document. From the planned beginning of the held-out text on, text is kept in the window until a
 * place to cut is known. */
static void take_text(void *writer, const char *text, size_t bytes) {
    Writer *w = (Writer *)writer;
    while (bytes > 0 && w->now == &train && w->held.first_byte - w->bytes < (int64_t)bytes) {
        size_t before = w->held.first_byte > w->bytes ? (size_t)(w->held.first_byte - w->bytes) : 0;
        put_text(w, text, before);
        text += before, bytes -= before;
        size_t n = bytes < CUT_WINDOW - w->windows ? bytes : CUT_WINDOW - w->windows;
        if (!w->window) w->window = xmalloc(CUT_WINDOW, "a part of the text");
        memcpy(w->window + w->windows, text, n);
        text += n, bytes -= n, w->windows += n;
        int64_t cut = cut_in(w, w->windows == CUT_WINDOW);
        if (cut >= 0 || w->windows == CUT_WINDOW) put_window(w, cut);
    }
    put_text(w, text, bytes);
}

/* Ends a document. If tokens are bytes, a newline ends a row, because there is no token for the end of a row. */
static void end_document(void *writer) {
    Writer *w = (Writer *)writer;
    if (w->windows > 0)
        /* Only in the last document text is cut. The text of an earlier one belongs to training as a whole, because the
         * next document is held out. */
        put_window(w, w->document == w->held.documents ? cut_in(w, 1) : -1);
    if (w->is_row && w->last != '\n' && job.tokenizer.kind == TOKENIZER_BYTES)
        encoder_put(&w->encoder, "\n", 1);
    encoder_end(&w->encoder);
    put_eot(w->now, EOT_LAST);
}

static HeldOut choose_held(void) {
    char    fault[DOCUMENT_FAULT_CHARS];
    int64_t documents, bytes;
    if (job.val == 0) return (HeldOut){.first_byte = INT64_MAX};
    int exit_code = documents_measure(job.documents, &documents, &bytes, fault);
    if (exit_code) fail(exit_code, "tokenize: %s", fault);
    if (bytes == 0) return (HeldOut){.first_byte = INT64_MAX};
    HeldOut held = {documents, (int64_t)(job.val * (double)documents), INT64_MAX};
    /* rows are not cut, so at least one whole row is held out */
    if (held.count == 0 && documents > 1 && documents_have_rows(job.documents)) held.count = 1;
    if (held.count > 0) return held;
    int64_t held_bytes = (int64_t)(job.val * (double)bytes);
    if (held_bytes == 0)
        fail(EXIT_DATA, "tokenize: %lld bytes of text are too few to hold out val=%g of them; give more text or val=0",
             (long long)bytes, job.val);
    held.first_byte = bytes - held_bytes;
    return held;
}

/* Writes all shards of both splits. Returns the number of bytes that are not UTF-8. */
static int64_t write_shards(void) {
    char   fault[DOCUMENT_FAULT_CHARS];
    Writer w = {.held = choose_held()};
    w.encoder = (Encoder){.tokenizer = &job.tokenizer, .sink = put_encoded, .with = &w};
    int exit_code = documents_read(job.documents, (DocumentSink){begin_document, take_text, end_document, &w}, fault);
    if (exit_code) fail(exit_code, "tokenize: %s", fault);
    if (w.bytes == 0)
        fail(EXIT_DATA, "tokenize: %s%s", documents_input_name(job.name[0]),
             job.names > 1 ? " and the other inputs hold no text" : " holds no text");
    finish_shard(&train), finish_shard(&val);
    if (job.val > 0 && val.tokens == 0)
        fail(EXIT_DATA,
             "tokenize: nothing can be held out, because no line, word or character begins in the last part (val=%g) "
             "of the text; give a larger val=, or val=0",
             job.val);
    encoder_free(&w.encoder);
    free(w.window);
    return w.encoder.invalid;
}

/* Copies the file `from` into the folder of the shards, as `name`. The copy is unpacked, and UTF-8 without a byte order
 * mark, so that other programs can read it. */
static void copy_beside(const char *from, const char *name) {
    char    fault[TEXT_FILE_FAULT_CHARS], *text = NULL;
    int64_t read = io_read_file(from, COPIED_BYTES, &text);
    size_t  bytes = read < 0 ? 0 : (size_t)read;
    Path    to = path_of("%s/%s", job.out.text, name);
    int exit_code = read < 0 ? 0 : text_clean(&text, &bytes, COPIED_BYTES, from, fault);
    if (exit_code) fail(exit_code, "tokenize: %s %s", from, fault);
    int rc = read < 0 ? (int)read : io_replace_file(to.text, text, bytes);
    free(text);
    if (rc < 0) fail(EXIT_IO, "tokenize: cannot copy %s to %s: %s", from, to.text, io_error_text(rc));
}

/* Copies the files of the tokenizer into the folder of the shards, under the names that a run looks for there. The last
 * two files name the tokens that begin and end a text. */
static void copy_tokenizer(void) {
    static const char *const FILES[] = {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json"};
    const char *path = job.tokenizer_path, *base = basename(path);
    int         tiktoken = (int)bpe_file_tiktoken_name(path), is_folder = io_is_folder(path);
    int         is_pair = strcmp(base, FILES[0]) == 0 || strcmp(base, FILES[1]) == 0;
    Path        folder = is_folder ? path_of("%s/", path) : path_of("%.*s", (int)(base - path), path);
    if (!is_folder && !is_pair)
        copy_beside(path, tiktoken > 0 ? path_of("%.*s.tiktoken", tiktoken, base).text : FILES[2]);
    for (int i = is_folder || is_pair ? 0 : 3; i < 5; i++) {
        Path from = path_of("%s%s", folder.text, FILES[i]);
        if ((i != 2 || is_folder) && access(from.text, F_OK) == 0) copy_beside(from.text, FILES[i]);
    }
}

/* Replaces a file beside the shards, such as tokens.json. text NULL: removes it. */
static void put_notes(const char *name, const char *text, size_t bytes) {
    Path path = path_of("%s/%s", job.out.text, name);
    int  rc = text ? io_replace_file(path.text, text, bytes) : io_unlink(path.text);
    if (rc < 0 && (text || rc != -ENOENT)) fail(EXIT_IO, "tokenize: cannot write %s: %s", path.text, io_error_text(rc));
}

/* Writes the list of inputs into tokens.json. If it is too long for the readers of tokens.json, writes it into a file
 * of its own. */
static void write_inputs(FILE *notes) {
    char   *list, *lines;
    size_t  list_bytes, line_bytes;
    FILE   *out = memory_file_open(&list, &list_bytes), *own = memory_file_open(&lines, &line_bytes);
    int64_t inputs[2];
    for (int which = DOCUMENTS_READ; which <= DOCUMENTS_LEFT_OUT; which++) {
        fputs(which == DOCUMENTS_READ ? "\"inputs\": [" : ", \"left_out\": [", out);
        documents_write_json(job.documents, which, ", ", out);
        fputc(']', out);
        inputs[which] = documents_write_json(job.documents, which, "\n", own);
        if (inputs[which] > 0) fputc('\n', own);
    }
    fclose(out), fclose(own);
    if (list_bytes <= TOKENS_JSON_BYTES - NOTES_ROOM) {
        fputs(list, notes);
        put_notes(TOKENS_INPUTS_NAME, NULL, 0);
    } else {
        put_notes(TOKENS_INPUTS_NAME, lines, line_bytes);
        fprintf(notes, "\"inputs_file\": \"" TOKENS_INPUTS_NAME "\", \"inputs_count\": %lld, \"left_out_count\": %lld",
                (long long)inputs[DOCUMENTS_READ], (long long)inputs[DOCUMENTS_LEFT_OUT]);
    }
    free(list), free(lines);
}

/* Writes the files beside the shards: copies of the tokenizer's files, and tokens.json, which says what the shards hold
 * and from which inputs. */
static void write_notes(void) {
    char   *text;
    size_t  size;
    int64_t tokens = train.tokens + val.tokens, bytes = train.bytes + val.bytes;
    if (job.tokenizer_path) copy_tokenizer();
    /* if tokens are bytes, their number is that of the bytes, newlines between rows included */
    if (job.tokenizer.kind == TOKENIZER_BYTES) bytes = tokens;
    FILE *notes = memory_file_open(&text, &size);
    fprintf(notes,
            "{\"vocab_size\": %lld, \"train_tokens\": %lld, \"val_tokens\": %lld, \"bytes\": %lld, "
            "\"bytes_per_token\": %.6f, ",
            (long long)vocab_size(), (long long)train.tokens, (long long)val.tokens,
            (long long)bytes, (double)bytes / (tokens > 0 ? (double)tokens : 1));
    write_inputs(notes);
    fputs("}\n", notes);
    fclose(notes);
    put_notes("tokens.json", text, size);
    free(text);
}

static void move_into_place(const Shards *s) {
    for (int64_t i = 0; i < s->files; i++) {
        Path to = shard_path(job.out, s, i);
        int  rc = io_rename(shard_path(job.tmp, s, i).text, to.text);
        if (rc < 0) fail(EXIT_IO, "tokenize: cannot write %s: %s", to.text, io_error_text(rc));
    }
}

/* Removes shards of an earlier call whose numbers are higher than the new ones. A glob over the folder must find only
 * the new shards. Returns the number of removed shards. */
static int64_t remove_stale(void) {
    int64_t        removed = 0;
    struct dirent *entry;
    DIR           *folder = open_folder(job.out.text);
    while ((entry = readdir(folder))) {
        if (shard_number(entry->d_name, "train") < train.files && shard_number(entry->d_name, "val") < val.files)
            continue;
        Path path = path_of("%s/%s", job.out.text, entry->d_name);
        int  rc = io_unlink(path.text);
        if (rc < 0)
            fail(EXIT_IO, "tokenize: cannot remove %s, left by an earlier run: %s", path.text, io_error_text(rc));
        removed++;
    }
    closedir(folder);
    return removed;
}

static void print_split(const Shards *s) {
    if (s->files == 1)
        print_plain(stdout, "  %-5s %12lld tokens  %s\n", s->split, (long long)s->tokens,
                    shard_path(job.out, s, 0).text);
    if (s->files > 1)
        print_plain(stdout, "  %-5s %12lld tokens  %s/%s_*.bin, %lld files\n", s->split, (long long)s->tokens,
                    job.out.text, s->split, (long long)s->files);
}

static int verb_tokenize(int texts, char **text) {
    job.names = texts, job.name = text;
    size_t length = strlen(job.out_key);
    while (length > 1 && job.out_key[length - 1] == '/') length--;
    job.out = path_of("%.*s", (int)length, job.out_key);
    job.tmp = path_of("%s/tokenize.tmp", job.out.text);
    job.tokenizer = job.tokenizer_path ? tokenizer_create(job.tokenizer_path, BPE_MOST_IDS) : tokenizer_create("", 256);
    if (job.tokenizer.kind == TOKENIZER_BPE && job.eot != EOT_NONE && job.tokenizer.file.end_of_text < 0)
        fail(EXIT_CONFIG, "tokenize: %s has no <|endoftext|> to put between texts: give eot=none", job.tokenizer_path);
    job.lock = lock_output("tokenize", "out", job.out.text, LOCK_INTO);
    int64_t earlier = refuse_others_files();
    refuse_other_tokenizer();
    find_documents();
    int64_t invalid = write_shards(), total = train.bytes + val.bytes;
    lock_keep(job.lock);
    write_notes(); /* written before the shards are moved, so that shards never exist without tokens.json */
    move_into_place(&train);
    move_into_place(&val);
    int64_t removed = remove_stale();
    lock_release(job.lock); /* also removes the folder job.tmp */
    io_fsync_dir(job.out.text);

    if (job.tokenizer.kind == TOKENIZER_BYTES)
        printf("tokenize: %lld bytes of text, one token per byte (model.vocab_size 256)\n", (long long)total);
    else
        printf("tokenize: %lld bytes of text, %.3f a token, ids from 0 to %lld\n", (long long)total,
               (double)total / (double)(train.tokens + val.tokens), (long long)vocab_size() - 1);
    documents_print(job.documents, stdout);
    print_split(&train);
    print_split(&val);
    if (earlier)
        print_plain(stdout, "  replaced %lld shard%s of an earlier run in %s", (long long)(earlier - removed),
                    plural(earlier - removed), job.out.text);
    if (earlier) printf(removed ? ", removed %lld\n" : "\n", (long long)removed);
    if (invalid)
        printf("  %lld byte%s not valid UTF-8, kept unchanged\n", (long long)invalid, invalid == 1 ? " is" : "s are");
    documents_free(job.documents);
    tokenizer_destroy(&job.tokenizer);
    free(verb_inputs.skip);
    return EXIT_DONE;
}

const Verb TOKENIZE_VERB = {
    "tokenize", "TEXT... out=FOLDER [key=value ...]", "text into token shards",
    "Turns text into token shards (llm.c format): FOLDER/train_000000.bin ..., and a part of it into "
    "FOLDER/val_000000.bin ... for validation. A text is a document; so is each line of JSON Lines, each row of "
    "parquet. Text and JSON Lines may be packed (.gz .zst .xz); a folder stands for all files in it; - is standard "
    "input; a text whose name reads like a key is given as ./name=x. Shards of an earlier call are replaced.",
    TOKENIZE_KEYS, "./train_gpt tokenize mytext.txt out=datasets/my val=0.05", verb_tokenize,
    {1, INT_MAX, "a text to read: a file, a folder, or -"},
};
