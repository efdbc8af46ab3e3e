/* tokenize.c - the verb `tokenize`: text files in, llm.c token shards out, the last part held out for validation.
 *
 * Inputs are read in order as one text, in constant memory; with a tokenizer each is a document, and the held-out part
 * begins with a line. An input without a size (a pipe, standard input as -) is
 * first copied beside the output. Everything is written into out/tokenize.tmp and moved to its place once all of it is
 * there: a run that fails leaves an earlier run's shards as they were, and one that succeeds leaves none of them.
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
#include "data/encoder.h"
#include "data/shard.h"
#include "run/verbs.h"

#define SHARD_NAME "%s_%06lld.bin"
#define USAGE      "./train_gpt tokenize TEXT... out=FOLDER [tokenizer=FOLDER_OR_FILE] [val=0.05] [eot=first] [shard_tokens=100000000]"
#define NOTES      "tokens.json" /* what the shards hold, and that they are this verb's */

enum { CHUNK_BYTES = 1 << 16, MAX_SHARDS = 1000000, NAME_ROOM = 64 };

typedef enum { EOT_FIRST, EOT_LAST, EOT_NONE } Eot; /* where a document has its <|endoftext|> */

typedef struct {
    char   *path;         /* owned */
    int64_t bytes;        /* -1: a pipe, not copied yet */
} Input;

typedef struct {
    char      out[PATH_MAX - 2 * NAME_ROOM], tmp[PATH_MAX - NAME_ROOM]; /* tmp = out/tokenize.tmp */
    double    val;
    int64_t   shard_tokens;
    Input    *input;      /* owned */
    int       inputs;
    int       reading;    /* index of the input that fd and left belong to */
    int       fd;         /* -1: not open yet */
    int64_t   left;       /* bytes of it still to be read */
    const char *tokenizer_path; /* NULL: bytes */
    Tokenizer tokenizer;
    Eot       eot;
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
    {"val", "0.01", "0.05", "the part of the text for validation, from 0 to below 1; 0 writes no val shards"},
    {"eot", "last", "first", "<|endoftext|> stands before each text (first), after it (last), or nowhere (none)"},
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
            fail(EXIT_CONFIG, "tokenize: val=%s: the part held out is a number from 0 to below 1, for example val=0.05", value);
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
             "tokenize: unknown option %s: there are out=, tokenizer=, val=, eot= and shard_tokens= (a file of that name is given as ./%s)",
             word, word);
    }
}

