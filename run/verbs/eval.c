/* eval.c - `train_gpt eval RUN_OR_CHECKPOINT [key=value ...]`: prints loss, perplexity and bits per byte of a
 * checkpoint over token shards, and its scores in tasks. It computes in fp32 with the master weights. Under mpirun with
 * parallel.tensor, .context or .pipeline the ranks divide the model. Without these keys rank 0 has all of it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/json.h"
#include "core/io.h"
#include "core/terminal.h"
#include "core/error.h"
#include "data/dataset.h"
#include "data/tokens_json.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/text/stored_model.h"
#include "run/text/scorer.h"
#include "run/verbs/verbs.h"

enum { MOST_TASKS = 256 };
/* default of the config key eval.tokens, for runs whose saved config lacks the key */
static const int64_t DEFAULT_TOKENS = 131072;

/* --- what is asked for -------------------------------------------------------------------------------------------- */

static struct {
    StoredKeys  model;
    const char *data, *out;       /* values of the keys of the same names; NULL if not given */
    RunLock    *lock;             /* owned: lock of the file `out`; NULL on ranks that do not write it */
    const char *task_list;        /* value of tasks=; NULL if not given */
    const char *task[MOST_TASKS];
    int         tasks, is_json;
    int64_t     tokens, batch;    /* values of tokens= (-1 if not given) and batch= */
} asked = {.model.verb = "eval", .tokens = -1};
static const VerbKey EVAL_KEYS[] = {
    {"data", "'datasets/my/val*'", NULL, "token shards whose mean loss is printed", .text = &asked.data,
     .may_be_empty = 1, .unset = "the run's data.val"},
    {"tasks", "a.jsonl,b.jsonl", "", "files of questions, and what they are scored by: docs/evaluation.md",
     .text = &asked.task_list},
    {"tokens", "1000000", NULL, "tokens of the shards; 0: all", .count = &asked.tokens, .most = INT64_C(1) << 53,
     .unset = "the run's eval.tokens; all for weights of no run"},
    {"batch", "16", "8", "sequences that are computed at once", .count = &asked.batch, .least = 1, .most = 65536},
    {"json", "true", "false", "the figures as JSON", .flag = &asked.is_json},
    {"out", "scores.json", NULL, "a new file for the figures, written whole or not at all", .text = &asked.out,
     .unset = "standard output"},
    STORED_KEYS(asked.model, "as in training"),
    {.name = NULL},
};

/* Settings of the run that the checkpoint belongs to, from state.json. */
typedef struct {
    Manifest     manifest;        /* owned if is_run is 1 */
    const cJSON *val;             /* borrowed: data.val of the run; NULL if there is none */
    int64_t      seq_len, tokens; /* batch.seq_len and eval.tokens of the run; 0 if not known, for tokens: all */
    int          is_run, masks;   /* is_run: state.json was read; masks: data.document_mask was on in the run */
} RunWords;

/* Returns a count from a config, or `fallback` if the config does not have the key. */
static int64_t count_in(const cJSON *config, const char *key, int64_t fallback) {
    const cJSON *n = config_value(config, key);
    return cJSON_IsNumber(n) && n->valuedouble >= 0 && n->valuedouble <= 0x1p53 ? (int64_t)n->valuedouble : fallback;
}

/* --- data --------------------------------------------------------------------------------------------------------- */

/* Opens the token shards of data=, or of the run if data= is not given. shards is 0 if there are none. */
static Dataset open_data(const RunWords *words, int64_t T, int64_t vocab_size) {
    if (asked.data && !*asked.data) return (Dataset){0};
    if (asked.data) return dataset_open("eval: data", &asked.data, NULL, 1, T, vocab_size);
    if (!words->val) return (Dataset){0};
    int          count = cJSON_GetArraySize(words->val), i = 0;
    const char **glob = xcalloc((size_t)count, sizeof *glob, "a list of globs");
    const cJSON *item;
    cJSON_ArrayForEach(item, words->val) glob[i++] = cJSON_IsString(item) ? item->valuestring : "";
    Dataset d = dataset_open("eval: data.val", glob, NULL, count, T, vocab_size);
    free(glob);
    return d;
}

/* --- results ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *checkpoint;
    int64_t     tokens;                /* number of tokens that the loss is the mean of; 0 if there is no data */
    double      loss, bytes_per_token; /* bytes_per_token: NaN if not known */
    TaskScores *task;
    int         tasks;
} Results;

typedef struct { char text[16]; } ErrorText;

/* Returns the text of a standard error. One question has none, and its text is "-". */
static ErrorText error_text(double error) {
    ErrorText e = {"-"};
    if (!isnan(error)) snprintf(e.text, sizeof e.text, "%.4f", error);
    return e;
}

