/* sample.c - `train_gpt sample RUN_OR_CHECKPOINT [key=value ...]`: generates text with the model of a checkpoint or a
 * Hugging Face folder. Prints it on stdout, token by token. Everything else goes to stderr. The folder describes the
 * model, so config and data of the run may be missing. It computes in fp32 with the master weights. Under mpirun with
 * parallel.tensor, .context or .pipeline the ranks divide the model. Without these keys rank 0 has all of it. */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/terminal.h"
#include "data/text_file.h"
#include "run/guard/lock.h"
#include "run/text/sample.h"
#include "run/text/stored_model.h"
#include "run/verbs/verbs.h"

/* --- the command line --------------------------------------------------------------------------------------------- */

static struct {
    StoredKeys  model;
    const char *prompt;        /* the text itself; @FILE: text of a file; -: standard input      */
    const char *out;           /* file for the text; NULL: standard output                       */
    DrawRule    rule;
    int64_t     tokens, texts, seed;
    int         ends_at_eot;
    char      **stop;          /* [stops] texts that end generation; owned */
    int         stops;
} asked = {.model.verb = "sample", .prompt = ""};

static void add_stop(const char *text) {
    if (!*text)
        fail(EXIT_CONFIG, "sample: stop= is empty, and would end every text at once: give a text, or leave stop= out");
    asked.stop = xrealloc(asked.stop, sizeof *asked.stop * (size_t)(asked.stops + 1), "a stop text");
    asked.stop[asked.stops++] = xstrdup(text, "a stop text");
}

/* Adds the value of stop=: one text that ends generation, or a JSON list of them. */
static void take_stop(const char *text) {
    Json      json;
    JsonFault fault;
    if (*text != '[' || !json_parse(text, strlen(text), JSON_LIMIT, &json, &fault)) {
        add_stop(text);
        return;
    }
    for (const cJSON *item = json.root->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            fail(EXIT_CONFIG, "sample: stop=%s: a JSON list of strings is expected, as in stop='[\"a\",\"b\"]'", text);
        add_stop(item->valuestring);
    }
    json_free(&json);
}

static const VerbKey SAMPLE_KEYS[] = {
    {"prompt", "'Once upon'", "", "the text goes on from this; @FILE: from a file's, -: from standard input's",
     .text = &asked.prompt, .may_be_empty = 1},
    {"tokens", "400", "256", "tokens after the prompt", .count = &asked.tokens, .most = 10000000},
    {"temperature", "0.5", "0.8", "lower is more predictable; 0: the likeliest token each time",
     .number = &asked.rule.temperature, .most = 1000},
    {"top_k", "50", "0", "draw among the k likeliest tokens; 0: all", .count = &asked.rule.top_k, .most = 1000000000},
    {"top_p", "0.9", "1", "draw among the likeliest tokens that together have this probability",
     .number = &asked.rule.top_p, .most = 1},
    {"min_p", "0.05", "0", "draw among tokens of at least this part of the likeliest one's probability",
     .number = &asked.rule.min_p, .most = 1},
    {"n", "3", "1", "so many texts, with seeds that follow each other", .count = &asked.texts, .least = 1,
     .most = 1000000},
    {"seed", "42", "1337", "another seed gives another text", .count = &asked.seed, .most = INT64_C(1) << 53},
    {"stop", "THE", "", "ends before this text; several: a JSON list, or the key again", .take = take_stop,
     .may_be_empty = 1, .may_repeat = 1},
    {"eot", "false", "true", "an end token of the model's config ends the text", .flag = &asked.ends_at_eot},
    {"out", "text.txt", NULL, "a new file for the text, written whole or not at all", .text = &asked.out,
     .unset = "standard output"},
    STORED_KEYS(asked.model, "the model's"),
    {.name = NULL},
};

/* --- the prompt --------------------------------------------------------------------------------------------------- */

enum { PROMPT_LIMIT = 64 << 20 };

/* Reads standard input into *text, malloc'ed. Returns its length, or -errno. Standard input is not opened again by its
 * name: it may be a socket, or a file whose first bytes were read by the program that started this one. */
