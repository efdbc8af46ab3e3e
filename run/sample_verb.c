/* sample_verb.c - `train_gpt sample RUN_OR_CHECKPOINT [key=value ...]`: text from a checkpoint, to stdout. The
 * checkpoint folder describes the model, so neither the run's config nor its data need be there. Computes in fp32 with
 * the masters' own values. Under mpirun with parallel.tensor, .context or .pipeline the ranks share the model; without
 * these rank 0 has all of it. */
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"
#include "layers/algorithms.h"
#include "model/hf_gpt2.h"
#include "model/model.h"
#include "run/checkpoint/checkpoint.h"
#include "run/config/config.h"
#include "run/config/nearest.h"
#include "run/sample.h"
#include "run/verbs.h"

static const char USAGE[] =
    "./train_gpt sample RUN_OR_CHECKPOINT [prompt=\"...\"] [tokens=256] [temperature=0.8] [top_k=0] [seed=1337] [tokenizer=FOLDER_OR_FILE]; "
    "under mpirun [parallel.tensor=1] [parallel.context=1] [parallel.pipeline=1]";

/* --- arguments ---------------------------------------------------------------------------------------------------- */

static double number_argument(const char *name, const char *text, double least, double most) {
    char  *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        fail(EXIT_CONFIG, "sample: %s=%s: a number from %g to %g is expected", name, text, least, most);
    return value;
}

static int64_t count_argument(const char *name, const char *text, double least, double most) {
    double value = number_argument(name, text, least, most);
    if (value != floor(value)) fail(EXIT_CONFIG, "sample: %s=%s: a whole number is expected", name, text);
    return (int64_t)value;
}

/* The command line. */
typedef struct { SamplePlan plan; MeshSizes grid; const char *tokenizer; } Asked;

enum { PROMPT, TOKENS, TEMPERATURE, TOP_K, SEED, TENSOR, CONTEXT, PIPELINE, TOKENIZER };
const VerbKey SAMPLE_KEYS[] = {
    [PROMPT] = {"prompt", "'Once upon'", "", "the text goes on from this"},
    [TOKENS] = {"tokens", "400", "256", "tokens after the prompt"},
    [TEMPERATURE] = {"temperature", "0.5", "0.8", "lower is more predictable; 0: the likeliest token each time"},
    [TOP_K] = {"top_k", "50", "0", "draw among the k likeliest tokens; 0: all"},
    [SEED] = {"seed", "42", "1337", "another seed gives another text"},
    [TENSOR] = {"parallel.tensor", "2", "1", "under mpirun: ranks that divide every matrix"},
    [CONTEXT] = {"parallel.context", "2", "1", "under mpirun: ranks that share the text"},
    [PIPELINE] = {"parallel.pipeline", "2", "1", "under mpirun: ranks that share the blocks"},
    [TOKENIZER] = {"tokenizer", "datasets/bpe", "the run's", "a tokenizer's folder or file"},
    {.name = NULL},
};

static NORETURN void refuse_argument(const char *argument) {
    const char *names[sizeof SAMPLE_KEYS / sizeof *SAMPLE_KEYS];
    char        name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(argument, "="), argument);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        names[i] = SAMPLE_KEYS[i].name;
        if (names[i] && strcmp(name, names[i]) == 0) fail(EXIT_CONFIG, "sample: %s needs a value: %s=...", name, name);
    }
    Nearest near = nearest_word(name, names);
    fail(EXIT_CONFIG, "sample: unknown option \"%s\"%s%s%s; usage: %s", name, near.sure ? ", did you mean \"" : "",
         near.sure ? near.word : "", near.sure ? "\"?" : "", USAGE);
}