static void print_table(FILE *to, const Results *r) {
    print_plain(to, "%s\n", r->checkpoint);
    if (r->tokens > 0)
        fprintf(to, "loss          %.6f over %lld tokens\nperplexity    %.6g\n", r->loss,
                (long long)r->tokens, exp(r->loss));
    if (r->tokens > 0 && !isnan(r->bytes_per_token))
        fprintf(to, "bits per byte %.6f (%.4g bytes a token)\n", bits_per_byte(r->loss, r->bytes_per_token),
                r->bytes_per_token);
    double core = task_core(r->task, r->tasks);
    if (r->tasks > 0)
        fprintf(to, "%-24s %7s %8s %8s %9s %8s %12s%s\n", "task", "n", "acc", "stderr", "acc_norm", "stderr",
                "perplexity", isnan(core) ? "" : "  centered");
    for (int i = 0; i < r->tasks; i++) {
        const TaskScores *t = &r->task[i];
        print_plain(to, "%-24s %7lld %8.4f %8s", t->name, (long long)t->questions, t->acc,
                    error_text(t->acc_stderr).text);
        if (t->kind == TASK_CONTINUATION) fprintf(to, " %9s %8s %12.6g", "", "", t->perplexity);
        else fprintf(to, " %9.4f %8s", t->acc_norm, error_text(t->acc_norm_stderr).text);
        if (!isnan(t->centered)) fprintf(to, t->kind == TASK_CONTINUATION ? " %9.4f" : "%23.4f", t->centered);
        fputc('\n', to);
    }
    if (!isnan(core)) fprintf(to, "CORE          %.6f\n", core);
}

static void put(cJSON *object, const char *key, double value) {
    isfinite(value) ? cJSON_AddNumberToObject(object, key, value) : cJSON_AddNullToObject(object, key);
}

