/* sample_verb.c - `train_gpt sample RUN_OR_CHECKPOINT [key=value ...]`: text from a checkpoint, or from a Hugging Face
 * folder, to stdout. The folder describes the model, so neither the run's config nor its data need be there. Computes in
 * fp32 with the masters' own values. Under mpirun with parallel.tensor, .context or .pipeline the ranks share the model; without
 * these rank 0 has all of it. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/algorithms.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/weights_set.h"
#include "run/config/nearest.h"
#include "run/sample.h"
#include "run/stored_model.h"
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

static void take_argument(Asked *asked, const char *argument) {
    static const char *const names[] = {"prompt", "tokens", "temperature", "top_k", "seed", "parallel.tensor",
                                        "parallel.context", "parallel.pipeline", "tokenizer", NULL};
    SamplePlan *plan = &asked->plan;
    MeshSizes  *grid = &asked->grid;
    const char *value = strchr(argument, '=');
    char        name[64];
    snprintf(name, sizeof name, "%.*s", (int)(value ? value - argument : (ptrdiff_t)strlen(argument)), argument);
    int which = 0;
    while (names[which] && strcmp(names[which], name) != 0) which++;
    if (!names[which]) {
        Nearest near = nearest_word(name, names);
        fail(EXIT_CONFIG, "sample: unknown option \"%s\"%s%s%s; usage: %s", name, near.sure ? ", did you mean \"" : "",
             near.sure ? near.word : "", near.sure ? "\"?" : "", USAGE);
    }
    if (!value) fail(EXIT_CONFIG, "sample: %s needs a value: %s=...", name, name);
    value++;
    switch (which) {
        case 0: plan->prompt = value; break;
        case 1: plan->tokens = count_argument(name, value, 0, 1e7); break;
        case 2: plan->temperature = number_argument(name, value, 0, 1000); break;
        case 3: plan->top_k = count_argument(name, value, 0, 1e9); break;
        case 4: plan->seed = (uint64_t)count_argument(name, value, 0, 9007199254740992.0); break;
        case 5: grid->tensor = (int)count_argument(name, value, 1, 1024); break;
        case 6: grid->context = (int)count_argument(name, value, 1, 1024); break;
        case 7: grid->stages = (int)count_argument(name, value, 1, 1024); break;
        default: asked->tokenizer = value;
    }
}

/* --- the text ----------------------------------------------------------------------------------------------------- */

static void print_sample(const Asked *asked, const char *run, const char *checkpoint, const Groups *groups) {
    ModelShape shape = stored_shape(checkpoint);
    SamplePlan plan = asked->plan;
    Tokenizer  tokenizer = stored_tokenizer(asked->tokenizer, run, checkpoint, shape.vocab_size);
    if (*plan.prompt && tokenizer.kind == TOKENIZER_IDS)
        fail(EXIT_CONFIG,
             "sample: the model of %s has token ids only, no tokenizer that takes text: tokenizer=FOLDER_OR_FILE, or leave the prompt empty",
             checkpoint);
    Model *m = model_create(stored_spec(shape, 1, shape.n_positions, groups));
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
    ModelShape shape = stored_shape(checkpoint);
    stored_refuse_grid("sample", shape, shape.n_positions, asked->grid, comm_size(all));
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
    weights_set_folder(argv[1], checkpoint, sizeof checkpoint);
    if (verb_is_of_ranks(argc, argv)) {
        World *world = world_join(launch_detect());
        print_sample_of_ranks(&asked, argv[1], checkpoint, world);
        world_leave(world);
        return EXIT_DONE;
    }
    device_open(0, omp_get_num_procs());
    print_sample(&asked, argv[1], checkpoint, NULL);
    return EXIT_DONE;
}
