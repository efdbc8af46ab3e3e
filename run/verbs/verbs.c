/* verbs.c - see verbs.h: the table of verbs, their dispatch, and --version. */
#include "run/verbs/verbs.h"

#include <cjson/cJSON.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "comm/comm.h"
#include "core/device.h"
#include "core/error.h"
#include "core/version.h"
#include "run/config/config.h"
#include "run/config/faults.h"
#include "run/start.h"

static int verb_schema(int argc, char **argv) {
    if (argc > 1) fail(EXIT_CONFIG, "schema takes no arguments, and there is \"%s\"", argv[1]);
    config_print_schema(stdout);
    return EXIT_DONE;
}

const Verb VERBS[] = {
    {"check", "config.json [key=value ...] [ranks=N]", "read a config, print what was understood, look at its data",
     "Checks a config as a run would, without starting one: every fault with line and column, then the sizes that "
     "follow from it, and the data. Writes nothing.",
     CHECK_KEYS, "./train_gpt check configs/demo.json batch.micro_batch=8 ranks=2", verb_check},
    {"plan", "config.json [key=value ...]", "parameters, memory, tokens and time of a run",
     "Prints what a run will take, here or on GPUs that are not here. Config keys may follow the file, beside these:",
     PLAN_KEYS, "./train_gpt plan configs/gpt2-124m.json gpu=h100 ranks=8", verb_plan},
    {"train-tokenizer", "TEXT... out=FOLDER vocab_size=N", "a byte-pair vocabulary learnt from text",
     "Learns a byte-pair vocabulary and writes FOLDER/tokenizer.json, which tokenize, training and Hugging Face "
     "tokenizers read. The same texts in the same order give the same file.",
     TRAIN_TOKENIZER_KEYS, "./train_gpt train-tokenizer mytext.txt out=datasets/bpe vocab_size=8000",
     verb_train_tokenizer},
    {"tokenize", "TEXT... out=FOLDER [key=value ...]", "text into token shards",
     "Turns text into token shards (llm.c format): FOLDER/train_000000.bin ..., and a part of it into "
     "FOLDER/val_000000.bin ... for validation. A text is a document; so is each line of JSON Lines, each row of "
     "parquet. Text and JSON Lines may be packed (.gz .zst .xz); a folder stands for all files in it; - is standard "
     "input; a text whose name reads like a key is given as ./name=x. Shards of an earlier call are replaced.",
     TOKENIZE_KEYS, "./train_gpt tokenize mytext.txt out=datasets/my val=0.05", verb_tokenize},
    {"sample", "RUN_OR_CHECKPOINT [key=value ...]", "text from a trained model",
     "Prints text that the model of a run folder or checkpoint writes. Under mpirun, parallel.* divides a model that "
     "needs more than one rank.",
     SAMPLE_KEYS, "./train_gpt sample runs/demo prompt='In the beginning' tokens=300", verb_sample},
    {"eval", "RUN_OR_CHECKPOINT [key=value ...]", "loss, bits per byte and scores of tasks",
     "Prints loss, perplexity and bits per byte of a model over token shards, and its scores in tasks.", EVAL_KEYS,
     "./train_gpt eval runs/demo data='datasets/demo/val*'", verb_eval},
    {"export", "RUN_OR_CHECKPOINT out=FOLDER [key=value ...]", "a folder that Hugging Face transformers loads",
     "Writes a checkpoint's weights with config, tokenizer and a model card, as transformers loads them.", EXPORT_KEYS,
     "./train_gpt export runs/demo out=models/demo dtype=bf16", verb_export},
    {"plot", "RUN... [key=value ...]", "losses of several runs in one picture",
     "Draws the losses of runs, smoothed over raw; the legend has what differs in their configs.", PLOT_KEYS,
     "./train_gpt plot runs/a runs/b out=compare.svg", verb_plot},
    {"watch", "RUN... [once=true]", "runs in the terminal, redrawn every two seconds",
     "Shows where runs are, from their files, on any machine that sees the folders. Ctrl-C ends it.", WATCH_KEYS,
     "./train_gpt watch runs/demo", verb_watch},
    {"serve", "config.json [key=value ...]", "the server of islands: jobs that train one model",
     "Holds the weights of a run that several jobs train, its islands: jobs with the same config and outer.server. It gives "
     "each its samples, and makes new weights of what they send after outer.every steps. It needs a run.dir of its own. "
     "outer.key is made where it is not there: the islands' hosts need a copy. Config keys may follow the file, beside:",
     SERVE_KEYS, "./train_gpt serve run.json outer.server=head:7000 run.dir=runs/server", verb_serve},
    {"inspect", "PATH [key=value ...]", "what a file or folder is: tokens, weights, a run",
     "Tells what a file or folder is, ours or of other programs: token shards, tokenizers, weights, checkpoints, runs.",
     INSPECT_KEYS, "./train_gpt inspect runs/demo", verb_inspect},
    {"diff", "A B [tensors=true]", "where two runs, checkpoints or configs differ",
     "Compares two runs, checkpoints, configs or files of weights. Exit 0: nothing differs; 1: something does.",
     DIFF_KEYS, "./train_gpt diff runs/a runs/b", verb_diff},
    {"doctor", "[FOLDER]", "what this machine has for training: ok, or the cure",
     "Looks at processor, memory, GPU, MPI and disk. Exit 69 where something must be mended first.", DOCTOR_KEYS,
     "./train_gpt doctor", verb_doctor},
    {"schema", "", "JSON Schema of the config, for editors",
     "Prints the JSON Schema of configs; configs/train_gpt.schema.json has it. An editor completes keys of a file with "
     "\"$schema\": \"train_gpt.schema.json\".",
     NULL, "./train_gpt schema > train_gpt.schema.json", verb_schema},
    {.word = NULL},
};