static void print_json(FILE *to, const Results *r) {
    cJSON *json = cJSON_CreateObject(), *tasks = cJSON_CreateArray();
    cJSON_AddItemToObject(json, "checkpoint", json_string(r->checkpoint));
    if (r->tokens > 0) {
        put(json, "loss", r->loss), put(json, "perplexity", exp(r->loss));
        if (!isnan(r->bytes_per_token)) put(json, "bpb", bits_per_byte(r->loss, r->bytes_per_token));
        put(json, "tokens", (double)r->tokens);
    }
    for (int i = 0; i < r->tasks; i++) {
        const TaskScores *t = &r->task[i];
        cJSON            *one = cJSON_CreateObject();
        cJSON_AddItemToObject(one, "task", json_string(t->name));
        put(one, "n", (double)t->questions), put(one, "acc", t->acc), put(one, "stderr", t->acc_stderr);
        if (t->kind == TASK_CONTINUATION) put(one, "perplexity", t->perplexity);
        else put(one, "acc_norm", t->acc_norm), put(one, "acc_norm_stderr", t->acc_norm_stderr);
        if (!isnan(t->centered)) put(one, "centered", t->centered);
        cJSON_AddItemToArray(tasks, one);
    }
    cJSON_AddItemToObject(json, "tasks", tasks);
    double core = task_core(r->task, r->tasks);
    if (!isnan(core)) put(json, "core", core);
    char *text = cJSON_PrintUnformatted(json);
    fprintf(to, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

/* Evaluates the loss and all tasks. Reads the files before it makes the model, so that their faults show at once. */
static void evaluate_all(StoredModel *m, const RunWords *words) {
    Task       task[MOST_TASKS];
    TaskScores scores[MOST_TASKS];
    char       advice[300];
    int64_t    T = m->positions, longest = 1;
    Tokenizer *tokenizer = &m->tokenizer;
    Dataset    d = open_data(words, T, m->shape.vocab_size);
    if (!d.shards && asked.tasks == 0)
        fail(EXIT_CONFIG,
             "eval: %s names no held-out data: give data=GLOB, files of tokens to evaluate, or tasks=FILE, a file of "
             "questions",
             m->checkpoint);
    for (int i = 0; i < d.shards; i++)
        if (i == 0 || !tokens_json_is_same(d.shard[i - 1].path, d.shard[i].path))
            tokenizer_refuse_other(tokenizer,
                                   asked.model.tokenizer ? asked.model.tokenizer : "the model's own tokenizer",
                                   d.shard[i].path, "the data",
                                   "give tokenizer=FOLDER_OR_FILE for the model, or data=GLOB for other data");
    for (int i = 0; i < asked.tasks; i++) {
        task[i] = task_read(asked.task[i], (TaskReader){tokenizer, T, m->begin + 1, !m->world});
        longest = larger_of(longest, task_longest(&task[i]));
    }

    /* Documents are masked as in the training run. For foreign weights the default of the kind of model applies. */
    int     masks = words->is_run ? words->masks : m->shape.arch != ARCH_GPT2;
    int32_t end_of_text = masks ? tokenizer_end_of_text(tokenizer) : -1;
    int64_t room_T = d.shards ? T : stored_room(m, longest, 1); /* positions for which memory is allocated */
    snprintf(advice, sizeof advice,
             "eval: this needs memory for batch=%lld sequences of %lld positions: batch=1 needs less, and so does "
             "positions=%lld, with shorter sequences and another loss\n",
             (long long)asked.batch, (long long)room_T, (long long)larger_of(room_T / 2, 1));
    error_set_memory_advice(advice);
    stored_load(m, GPT_INFERENCE, asked.batch, room_T, end_of_text >= 0);
    Scorer  s = {.model = m->model, .room = m->room, .all = m->groups.job, .says = m->is_first};
    Results r = {.checkpoint = m->checkpoint, .task = scores, .tasks = asked.tasks};
    if (d.shards) {
        int64_t wanted = asked.tokens >= 0 ? asked.tokens : words->tokens, samples = dataset_first_samples(&d, wanted);
        r.tokens = samples * T, r.bytes_per_token = dataset_bytes_per_token(&d, tokenizer, samples);
        scorer_loss(&s, &d, wanted, end_of_text, 0, &r.loss);
    }
    for (int i = 0; i < r.tasks; i++) {
        task_score(&s, &task[i], &scores[i]);
        if (scores[i].cut > 0)
            warn("%s: %lld texts (a context with a choice) are longer than %lld tokens and lost their beginning, which "
                 "can lower the scores%s",
                 task[i].path, (long long)scores[i].cut, (long long)T,
                 asked.model.positions ? "" : "; a larger positions= cuts less, up to the positions of the model");
    }
    error_set_memory_advice(NULL);
    if (m->is_first) {
        char  *text = NULL;
        size_t bytes = 0;
        FILE  *to = asked.out ? memory_file_open(&text, &bytes) : stdout;
        say_no_more();
        (asked.is_json ? print_json : print_table)(to, &r);
        if (asked.out) {
            fclose(to);
            verb_put("eval", asked.out, asked.lock, text, bytes);
            free(text);
        }
    }
    for (int i = 0; i < r.tasks; i++) task_free(&task[i]);
    if (d.shards) dataset_close(&d);
}

static int verb_eval(int words, char **path) {
    (void)words;
    /* splits the list of task files at its commas, in place */
    for (char *word = (char *)asked.task_list, *comma; word && *word; word = comma) {
        comma = access(word, F_OK) == 0 ? NULL : strchr(word, ','); /* a file name may contain commas */
        if (comma) *comma++ = 0;
        if (asked.tasks == MOST_TASKS)
            fail(EXIT_CONFIG, "eval: tasks= names more than %d files: name fewer", MOST_TASKS);
        asked.task[asked.tasks++] = word;
    }
    asked.lock = verb_take_out("eval", "out", asked.out, NULL);
    StoredModel m = {.keys = asked.model};
    stored_find(&m, path[0]);
    RunWords run = {0}; /* stays empty if the folder has only files of Hugging Face */
    char     fault[MANIFEST_FAULT_BYTES];
    if (folder_manifest(m.checkpoint, &run.manifest, fault) == MANIFEST_GOOD) {
        const cJSON *config = run.manifest.config, *val = config_value(config, "data.val");
        run.val = cJSON_GetArraySize(val) > 0 ? val : NULL;
        run.is_run = 1, run.masks = cJSON_IsTrue(config_value(config, "data.document_mask"));
        run.seq_len = count_in(config, "batch.seq_len", 0);
        run.tokens = count_in(config, "eval.tokens", DEFAULT_TOKENS);
    }
    int64_t T = m.shape.n_positions; /* length of the sequences to score, at most that of the training run */
    if (run.seq_len > 0 && run.seq_len < T) T = run.seq_len;
    stored_open(&m, T, verb_is_of_ranks(verb_given), NULL);
    evaluate_all(&m, &run);
    stored_close(&m);
    if (run.is_run) manifest_free(&run.manifest);
    return EXIT_DONE;
}

const Verb EVAL_VERB = {
    "eval", "RUN_OR_CHECKPOINT [key=value ...]", "loss, bits per byte and scores of tasks",
    "Prints loss, perplexity and bits per byte of a model over token shards, and its scores in tasks.", EVAL_KEYS,
    "./train_gpt eval runs/demo data='datasets/demo/val*'", verb_eval, {1, 1, "a run folder or a checkpoint"},
};
