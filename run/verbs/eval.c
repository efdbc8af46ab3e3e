/* eval.c - `train_gpt eval RUN_OR_CHECKPOINT [key=value ...]`: prints loss, perplexity and bits per byte of a
 * checkpoint over token shards, and its scores in tasks. It computes in fp32 with the master weights. Under mpirun with
 * parallel.tensor, .context or .pipeline the ranks divide the model. Without these keys rank 0 has all of it. */
#include <math.h>
#include <omp.h>
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
#include "layers/algorithms.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/weights.h"
#include "run/text/stored_model.h"
#include "run/text/task_scores.h"
#include "run/verbs/verbs.h"

enum { MOST_TASKS = 256 };
static const int64_t DEFAULT_TOKENS = 131072; /* equal to the default of the config key eval.tokens */

/* --- what is asked for -------------------------------------------------------------------------------------------- */

static struct {
    const char *data, *tokenizer, *out; /* values of the keys of the same names; NULL if not given */
    RunLock    *lock;             /* owned: lock of the file `out`; NULL on ranks that do not write it */
    const char *task_list;        /* value of tasks=; NULL if not given */
    const char *task[MOST_TASKS];
    int         tasks, is_json;
    int64_t     tokens, batch;    /* values of tokens= (-1 if not given) and batch= */
    int64_t     positions;        /* value of positions=; 0 if not given */
    MeshSizes   grid;
} asked = {.tokens = -1, .grid.replicas = 1};
static const VerbKey EVAL_KEYS[] = {
    {"data", "'datasets/my/val*'", NULL, "token shards whose mean loss is printed", .text = &asked.data,
     .may_be_empty = 1, .unset = "the run's data.val"},
    {"tasks", "a.jsonl,b.jsonl", "", "files of questions, and what they are scored by: docs/evaluation.md",
     .text = &asked.task_list},
    {"tokens", "1000000", NULL, "tokens of the shards; 0: all", .count = &asked.tokens, .most = INT64_C(1) << 53,
     .unset = "the run's eval.tokens"},
    {"batch", "16", "8", "sequences that are computed at once", .count = &asked.batch, .least = 1, .most = 65536},
    {"positions", "1024", NULL, "the most tokens of a sequence; fewer need less memory", .count = &asked.positions,
     .least = 1, .most = INT32_MAX, .unset = "as in training"},
    {"tokenizer", "datasets/bpe", NULL, "a tokenizer's folder or file", .text = &asked.tokenizer,
     .unset = "the run's"},
    {"json", "true", "false", "the figures as JSON", .flag = &asked.is_json},
    {"out", "scores.json", NULL, "a new file for the figures, written whole or not at all", .text = &asked.out,
     .unset = "standard output"},
    {"parallel.tensor", "2", "1", "under mpirun: ranks that divide every matrix", .whole = &asked.grid.tensor,
     .least = 1, .most = 1024},
    {"parallel.context", "2", "1", "under mpirun: ranks that share a sequence", .whole = &asked.grid.context,
     .least = 1, .most = 1024},
    {"parallel.pipeline", "2", "1", "under mpirun: ranks that share the blocks", .whole = &asked.grid.stages,
     .least = 1, .most = 1024},
    {.name = NULL},
};

/* Settings of the run that the checkpoint belongs to, from state.json. */
typedef struct {
    Manifest     manifest;        /* owned if is_run is 1 */
    const cJSON *val;             /* borrowed: data.val of the run; NULL if there is none */
    int64_t      seq_len, tokens; /* batch.seq_len and eval.tokens of the run; 0 if not known */
    int          is_run, masks;   /* is_run: state.json was read; masks: data.document_mask was on in the run */
} RunWords;

/* Returns a count from a config, or `fallback` if the config does not have the key. */
static int64_t count_in(const cJSON *config, const char *key, int64_t fallback) {
    const cJSON *n = config_value(config, key);
    return cJSON_IsNumber(n) && n->valuedouble >= 0 && n->valuedouble <= 0x1p53 ? (int64_t)n->valuedouble : fallback;
}

