/* sample.c - `train_gpt sample RUN_OR_CHECKPOINT [key=value ...]`: draws text from a checkpoint or a Hugging Face
 * folder, and prints it on stdout, token by token. Everything else goes to stderr. The folder describes the model, so
 * config and data of the run may be missing. It computes in fp32 with the values of the masters. Under mpirun with
 * parallel.tensor, .context or .pipeline the ranks divide the model. Without these rank 0 has all of it. */
#include <errno.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "core/memory_file.h"
#include "core/terminal.h"
#include "core/xalloc.h"
#include "layers/algorithms.h"
#include "data/text_file.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/weights.h"
#include "run/text/sample.h"
#include "run/verbs/arguments.h"
#include "run/verbs/sample_options.h"
#include "run/text/stored_model.h"
#include "run/verbs/verbs.h"

/* Returns the exit code for a file that cannot be read. */
static int exit_of(int64_t fault) {
    return fault == -ENOMEM ? EXIT_MEMORY : fault == -EIO || fault == -EACCES ? EXIT_IO : EXIT_DATA;
}

/* --- the prompt --------------------------------------------------------------------------------------------------- */

enum { PROMPT_LIMIT = 64 << 20 };

/* Reads standard input into *text, malloc'ed. Returns its length, or -errno. */
static int64_t read_input(char **text) {
    size_t room = 0, bytes = 0;
    *text = NULL;
    for (ssize_t n = 1; n != 0;) {
        if (bytes + 1 >= room) *text = realloc(*text, room = 2 * room + 4096);
        if (!*text) return -ENOMEM;
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
    int         is_input = strcmp(prompt, "-") == 0, is_file = *prompt == '@';
    const char *name = is_input ? "standard input" : prompt + 1;
    char       *text = NULL;
    if (!is_input && !is_file) {
        *bytes = (int64_t)strlen(prompt);
        return xstrdup(prompt, "a prompt");
    }
    if (!job || comm_rank(job) == 0) {
        *bytes = is_input ? read_input(&text) : io_read_input(name, PROMPT_LIMIT, &text);
        if (*bytes < 0)
            fail(exit_of(*bytes), "sample: the prompt in %s cannot be read: %s", name, io_error_text((int)*bytes));
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

static Prompt take_prompt(const SampleOptions *asked, const Tokenizer *tokenizer, const char *checkpoint, Comm *job,
                          int64_t positions, int32_t begin) {
    int64_t bytes = 0;
    char   *text = read_prompt(asked->prompt, job, &bytes);
    if (bytes > 0 && tokenizer->kind == TOKENIZER_IDS)
        fail(EXIT_CONFIG,
             "sample: the model of %s has token ids only, no tokenizer that takes text: tokenizer=FOLDER_OR_FILE, or leave the prompt empty",
             checkpoint);
    Prompt p = prompt_create(tokenizer, text, (size_t)bytes, begin);
    if (p.count > positions && (!job || comm_rank(job) == 0))
        fprintf(stderr, "sample: the prompt has %lld tokens, and the model %s%lld positions: it sees the last %lld\n",
                (long long)p.count, asked->positions ? "is given " : "", (long long)positions,
                (long long)prompt_seen(&p, positions));
    free(text);
    return p;
}

/* --- the text ----------------------------------------------------------------------------------------------------- */

/* Destination of the text: file, or if that is NULL standard output, token by token. A reader that closes standard
 * output ends the text silently. */
typedef struct { int prints, is_closed; FILE *file; } Output;

static void put_text(void *output, const char *text, size_t bytes) {
    Output *o = (Output *)output;
    if (o->file && o->prints && fwrite(text, 1, bytes, o->file) != bytes) fail(EXIT_MEMORY, "no memory for the text");
    if (o->file) return;
    for (ssize_t n; o->prints && !o->is_closed && bytes > 0;) {
        n = write(STDOUT_FILENO, text, bytes);
        if (n >= 0) text += n, bytes -= (size_t)n;
        else if (errno == EPIPE) o->is_closed = 1;
        else if (errno != EINTR) fail(EXIT_IO, "the text could not be written: %s", io_error_text(errno));
    }
}

static int has_no_reader(void *output) { return ((Output *)output)->is_closed; }

/* Prints "step 400 of runs/mine (checkpoints/step_00000400)", or the path of a checkpoint with another name. */
static void print_origin(const char *checkpoint, const Model *m) {
    const char *slash = strrchr(checkpoint, '/'), *name = slash ? slash + 1 : checkpoint, *inside = "/checkpoints/";
    size_t      run = slash ? (size_t)(slash - checkpoint) + 1 : 0, length = strlen(inside);
    int         is_of_run = run >= length && strncmp(checkpoint + run - length, inside, length) == 0;
    long long   step = -1;
    ModelShape  shape = m->spec.shards.shape;
    fputs("sample: ", stderr);
    if (sscanf(name, "step_%lld", &step) == 1) fprintf(stderr, "step %lld of ", step);
    if (step >= 0 && is_of_run) print_plain(stderr, "%.*s (checkpoints/%s)", (int)(run - length), checkpoint, name);
    else print_plain(stderr, "%s", checkpoint);
    fprintf(stderr, ", %lld layers of width %lld, %.2f M parameters\n", (long long)shape.n_layer,
            (long long)shape.n_embd, (double)m->shards->layout.elems * 1e-6);
}

static void print_rate(Sampled all) {
    fprintf(stderr, "sample: %lld tokens in %.2f s, %.1f tokens/s\n", (long long)all.tokens, all.ms * 1e-3,
            all.ms > 0 ? (double)all.tokens * 1e3 / all.ms : 0.0);
}

/* Prints the texts, each with its own seed. If there are several, each has its number above it. */
static void print_texts(const SampleOptions *asked, SamplePlan plan, Model *m, const Tokenizer *tokenizer,
                        Output *out) {
    Sampled all = {0};
    for (int64_t i = 0; i < asked->texts && !all.left_off; i++) {
        char line[80] = "";
        plan.seed = (uint64_t)(asked->seed + i);
        if (asked->texts > 1)
            snprintf(line, sizeof line, "--- %lld of %lld, seed %lld ---\n", (long long)i + 1, (long long)asked->texts,
                     (long long)(asked->seed + i));
        put_text(out, line, strlen(line));
        Sampled one = sample_stream(&m->pipeline, &m->stream, tokenizer, &plan);
        put_text(out, "\n", 1);
        all.tokens += one.tokens, all.ms += one.ms;
        all.left_off = one.left_off || (plan.leave && out->is_closed); /* with ranks, only one of them knows it */
    }
    if (out->prints) print_rate(all);
}

static void print_sample(const SampleOptions *asked, const char *checkpoint, ModelShape shape, const Groups *groups) {
    Comm      *job = groups ? groups->job : NULL;
    Output     out = {.prints = !job || comm_rank(job) == 0};
    char      *text = NULL;
    size_t     bytes = 0;
    if (asked->out && !(out.file = memory_file_open(&text, &bytes))) fail(EXIT_MEMORY, "no memory for the text");
    int64_t    positions = stored_positions("sample", asked->positions, shape.n_positions, shape);
    Tokenizer  tokenizer = stored_tokenizer(asked->tokenizer, asked->path, checkpoint, shape.vocab_size);
    StoredEnds ends = stored_ends("sample", checkpoint, &tokenizer, shape.vocab_size, asked->given, out.prints);
    SamplePlan plan = {.prompt = take_prompt(asked, &tokenizer, checkpoint, job, positions, ends.begin),
                       .tokens = asked->tokens,
                       .rule = asked->rule,
                       .end = ends.end,
                       .ends = asked->ends_at_eot ? ends.ends : 0,
                       .stop = (const char *const *)asked->stop,
                       .stops = asked->stops,
                       .put = put_text,
                       .ctx = &out};
    if (!job) plan.leave = has_no_reader; /* with ranks the texts are drawn to the end, because all must agree */
    int64_t T = stored_room(positions, plan.prompt.count + plan.tokens, 0, groups);
    char    advice[300];
    snprintf(advice, sizeof advice,
             "sample: this needs memory for %lld positions (prompt and tokens=, at most positions=): positions=%lld "
             "needs less, and a token then sees at most that many tokens\n",
             (long long)T, (long long)(T > 1 ? T / 2 : 1));
    error_set_memory_advice(advice);
    Model *m = model_create(stored_spec(GPT_SAMPLING, shape, 1, T, groups));
    Arena  window = arena_create("tokens", sizeof(int32_t) * (size_t)T);
    plan.window = arena_tensor(&window, I32, 1, T, 1, 1);
    matmul_algorithms_freeze(); /* timing products would not pay for a text, and could change it */
    checkpoint_read_weights(checkpoint, &m->shards->layout, m->shards->params, &m->stream, out.prints);
    if (out.prints) print_origin(checkpoint, m);
    print_texts(asked, plan, m, &tokenizer, &out);
    if (out.file && fclose(out.file) != 0) fail(EXIT_MEMORY, "no memory for the text");
    if (out.file && out.prints) verb_put("sample", asked->out, asked->lock, text, bytes);
    free(text);
    error_set_memory_advice(NULL);
    prompt_free(&plan.prompt);
    tokenizer_destroy(&tokenizer);
    arena_destroy(&window);
    model_destroy(m);
}

static void print_sample_of_ranks(const SampleOptions *asked, const char *checkpoint, World *world) {
    Comm     *all = world_all(world);
    MeshSizes grid = {(int)asked->tensor, (int)asked->context, (int)asked->stages, 1};
    ModelShape shape = stored_shape(checkpoint);
    stored_refuse_grid("sample", shape, stored_positions("sample", asked->positions, shape.n_positions, shape), grid,
                       comm_size(all));
    device_open(world_local_rank(world), world_threads(world));
    Groups groups = groups_create(all, mesh_of(comm_size(all), grid), 0);
    groups_set_kind(&groups, comm_size(all) > 1 && comm_owns_device(all, device_id()) ? COMM_NCCL : COMM_RING);
    print_sample(asked, checkpoint, shape, &groups);
    groups_free(&groups);
}

int verb_sample(int argc, char **argv) {
    SampleOptions asked = sample_options(argc, argv);
    char          checkpoint[4096];
    weights_set_folder(asked.path, checkpoint, sizeof checkpoint);
    signal(SIGPIPE, SIG_IGN); /* put_text then gets a failed write */
    if (verb_is_of_ranks(argc, argv)) {
        World *world = world_join(launch_detect());
        print_sample_of_ranks(&asked, checkpoint, world);
        world_leave(world);
    } else {
        device_open(0, omp_get_num_procs());
        print_sample(&asked, checkpoint, stored_shape(checkpoint), NULL);
    }
    sample_options_free(&asked);
    return EXIT_DONE;
}