const Verb *verb_find(const char *word) {
    for (const Verb *v = VERBS; v->word; v++)
        if (!strcmp(v->word, word)) return v;
    return NULL;
}

void verbs_plain_keys(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        int    is_dashed = strncmp(argv[i], "--", 2) == 0;
        size_t key = is_dashed ? strspn(argv[i] + 2, "abcdefghijklmnopqrstuvwxyz_.$0123456789") : 0;
        if (key > 0 && argv[i][2 + key] == '=') argv[i] += 2;
    }
}

static int is_one_of(const char *word, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(word, *list)) return 1;
    return 0;
}
static const char *const HELP_WORDS[] = {"--help", "-h", "help", "-help", NULL};
static const char *const VERSION_WORDS[] = {"--version", "-V", "-v", "version", "-version", NULL};

static int print_version(void) {
    unsigned xxh = XXH_versionNumber();
    printf("train_gpt %s\nbackend   %s\ncompiler  "
#ifdef __clang__
           "%s\n"
#else
           "gcc %s\n"
#endif
           "libraries cJSON %s, xxHash %u.%u.%u, MPI: %s\n",
           program_version(), device_backend(), __VERSION__, cJSON_Version(), xxh / 10000, xxh / 100 % 100, xxh % 100,
           world_library());
    return EXIT_DONE;
}

/* Refuses a first argument that is no verb, no option and no file: exit 64 with the likely mistake. */
static NORETURN void refuse_word(const char *word) {
    const char *words[sizeof VERBS / sizeof *VERBS + 4];
    int         count = 0;
    for (const Verb *v = VERBS; v->word; v++) words[count++] = v->word;
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
        if (strncmp(argv[i], "parallel.", 9) == 0) return 1;
    return 0;
}

int is_verb(int argc, char **argv) {
    if (argc < 2) return 1;
    const char *word = argv[1];
    if (verb_find(word) || (*word == '-' && access(word, F_OK) != 0) || is_one_of(word, HELP_WORDS) || is_one_of(word, VERSION_WORDS)) return 1;
    return (!strpbrk(word, "./") || strchr(word, '=')) && access(word, F_OK) != 0;
}

/* Returns 1 for "sample --help", at any position of --help. "tokenize help" is help unless a file of that name
 * exists. */
static int asks_for_help(int argc, char **argv) {
    for (int i = 2; i < argc; i++)
        if (is_one_of(argv[i], HELP_WORDS) && (*argv[i] == '-' || (i == 2 && access(argv[i], F_OK) != 0))) return 1;
    return 0;
}

/* Refuses a key of the verb that is given twice, like a config does. Keys of the config may come twice after the name
 * of a config, and the last one counts, because scripts append the keys of the user to their own. */
static void refuse_twice(const Verb *verb, int argc, char **argv) {
    for (const VerbKey *key = verb->keys; key && key->name; key++) {
        const char *first = NULL;
        size_t      length = strlen(key->name);
        for (int i = 2; i < argc && !key->may_repeat; i++) {
            if (strncmp(argv[i], key->name, length) != 0 || argv[i][length] != '=') continue;
            if (first) fail(EXIT_CONFIG, "%s: %s= is given twice, as %s and as %s: give it once", verb->word, key->name, first, argv[i]);
            first = argv[i];
        }
    }
}

static int do_verb(const Verb *verb, int argc, char **argv) {
    if (is_one_of(argv[1], VERSION_WORDS)) return print_version();
    if (!verb) return verb_help(argc - 2, argv + 2); /* argv[1] is one of HELP_WORDS */
    if (asks_for_help(argc, argv)) return verb_help(1, argv + 1);
    refuse_twice(verb, argc, argv);
    return verb->main(argc - 1, argv + 1);
}

int verb_main(int argc, char **argv) {
    Launch launch = launch_detect();
    if (argc < 2) {
        if (launch.rank == 0) verb_print_usage();
        return EXIT_CONFIG;
    }
    const Verb *verb = verb_find(argv[1]);
    if (!verb && !is_one_of(argv[1], HELP_WORDS) && !is_one_of(argv[1], VERSION_WORDS)) {
        world_expect(launch); /* the user probably meant a run of all ranks */
        refuse_word(argv[1]);
    }
    int of_ranks = verb && (verb->main == verb_sample || verb->main == verb_eval) && verb_is_of_ranks(argc, argv);
    if (of_ranks) world_expect(launch);
    else if (launch_is_mpirun(launch) && launch.rank > 0) return EXIT_DONE; /* only rank 0 runs the verb */
    else if (launch_is_mpirun(launch) && launch.size > 1 && verb)
        fprintf(stderr, "train_gpt: %s is done once, by rank 0; the other %d processes have nothing to do\n", argv[1], launch.size - 1);
    else if (!launch.launched && verb) launch_explain_alone();
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit is then a write error with a path */
    start_computing();
    int status = do_verb(verb, argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) fail(EXIT_IO, "what was to be printed could not be written: is the disk full?");
    return status;
}