/* Reads the settings of the run from state.json of the checkpoint. They stay empty if the folder has only files of
 * Hugging Face. */
static RunWords read_words(const char *checkpoint) {
    RunWords w = {0};
    char     fault[MANIFEST_FAULT_BYTES];
    if (folder_manifest(checkpoint, &w.manifest, fault) != MANIFEST_GOOD) return w;
    const cJSON *config = w.manifest.config, *val = config_value(config, "data.val");
    w.val = cJSON_GetArraySize(val) > 0 ? val : NULL;
    w.is_run = 1, w.masks = cJSON_IsTrue(config_value(config, "data.document_mask"));
    w.seq_len = count_in(config, "batch.seq_len", 0);
    w.tokens = count_in(config, "eval.tokens", DEFAULT_TOKENS);
    return w;
}

/* --- loss --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t tokens;
    double  loss, bytes_per_token;
} Loss; /* tokens is 0 if there is no data; bytes_per_token is NaN if not known */

/* Returns the mean loss over the first `wanted` tokens of the data in plain order, in whole samples, at least one.
 * wanted 0: all tokens. end_of_text is the token that divides documents, or -1. */
static Loss loss_over(const Scorer *s, Model *m, const Dataset *d, int64_t wanted, int32_t end_of_text) {
    int64_t     T = d->seq_len, B = s->room.inputs.dim[0], samples = dataset_first_samples(d, wanted);
    ContextPart part = context_part(m->gpt.context);
    int64_t     own = T / part.ranks;
    int32_t    *host = xmalloc(sizeof *host * (size_t)(3 * (B * own + T)), "a batch of tokens");
    int32_t *inputs = host, *targets = inputs + B * own, *starts = targets + B * own, *sample = starts + B * own;
    step_sums_zero(&m->sums, &m->stream);
    for (int64_t i = 0, count; i < samples; i += count) {
        count = model_batch(B, samples - i);
        if (s->says) say_part("validation", i, samples);
        for (int64_t k = 0; k < count; k++) {
            dataset_sample(d, i + k, sample, sample + T);
            context_take(inputs + k * own, sample, part, own);
            context_take(targets + k * own, sample + T, part, own);
            document_starts(sample + 2 * T, sample, T, end_of_text);
            context_take(starts + k * own, sample + 2 * T, part, own);
        }
        Batch batch = {tensor_2d(s->room.inputs.data, I32, count, own),
                       tensor_2d(s->room.targets.data, I32, count, own),
                       end_of_text >= 0 ? tensor_2d(s->room.starts.data, I32, count, own) : tensor_none()};
        device_from_host(&m->stream, batch.inputs, inputs);
        device_from_host(&m->stream, batch.targets, targets);
        if (end_of_text >= 0) device_from_host(&m->stream, batch.starts, starts);
        pipeline_forward(&m->pipeline, &m->stream, batch);
        pipeline_loss(&m->pipeline, &m->stream, batch);
    }
    Exact sum = step_sums_fetch(&m->sums, &m->stream).sum[SUM_LOSS];
    if (s->all) comm_all_reduce_i64(s->all, sum.word, EXACT_WORDS, COMM_SUM);
    free(host);
    return (Loss){samples * T, exact_value(&sum) / (double)(samples * T), NAN};
}

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
    Loss        loss;
    TaskScores *task;
    int         tasks;
} Results;

