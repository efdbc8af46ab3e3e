/* verbs.c - see verbs.h: the table of verbs, --help, --version. */
#include "run/verbs.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "comm/comm.h"
#include "core/device.h"
#include "core/error.h"
#include "run/config/config.h"
#include "run/config/nearest.h"
#include "run/start.h"

#define VERSION "0.1.0"
#ifndef GIT_COMMIT
#define GIT_COMMIT "unknown"
#endif

const char *program_version(void) { return VERSION " (commit " GIT_COMMIT ")"; }
const char *program_commit(void) { return GIT_COMMIT; }

static int verb_schema(int argc, char **argv) {
    if (argc > 1) fail(EXIT_CONFIG, "schema takes no arguments, and there is \"%s\"", argv[1]);
    config_print_schema(stdout);
    return EXIT_DONE;
}

typedef struct {
    const char *word, *arguments, *help;
    int       (*main)(int argc, char **argv);
} Verb;

static const Verb VERBS[] = {
    {"check",    "config.json [key=value ...] [ranks=N]", "read a config, print what was understood, look at its data", verb_check},
    {"eval",     "RUN_OR_CHECKPOINT [key=value ...]",     "loss, bits per byte and scores of tasks; under mpirun on a grid",              verb_eval},
    {"plan",     "config.json [key=value ...] [ranks=N] [gpu=h100]", "parameters, memory, tokens and time of a run, here or elsewhere", verb_plan},
    {"sample",   "RUN_OR_CHECKPOINT [key=value ...]",     "text from a trained model; under mpirun on a grid",                                verb_sample},
    {"export",   "RUN_OR_CHECKPOINT out=FOLDER [dtype=bf16]", "a folder that Hugging Face transformers loads",         verb_export},
    {"tokenize", "...",                                   "text into token shards; tokenize alone prints how",         verb_tokenize},
    {"train-tokenizer", "TEXT... out=FOLDER vocab_size=N", "a byte-pair vocabulary learnt from text",             verb_train_tokenizer},
    {"plot",     "RUN... [out=plot.svg] [x=tokens|steps|hours] [csv=FILE]", "losses of several runs in one picture", verb_plot},
    {"watch",    "RUN... [once=true]",                    "runs in the terminal, redrawn every two seconds",        verb_watch},
    {"inspect",  "PATH [tensors=true] [json=true]",       "what a file or folder is: tokens, weights, checkpoint, run",    verb_inspect},
    {"diff",     "A B [tensors=true]",                    "where two runs, checkpoints, configs or weights differ; exit 1 then", verb_diff},
    {"doctor",   "[run.dir=FOLDER]",                      "what this machine has for training: ok, or the cure",           verb_doctor},
    {"schema",   "",                                      "JSON Schema of the config, for editors",                   verb_schema},
};
enum { VERB_COUNT = sizeof VERBS / sizeof *VERBS };

static const Verb *find_verb(const char *word) {
    for (int i = 0; i < VERB_COUNT; i++)
        if (!strcmp(VERBS[i].word, word)) return &VERBS[i];
    return NULL;
}

static int is_one_of(const char *word, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(word, *list)) return 1;
    return 0;
}
static const char *const HELP_WORDS[] = {"--help", "-h", "help", "-help", NULL};
static const char *const VERSION_WORDS[] = {"--version", "-V", "-v", "version", "-version", NULL};

static void print_usage(FILE *out) {
    fprintf(out, "usage: train_gpt config.json [key=value ...]                  train\n"
                 "       mpirun -np N train_gpt config.json [key=value ...]     train on N ranks\n");
    for (int i = 0; i < VERB_COUNT; i++) {
        char command[80];
        snprintf(command, sizeof command, "train_gpt %s %s", VERBS[i].word, VERBS[i].arguments);
        fprintf(out, "       %-54s %s\n", command, VERBS[i].help);
    }
    fprintf(out, "       train_gpt --help | --version\n");
}