static int64_t read_input(char **text) {
    size_t room = 0, bytes = 0;
    *text = NULL;
    for (ssize_t n = 1; n != 0;) {
        if (bytes + 1 >= room) *text = xrealloc(*text, room = 2 * room + 4096, "a prompt");
        n = read(STDIN_FILENO, *text + bytes, room - bytes - 1);
        if (n < 0 && errno == EINTR) n = 1;
        else if (n < 0) return -errno;
        else bytes += (size_t)n;
        if (bytes > PROMPT_LIMIT) return -EFBIG;
    }
    (*text)[bytes] = 0;
    return (int64_t)bytes;
}

/* Returns the bytes of the prompt, malloc'ed. Only rank 0 reads files and standard input. */
static char *read_prompt(const char *prompt, Comm *job, int64_t *bytes) {
    int         is_input = strcmp(prompt, "-") == 0;
    const char *name = is_input ? "standard input" : prompt + 1;
    char       *text = NULL;
    if (!is_input && *prompt != '@') {
        *bytes = (int64_t)strlen(prompt);
        return xstrdup(prompt, "a prompt");
    }
    if (!job || comm_rank(job) == 0) {
        *bytes = is_input ? read_input(&text) : io_read_input(name, PROMPT_LIMIT, &text);
        int is_system = *bytes == -EIO || *bytes == -EACCES;
        if (*bytes < 0)
            fail(*bytes == -ENOMEM ? EXIT_MEMORY : is_system ? EXIT_IO : EXIT_DATA,
                 "sample: the prompt in %s cannot be read: %s", name, io_error_text((int)*bytes));
        char   fault[TEXT_FILE_FAULT_CHARS];
        size_t clean = (size_t)*bytes;
        int    exit_code = text_clean(&text, &clean, PROMPT_LIMIT, is_input ? NULL : name, fault);
        if (exit_code) fail(exit_code, "sample: the prompt in %s %s", name, fault);
        *bytes = (int64_t)clean;
    }
    if (!job) return text;
    comm_broadcast(job, bytes, sizeof *bytes, 0);
    if (comm_rank(job) > 0) text = xmalloc((size_t)*bytes + 1, "a prompt");
    comm_broadcast(job, text, (size_t)*bytes, 0);
    return text;
}

static Prompt take_prompt(const StoredModel *m) {
    int64_t bytes = 0;
    char   *text = read_prompt(asked.prompt, m->groups.job, &bytes);
    if (bytes > 0 && m->tokenizer.kind == TOKENIZER_IDS)
        fail(EXIT_CONFIG,
             "sample: the model of %s has token ids only, no tokenizer that takes text: give tokenizer=FOLDER_OR_FILE, "
             "or leave prompt= out",
             m->checkpoint);
    Prompt p = prompt_create(&m->tokenizer, text, (size_t)bytes, m->begin);
    if (p.count > m->positions && m->is_first)
        fprintf(stderr, "sample: the prompt has %lld tokens, and the model %s%lld positions: it sees the last %lld\n",
                (long long)p.count, asked.model.positions ? "is given " : "", (long long)m->positions,
                (long long)prompt_seen(&p, m->positions));
    free(text);
    return p;
}

/* --- the text ----------------------------------------------------------------------------------------------------- */

/* Destination of the text: `file`, or, if file is NULL, standard output, token by token. If the reader closes standard
 * output, the text ends without a message. */
typedef struct { int prints, is_closed; FILE *file; } Output;

static void put_text(void *output, const char *text, size_t bytes) {
    Output *o = (Output *)output;
    if (o->file && o->prints) fwrite(text, 1, bytes, o->file);
    for (ssize_t n; o->prints && !o->file && !o->is_closed && bytes > 0;) {
        n = write(STDOUT_FILENO, text, bytes);
        if (n >= 0) text += n, bytes -= (size_t)n;
        else if (errno == EPIPE) o->is_closed = 1;
        else if (errno != EINTR) fail(EXIT_IO, "sample: standard output cannot be written: %s", io_error_text(errno));
    }
}

static int has_no_reader(void *output) { return ((Output *)output)->is_closed; }

/* Prints where the weights come from: "step 400 of runs/mine (checkpoints/step_00000400)", or only the path if the
 * checkpoint has another name. */