static void print_table(FILE *to, const Results *r) {
    print_plain(to, "%s\n", r->checkpoint);
    if (r->loss.tokens > 0)
        fprintf(to, "loss          %.6f over %lld tokens\nperplexity    %.6g\n", r->loss.loss,
                (long long)r->loss.tokens, exp(r->loss.loss));
    if (r->loss.tokens > 0 && !isnan(r->loss.bytes_per_token))
        fprintf(to, "bits per byte %.6f (%.4g bytes a token)\n", bits_per_byte(r->loss.loss, r->loss.bytes_per_token),
                r->loss.bytes_per_token);
    double core = task_core(r->task, r->tasks);
    if (r->tasks > 0)
        fprintf(to, "%-24s %7s %8s %8s %9s %8s %12s%s\n", "task", "n", "acc", "stderr", "acc_norm", "stderr",
                "perplexity", isnan(core) ? "" : "  centered");
    for (int i = 0; i < r->tasks; i++) {
        const TaskScores *t = &r->task[i];
        print_plain(to, "%-24s %7lld %8.4f %8.4f", t->name, (long long)t->questions, t->acc, t->acc_stderr);
        if (t->kind == TASK_CONTINUATION) fprintf(to, " %9s %8s %12.6g", "", "", t->perplexity);
        else fprintf(to, " %9.4f %8.4f", t->acc_norm, t->acc_norm_stderr);
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
    if (r->loss.tokens > 0) {
        put(json, "loss", r->loss.loss), put(json, "perplexity", exp(r->loss.loss));
        if (!isnan(r->loss.bytes_per_token)) put(json, "bpb", bits_per_byte(r->loss.loss, r->loss.bytes_per_token));
        put(json, "tokens", (double)r->loss.tokens);
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
static void evaluate_all(const RunWords *words, const char *run, const char *checkpoint,
                         ModelShape shape, int64_t T, const Groups *groups) {
    int        is_first = !groups || comm_rank(groups->job) == 0;
    Task       task[MOST_TASKS];
    TaskScores scores[MOST_TASKS];
    Dataset    d = open_data(words, T, shape.vocab_size);
    int64_t    room_T = T; /* positions for which memory is allocated */
    char       advice[300];
    if (!d.shards && asked.tasks == 0)
        fail(EXIT_CONFIG,
             "eval: %s knows no held-out data: data=GLOB names files of tokens to evaluate, tasks=FILE a file of "
             "questions",
             checkpoint);
    Tokenizer  tokenizer = stored_tokenizer(asked.tokenizer, run, checkpoint, shape.vocab_size);
    StoredEnds ends = stored_ends("eval", checkpoint, &tokenizer, shape.vocab_size, NULL, is_first);
    for (int i = 0; i < d.shards; i++)
        if (i == 0 || !tokens_json_is_same(d.shard[i - 1].path, d.shard[i].path))
            tokenizer_refuse_other(&tokenizer, asked.tokenizer ? asked.tokenizer : "the model's own tokenizer",
                                   d.shard[i].path, "the data",
                                   "give tokenizer=FOLDER_OR_FILE for the model, or data=GLOB for other data");
    for (int i = 0; i < asked.tasks; i++)
        task[i] = task_read(asked.task[i], (TaskReader){&tokenizer, T, ends.begin + 1, !groups});
    int64_t longest = 1;
    for (int i = 0; i < asked.tasks; i++)
        longest = task_longest(&task[i]) > longest ? task_longest(&task[i]) : longest;
    if (!d.shards) room_T = stored_room(T, longest, 1, groups);

    /* Documents are masked as in the training run. For foreign weights the default of the kind of model applies. */
    int       masks = words->is_run ? words->masks : shape.arch != ARCH_GPT2;
    int32_t   end_of_text = masks ? tokenizer_end_of_text(&tokenizer) : -1;
    snprintf(advice, sizeof advice,
             "eval: this needs memory for batch=%lld sequences of %lld positions: batch=1 needs less, and so does "
             "positions=%lld, with shorter sequences and another loss\n",
             (long long)asked.batch, (long long)room_T, (long long)(room_T > 1 ? room_T / 2 : 1));
    error_set_memory_advice(advice);
    ModelSpec spec = stored_spec(GPT_INFERENCE, shape, asked.batch, room_T, groups);
    spec.document_mask = end_of_text >= 0;
    Model  *m = model_create(spec);
    int64_t own = room_T / context_part(m->gpt.context).ranks;
    Arena   room = arena_create("tokens", 3 * (sizeof(int32_t) * (size_t)(asked.batch * own) + ARENA_ALIGN));
    Scorer  s = {.pipeline = &m->pipeline, .stream = &m->stream, .all = groups ? groups->job : NULL, .says = is_first};
    s.room.inputs = arena_tensor(&room, I32, 2, asked.batch, own, 1);
    s.room.targets = arena_tensor(&room, I32, 2, asked.batch, own, 1);
    s.room.starts = arena_tensor(&room, I32, 2, asked.batch, own, 1);
    matmul_algorithms.frozen = 1; /* no algorithm is chosen from here on, so that each call gives equal scores */
    checkpoint_read_weights(checkpoint, &m->shards->layout, m->shards->params, &m->stream, is_first);

    Results r = {.checkpoint = checkpoint, .task = scores, .tasks = asked.tasks};
    if (d.shards) r.loss = loss_over(&s, m, &d, asked.tokens >= 0 ? asked.tokens : words->tokens, end_of_text);
    if (d.shards) r.loss.bytes_per_token = dataset_bytes_per_token(&d, &tokenizer, r.loss.tokens / T);
    for (int i = 0; i < r.tasks; i++) {
        task_score(&s, &task[i], &scores[i]);
        if (scores[i].cut > 0)
            warn("%s: %lld texts (a context with a choice) are longer than %lld tokens and lost their beginning, which "
                 "can lower the scores%s", task[i].path, (long long)scores[i].cut, (long long)T,
                 asked.positions ? "" : "; positions= sets the limit, up to the model's positions");
    }
    error_set_memory_advice(NULL);
    if (is_first) {
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
    tokenizer_destroy(&tokenizer);
    arena_destroy(&room);
    model_destroy(m);
}

static int verb_eval(int argc, char **argv) {
    if (argc < 2) verb_misused("eval", "it needs a run folder or a checkpoint");
    verb_read("eval", 2, argc, argv, VERB_NOTHING);
    /* splits the list of task files at its commas, in place */
    for (char *word = (char *)asked.task_list, *comma; word && *word; word = comma) {
        comma = access(word, F_OK) == 0 ? NULL : strchr(word, ','); /* a file name may contain commas */
        if (comma) *comma++ = 0;
        if (asked.tasks == MOST_TASKS) fail(EXIT_CONFIG, "eval: tasks= names more than %d files", MOST_TASKS);
        asked.task[asked.tasks++] = word;
    }
    asked.lock = verb_take_out("eval", asked.out);
    Path        folder = weights_set_folder(argv[1]);
    const char *checkpoint = folder.text;
    ModelShape shape = stored_shape(checkpoint);
    RunWords   words = read_words(checkpoint);
    int64_t    T = shape.n_positions;
    /* no longer than the sequences of the training run */
    if (words.seq_len > 0 && words.seq_len < T) T = words.seq_len;
    T = stored_positions("eval", asked.positions, T, shape);
    if (verb_is_of_ranks(argc, argv)) {
        World *world = world_join(launch_detect());
        Comm  *all = world_all(world);
        stored_refuse_grid("eval", shape, T, asked.grid, comm_size(all));
        device_open(world_local_rank(world), world_threads(world));
        Groups groups = groups_create(all, mesh_of(comm_size(all), asked.grid), 0);
        groups_set_kind(&groups, comm_size(all) > 1 && comm_owns_device(all, device_id()) ? COMM_NCCL : COMM_RING);
        evaluate_all(&words, argv[1], checkpoint, shape, T, &groups);
        groups_free(&groups);
        world_leave(world);
    } else {
        device_open(0, omp_get_num_procs());
        evaluate_all(&words, argv[1], checkpoint, shape, T, NULL);
    }
    if (words.is_run) manifest_free(&words.manifest);
    return EXIT_DONE;
}

const Verb EVAL_VERB = {
    "eval", "RUN_OR_CHECKPOINT [key=value ...]", "loss, bits per byte and scores of tasks",
    "Prints loss, perplexity and bits per byte of a model over token shards, and its scores in tasks.", EVAL_KEYS,
    "./train_gpt eval runs/demo data='datasets/demo/val*'", verb_eval,
};