static Job parse_arguments(int argc, char **argv) {
    Job job = {.val = 0.05, .shard_tokens = 100000000, .fd = -1};
    job.input = calloc((size_t)argc, sizeof *job.input);
    if (!job.input) fail(EXIT_MEMORY, "tokenize: no memory for the names of the inputs");
    for (int i = 1; i < argc; i++) {
        if (is_option(argv[i])) {
            parse_option(&job, argv[i]);
            continue;
        }
        if (argv[i][0] == '-' && argv[i][1]) fail(EXIT_CONFIG, "tokenize: unknown option %s; usage: " USAGE, argv[i]);
        char *path = strdup(strcmp(argv[i], "-") == 0 ? "/dev/stdin" : argv[i]);
        if (!path) fail(EXIT_MEMORY, "tokenize: no memory for the names of the inputs");
        job.input[job.inputs++].path = path;
    }
    if (job.inputs == 0) fail(EXIT_CONFIG, "tokenize: no text to read; usage: " USAGE);
    if (!job.out[0]) fail(EXIT_CONFIG, "tokenize: out=FOLDER is missing; usage: " USAGE);
    job.tokenizer = job.tokenizer_path ? tokenizer_create(job.tokenizer_path, BPE_MOST_IDS) : tokenizer_create("", 256);
    if (job.tokenizer_path && job.eot != EOT_NONE && job.tokenizer.file.end_of_text < 0)
        fail(EXIT_CONFIG, "tokenize: %s has no <|endoftext|> to put between texts: eot=none", job.tokenizer_path);
    return job;
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

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int open_input(const Job *job, const char *path) {
    int fd = io_open(path, IO_READ);
    if (fd < 0) give_up(job, EXIT_DATA, "cannot read %s: %s", path, strerror(-fd));
    return fd;
}

/* Bytes read into data, 0 at the end. */
static int64_t read_input(const Job *job, int fd, const char *path, char *data, size_t bytes) {
    ssize_t n;
    do n = read(fd, data, bytes);
    while (n < 0 && errno == EINTR);
    if (n < 0) give_up(job, EXIT_IO, "cannot read %s: %s", path, strerror(errno));
    return n;
}

/* Copies an input without a size into the temporary folder and puts the copy in its place. */
static void copy_input(Job *job, Input *input, int from) {
    char chunk[CHUNK_BYTES], *copy = NULL;
    if (asprintf(&copy, "%s/input_%lld", job->tmp, (long long)(input - job->input)) < 0)
        give_up(job, EXIT_MEMORY, "no memory for the names of the inputs");
    int     to = io_open(copy, IO_CREATE), rc = to < 0 ? to : 0;
    int64_t n = 0;
    input->bytes = 0;
    while (rc == 0 && (n = read_input(job, from, input->path, chunk, sizeof chunk)) > 0) {
        rc = io_write(to, chunk, (size_t)n);
        input->bytes += n;
    }
    if (to >= 0) {
        int closed = io_close(to);
        if (rc == 0) rc = closed;
    }
    if (rc < 0) give_up(job, EXIT_IO, "cannot write %s: %s", copy, strerror(-rc));
    free(input->path);
    input->path = copy;
}

/* Checks every input before anything is written; returns the bytes of all. */
static int64_t measure_inputs(Job *job) {
    int64_t total = 0;
    int     pipes = 0;
    for (int i = 0; i < job->inputs; i++) {
        struct stat st;
        Input      *input = &job->input[i];
        if (stat(input->path, &st) < 0) fail(EXIT_DATA, "tokenize: cannot read %s: %s", input->path, strerror(errno));
        if (S_ISDIR(st.st_mode)) fail(EXIT_DATA, "tokenize: %s is a folder; name the text files in it", input->path);
        if (access(input->path, R_OK) < 0) fail(EXIT_DATA, "tokenize: cannot read %s: %s", input->path, strerror(errno));
        input->bytes = S_ISREG(st.st_mode) ? st.st_size : -1;
        if (input->bytes < 0) pipes++;
        else total += input->bytes;
    }
    if (total == 0 && pipes == 0)
        fail(EXIT_DATA, "tokenize: %s%s", job->input[0].path, job->inputs > 1 ? " and the other inputs are empty" : " is empty");

    int rc = io_mkdirs(job->out);
    if (rc == 0) rc = io_remove_tree(job->tmp); /* of a run that was killed */
    if (rc == 0) rc = io_mkdirs(job->tmp);
    if (rc < 0) fail(EXIT_IO, "tokenize: cannot write into the folder %s: %s", job->out, strerror(-rc));
    for (int i = 0; i < job->inputs; i++) {
        Input *input = &job->input[i];
        if (input->bytes >= 0) continue;
        int fd = open_input(job, input->path);
        copy_input(job, input, fd);
        io_close(fd);
        total += input->bytes;
    }
    return total;
}

/* The next bytes of the text, at most `bytes`, at least one. */
static int64_t next_bytes(Job *job, char *data, int64_t bytes) {
    while (job->left == 0) {
        if (job->fd >= 0) io_close(job->fd), job->reading++;
        job->fd = open_input(job, job->input[job->reading].path);
        job->left = job->input[job->reading].bytes;
    }
    const char *path = job->input[job->reading].path;
    int64_t     n = read_input(job, job->fd, path, data, (size_t)(bytes < job->left ? bytes : job->left));
    if (n == 0) give_up(job, EXIT_DATA, "%s became shorter while it was read", path);
    job->left -= n;
    return n;
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

/* Writes the next `bytes` bytes as shards of a split; text that a tokenizer encodes ends with a line. */
static Shards write_split(Job *job, const char *split, int64_t bytes, int64_t rest) {
    char    text[CHUNK_BYTES];
    Shards  s = {.job = job, .split = split};
    Encoder e = {.tokenizer = &job->tokenizer, .sink = put_ids, .with = &s};
    int     is_bpe = job->tokenizer.kind == TOKENIZER_BPE, reading = -1;
    char    last = '\n';
    while (bytes > 0 || (is_bpe && s.bytes > 0 && rest > 0 && last != '\n' && job->left > 0)) {
        int64_t n = next_bytes(job, text, bytes == 0 ? 1 : bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES);
        if (is_bpe && job->reading != reading) { /* the next document; a text that is cut in two has one end */
            if (reading >= 0) encoder_end(&e), put_eot(&s, EOT_LAST);
            if (job->left + n == job->input[job->reading].bytes) put_eot(&s, EOT_FIRST);
            reading = job->reading;
        }
        encoder_put(&e, text, (size_t)n);
        last = text[n - 1];
        s.bytes += n;
        if (bytes > 0) bytes -= n;
        else rest -= n;
    }
    encoder_end(&e);
    if (is_bpe && s.bytes > 0 && job->left == 0) put_eot(&s, EOT_LAST);
    encoder_free(&e);
    finish_shard(&s);
    return s;
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
    int64_t earlier = refuse_others_files(&job), total = measure_inputs(&job), val = (int64_t)(job.val * (double)total),
            train = total - val;
    if (total == 0) give_up(&job, EXIT_DATA, "the input holds no text");
    if (job.val > 0 && val == 0)
        give_up(&job, EXIT_DATA, "%lld bytes of text are too few to hold out val=%g of them; give more text or val=0",
                (long long)total, job.val);
    if (job.tokenizer.kind == TOKENIZER_BYTES && (train / job.shard_tokens >= MAX_SHARDS || val / job.shard_tokens >= MAX_SHARDS))
        give_up(&job, EXIT_CONFIG, "shard_tokens=%lld makes over %d files of %lld bytes; give a larger one",
                (long long)job.shard_tokens, MAX_SHARDS, (long long)total);

    Shards trained = write_split(&job, "train", train, val), held = write_split(&job, "val", total - trained.bytes, 0);
    if (job.val > 0 && held.tokens == 0)
        give_up(&job, EXIT_DATA,
                "no line begins in the last part of the text, val=%g, so nothing can be held out; give more text or val=0",
                job.val);
    move_into_place(&job, "train", trained.files);
    move_into_place(&job, "val", held.files);
    int64_t removed = remove_stale(&job, trained.files, held.files);
    if (job.tokenizer_path) write_notes(&job, &trained, &held);
    if (job.fd >= 0) io_close(job.fd);
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
    for (int i = 0; i < job.inputs; i++) free(job.input[i].path);
    free(job.input);
    return EXIT_DONE;
}