static void print_origin(const StoredModel *m) {
    const char *checkpoint = m->checkpoint, *name = basename(checkpoint), *inside = "/checkpoints/";
    size_t      run = (size_t)(name - checkpoint), length = strlen(inside);
    int         is_of_run = run >= length && strncmp(checkpoint + run - length, inside, length) == 0;
    long long   step = -1;
    fputs("sample: ", stderr);
    if (sscanf(name, "step_%lld", &step) == 1) fprintf(stderr, "step %lld of ", step);
    if (step >= 0 && is_of_run) print_plain(stderr, "%.*s (checkpoints/%s)", (int)(run - length), checkpoint, name);
    else print_plain(stderr, "%s", checkpoint);
    fprintf(stderr, ", %lld layers of width %lld, %.2f M parameters\n", (long long)m->shape.n_layer,
            (long long)m->shape.n_embd, (double)m->model->shards->layout.elems * 1e-6);
}

/* Generates and prints the texts, each with its own seed. If there are several, a line with its number precedes
 * each. */
static void print_texts(SamplePlan plan, const StoredModel *m, Output *out) {
    Sampled all = {0};
    for (int64_t i = 0; i < asked.texts && !all.left_off; i++) {
        char line[80] = "";
        plan.seed = (uint64_t)(asked.seed + i);
        if (asked.texts > 1)
            snprintf(line, sizeof line, "--- %lld of %lld, seed %lld ---\n", (long long)i + 1, (long long)asked.texts,
                     (long long)(asked.seed + i));
        put_text(out, line, strlen(line));
        Sampled one = sample_stream(&m->model->pipeline, &m->model->stream, &m->tokenizer, &plan);
        put_text(out, "\n", 1);
        all.tokens += one.tokens, all.ms += one.ms;
        /* on several ranks, only one of them knows that the reader has gone */
        all.left_off = one.left_off || (plan.leave && out->is_closed);
    }
    if (out->prints)
        fprintf(stderr, "sample: %lld tokens in %.2f s, %.1f tokens/s\n", (long long)all.tokens, all.ms * 1e-3,
                all.ms > 0 ? (double)all.tokens * 1e3 / all.ms : 0.0);
}

static int verb_sample(int words, char **path) {
    (void)words;
    StoredModel m = {.keys = asked.model};
    char       *text = NULL, advice[300];
    size_t      bytes = 0;
    RunLock    *lock = verb_take_out("sample", "out", asked.out, NULL); /* NULL on ranks that do not write */
    stored_find(&m, path[0]);
    signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe then fails in put_text */
    stored_open(&m, m.shape.n_positions, verb_is_of_ranks(verb_given), verb_given);
    Output     out = {.prints = m.is_first, .file = asked.out ? memory_file_open(&text, &bytes) : NULL};
    SamplePlan plan = {.prompt = take_prompt(&m), .tokens = asked.tokens, .rule = asked.rule, .end = m.end,
                       .ends = asked.ends_at_eot ? m.ends : 0, .stop = (const char *const *)asked.stop,
                       .stops = asked.stops, .put = put_text, .ctx = &out};
    /* on several ranks the texts are generated to the end, because all ranks must agree */
    if (!m.world) plan.leave = has_no_reader, plan.leave_ctx = &out;
    int64_t T = stored_room(&m, plan.prompt.count + plan.tokens, 0);
    snprintf(advice, sizeof advice,
             "sample: this needs memory for %lld positions (prompt and tokens=, at most positions=): positions=%lld "
             "needs less, and a token then sees at most that many tokens\n",
             (long long)T, (long long)larger_of(T / 2, 1));
    error_set_memory_advice(advice);
    stored_load(&m, GPT_SAMPLING, 1, T, 0);
    plan.window = m.room.inputs;
    if (m.is_first) print_origin(&m);
    print_texts(plan, &m, &out);
    error_set_memory_advice(NULL);
    if (out.file) fclose(out.file);
    if (out.file && m.is_first) verb_put("sample", asked.out, lock, text, bytes);
    free(text);
    prompt_free(&plan.prompt);
    stored_close(&m);
    for (int i = 0; i < asked.stops; i++) free(asked.stop[i]);
    free(asked.stop);
    return EXIT_DONE;
}

const Verb SAMPLE_VERB = {
    "sample", "RUN_OR_CHECKPOINT [key=value ...]", "text from a trained model",
    "Prints text that the model of a run folder or checkpoint writes. Under mpirun, parallel.* divides a model that "
    "needs more than one rank.",
    SAMPLE_KEYS, "./train_gpt sample runs/demo prompt='In the beginning' tokens=300", verb_sample,
    {1, 1, "a run folder or a checkpoint"},
};