static void take_argument(Asked *asked, const char *argument) {
    SamplePlan *plan = &asked->plan;
    MeshSizes  *grid = &asked->grid;
    const char *value = NULL;
    int         which = verb_key(SAMPLE_KEYS, argument, &value);
    if (which < 0) refuse_argument(argument);
    const char *name = SAMPLE_KEYS[which].name;
    switch (which) {
        case PROMPT: plan->prompt = value; break;
        case TOKENS: plan->tokens = count_argument(name, value, 0, 1e7); break;
        case TEMPERATURE: plan->temperature = number_argument(name, value, 0, 1000); break;
        case TOP_K: plan->top_k = count_argument(name, value, 0, 1e9); break;
        case SEED: plan->seed = (uint64_t)count_argument(name, value, 0, 9007199254740992.0); break;
        case TENSOR: grid->tensor = (int)count_argument(name, value, 1, 1024); break;
        case CONTEXT: grid->context = (int)count_argument(name, value, 1, 1024); break;
        case PIPELINE: grid->stages = (int)count_argument(name, value, 1, 1024); break;
        default: asked->tokenizer = value;
    }
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

/* From the checkpoint's config.json, with Hugging Face's names. */
static ModelShape read_shape(const char *checkpoint) {
    char      path[4200], *text;
    Json      json;
    JsonFault fault;
    snprintf(path, sizeof path, "%s/config.json", checkpoint);
    int64_t bytes = io_read_file(path, JSON_LIMIT, &text);
    if (bytes < 0)
        fail(bytes == -ENOMEM                    ? EXIT_MEMORY
             : bytes == -EIO || bytes == -EACCES ? EXIT_IO
                                                 : EXIT_DATA,
             "%s cannot be read: %s", path, strerror((int)-bytes));
    if (!json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault))
        fail(EXIT_DATA, "%s:%d:%d: %s", path, fault.at.line, fault.at.column, fault.text);
    ModelShape shape = hf_config_shape(json.root, path);
    json_free(&json);
    free(text);
    return shape;
}

/* --- the tokenizer ------------------------------------------------------------------------------------------------ */

/* data.tokenizer of the run's config.json, or the one beside its shards, for the caller to free; NULL where there is none. */
static char *tokenizer_of_run(const char *run) {
    char path[4200], *text = NULL;
    snprintf(path, sizeof path, "%s/config.json", run);
    int64_t bytes = io_read_file(path, JSON_LIMIT, &text);
    if (bytes < 0) return NULL;
    cJSON       *json = cJSON_ParseWithLength(text, (size_t)bytes);
    const cJSON *item = json_member(json_member(json, "data"), "tokenizer");
    char        *found = cJSON_IsString(item) && item->valuestring[0] ? strdup(item->valuestring) : NULL;
    const cJSON *train = json_member(json_member(json, "data"), "train");
    if (cJSON_IsArray(train)) train = train->child;
    if (!found && cJSON_IsString(train) && tokenizer_beside(train->valuestring, path, sizeof path)) found = strdup(path);
    cJSON_Delete(json);
    free(text);
    return found;
}

/* Returns the tokenizer of the command line, else that of the checkpoint, else that of the run. */
static Tokenizer find_tokenizer(const Asked *asked, const char *run, const char *checkpoint, int64_t vocab_size) {
    char path[4200], *of_run = NULL;
    if (asked->tokenizer) return tokenizer_create(asked->tokenizer, vocab_size);
    snprintf(path, sizeof path, "%s/tokenizer.json", checkpoint);
    if (io_file_bytes(path) > 0) return tokenizer_create(path, vocab_size);
    of_run = tokenizer_of_run(run);
    if (of_run && access(of_run, R_OK) != 0) {
        warn("%s was trained with the tokenizer %s, which is not there any more: tokenizer=FOLDER_OR_FILE says where it is",
             run, of_run);
        free(of_run), of_run = NULL;
    }
    Tokenizer t = tokenizer_create(of_run ? of_run : "", vocab_size);
    free(of_run);
    return t;
}

/* --- the ranks ---------------------------------------------------------------------------------------------------- */

int verb_sample_is_of_ranks(int argc, char **argv) {
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], "parallel.", 9) == 0) return 1;
    return 0;
}

/* The ranks that share the model, and no more. */
static void refuse_grid(ModelShape shape, MeshSizes grid, int ranks) {
    Config c = {.optimizer = {.name = "adamw"}};
    c.model.shape = shape;
    c.parallel.tensor = grid.tensor, c.parallel.context = grid.context, c.parallel.pipeline = grid.stages,
    c.parallel.interleave = c.parallel.replicas = 1;
    c.batch.micro_batch = 1, c.batch.seq_len = shape.n_positions, c.batch.global_tokens = shape.n_positions;
    int64_t wanted = (int64_t)grid.tensor * grid.context * grid.stages;
    if (wanted != ranks)
        fail(EXIT_CONFIG,
             "sample: parallel.tensor (%d) x context (%d) x pipeline (%d) = %lld ranks share the model, and there %s %d: mpirun -np %lld",
             grid.tensor, grid.context, grid.stages, (long long)wanted, ranks == 1 ? "is" : "are", ranks,
             (long long)wanted);
    char *fault = config_check_changed(&c, ranks);
    if (fault) fail(EXIT_CONFIG, "sample: %s", fault);
}