static int print_help(void) {
    printf("train_gpt pretrains GPT models from one JSON config.\n\n");
    print_usage(stdout);
    printf("\nA config:\n"
           "  { \"run\": {\"steps\": 600},\n"
           "    \"model\": {\"n_layer\": 4, \"n_head\": 6, \"n_embd\": 192, \"n_positions\": 256, \"vocab_size\": 256},\n"
           "    \"data\": {\"train\": \"data/train_*.bin\", \"val\": \"data/val_*.bin\"},\n"
           "    \"batch\": {\"global_tokens\": 12288, \"micro_batch\": 4},\n"
           "    \"optimizer\": {\"learning_rate\": 2e-3} }\n"
           "Any key can be given after the file too: run.steps=100 optimizer.learning_rate=3e-4 data.train='[\"a_*.bin\", \"b_*.bin\"]'\n"
           "\nOptions (default, then meaning and what is allowed):\n");
    config_print_help(stdout);
    printf(
        "\nExit codes: 0 done; 64 usage or config; 65 bad data or checkpoint; 69 no GPU, MPI or NCCL; 70 internal; 71 out of memory;\n"
        "  73 run folder locked or in use; 74 I/O; 75 stopped on request, checkpointed, resumable; 76 numerical stop;\n"
        "  77 a peer lost or timed out.\n");
    return EXIT_DONE;
}

static int print_version(void) {
    unsigned xxh = XXH_versionNumber();
    printf("train_gpt %s (commit %s)\nbackend   %s\ncompiler  "
#ifdef __clang__
           "%s\n"
#else
           "gcc %s\n"
#endif
           "libraries cJSON %s, xxHash %u.%u.%u, MPI: %s\n",
           VERSION, GIT_COMMIT, device_backend(), __VERSION__, cJSON_Version(), xxh / 10000, xxh / 100 % 100, xxh % 100,
           world_library());
    return EXIT_DONE;
}

/* Exit 64 with the likely mistake: the first argument is no verb, no option and no file. */
static NORETURN void refuse_word(const char *word) {
    const char *words[VERB_COUNT + 4];
    int         count = 0;
    for (int i = 0; i < VERB_COUNT; i++) words[count++] = VERBS[i].word;
    words[count++] = "--help";
    words[count++] = "--version";
    words[count] = NULL;
    if (edit_distance(word, "train") <= 1)
        fail(EXIT_CONFIG, "\"%s\" is neither a verb nor a file; to train, name the config alone: train_gpt config.json", word);
    if (strchr(word, '=')) fail(EXIT_CONFIG, "the config comes first: train_gpt config.json %s", word);
    Nearest nearest = nearest_word(word, words);
    if (*word != '-' && nearest.word[0] == '-') nearest.sure = 0;
    if (nearest.sure) fail(EXIT_CONFIG, "\"%s\" is neither a verb nor a file; did you mean \"%s\"?", word, nearest.word);
    fail(EXIT_CONFIG, "\"%s\" is neither a verb nor a file; train_gpt --help lists what there is", word);
}

int verb_is_of_ranks(int argc, char **argv) {
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], "parallel.", 9) == 0 || strncmp(argv[i], "--parallel.", 11) == 0) return 1;
    return 0;
}

int is_verb(int argc, char **argv) {
    if (argc < 2) return 1;
    const char *word = argv[1];
    if (find_verb(word) || *word == '-' || is_one_of(word, HELP_WORDS) || is_one_of(word, VERSION_WORDS)) return 1;
    return (!strpbrk(word, "./") || strchr(word, '=')) && access(word, F_OK) != 0;
}

static int do_verb(const Verb *verb, int argc, char **argv) {
    if (is_one_of(argv[1], HELP_WORDS)) return print_help();
    if (is_one_of(argv[1], VERSION_WORDS)) return print_version();
    if (verb->main != verb_tokenize && argc > 2 && is_one_of(argv[2], HELP_WORDS)) {
        printf("usage: train_gpt %s %s\n%s\n", verb->word, verb->arguments, verb->help);
        return EXIT_DONE;
    }
    return verb->main(argc - 1, argv + 1);
}

int verb_main(int argc, char **argv) {
    Launch launch = launch_detect();
    if (argc < 2) {
        if (launch.rank == 0) print_usage(stderr);
        return EXIT_CONFIG;
    }
    const Verb *verb = find_verb(argv[1]);
    if (!verb && !is_one_of(argv[1], HELP_WORDS) && !is_one_of(argv[1], VERSION_WORDS)) {
        world_expect(launch); /* this was to be a run of all ranks */
        refuse_word(argv[1]);
    }
    int of_ranks = verb && (verb->main == verb_sample || verb->main == verb_eval) && verb_is_of_ranks(argc, argv);
    if (of_ranks) world_expect(launch);
    else if (launch.rank > 0) return EXIT_DONE; /* rank 0 does it, once */
    start_computing();
    int status = do_verb(verb, argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) fail(EXIT_IO, "what was to be printed could not be written: is the disk full?");
    return status;
}