static ModelSpec spec_of(ModelShape shape, const Groups *g) {
    ModelSpec spec = {.shards = {.shape = shape, .ranks = 1, .act = F32, .use = GPT_INFERENCE}, .B = 1, .T = shape.n_positions};
    if (!g) return spec;
    spec.shards.ranks = g->mesh.size[AXIS_CONTEXT], spec.shards.tensor_ranks = g->mesh.size[AXIS_TENSOR],
    spec.context_ranks = g->mesh.size[AXIS_CONTEXT];
    spec.pipeline = (PipelineSpec){.stages = g->mesh.size[AXIS_STAGE], .parts = 1, .micro_batches = 1};
    model_take_groups(&spec, g);
    return spec;
}

/* --- the text ----------------------------------------------------------------------------------------------------- */

static void print_sample(const Asked *asked, const char *run, const char *checkpoint, const Groups *groups) {
    ModelShape shape = read_shape(checkpoint);
    SamplePlan plan = asked->plan;
    Tokenizer  tokenizer = find_tokenizer(asked, run, checkpoint, shape.vocab_size);
    if (*plan.prompt && tokenizer.kind == TOKENIZER_IDS)
        fail(EXIT_CONFIG,
             "sample: the model of %s has token ids only, no tokenizer that takes text: tokenizer=FOLDER_OR_FILE, or leave the prompt empty",
             checkpoint);
    Model *m = model_create(spec_of(shape, groups));
    Arena  window = arena_create("tokens", sizeof(int32_t) * (size_t)shape.n_positions);
    plan.window = arena_tensor(&window, I32, 1, shape.n_positions, 1, 1);
    matmul_algorithms_freeze(); /* no product is worth being timed for a text, and the same text comes each time */
    checkpoint_read_weights(checkpoint, &m->shards->layout, m->shards->params, &m->stream);

    char *text = sample_text(&m->pipeline, &m->stream, &tokenizer, plan); /* all ranks draw the same */
    if (!groups || comm_rank(groups->job) == 0) puts(text);
    free(text);
    tokenizer_destroy(&tokenizer);
    arena_destroy(&window);
    model_destroy(m);
}

static void print_sample_of_ranks(const Asked *asked, const char *run, const char *checkpoint, World *world) {
    Comm *all = world_all(world);
    refuse_grid(read_shape(checkpoint), asked->grid, comm_size(all));
    device_open(world_local_rank(world), world_threads(world));
    Groups groups = groups_create(all, mesh_of(comm_size(all), asked->grid), 0);
    groups_set_kind(&groups, comm_size(all) > 1 && comm_owns_device(all, device_id()) ? COMM_NCCL : COMM_RING);
    print_sample(asked, run, checkpoint, &groups);
    groups_free(&groups);
}

int verb_sample(int argc, char **argv) {
    if (argc < 2) fail(EXIT_CONFIG, "sample needs a run folder or a checkpoint: %s", USAGE);
    Asked asked = {.plan = {.prompt = "", .tokens = 256, .temperature = 0.8, .top_k = 0, .seed = 1337}, .grid = {1, 1, 1, 1}};
    char  checkpoint[4096];
    for (int i = 2; i < argc; i++) take_argument(&asked, argv[i]);
    if (!checkpoint_find(argv[1], checkpoint, sizeof checkpoint))
        fail(EXIT_DATA, "%s is neither a checkpoint nor a run folder that holds a complete one", argv[1]);
    if (verb_sample_is_of_ranks(argc, argv)) {
        World *world = world_join(launch_detect());
        print_sample_of_ranks(&asked, argv[1], checkpoint, world);
        world_leave(world);
        return EXIT_DONE;
    }
    device_open(0, omp_get_num_procs());
    print_sample(&asked, argv[1], checkpoint, NULL);
    return EXIT_DONE;
}
