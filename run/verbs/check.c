/* check.c - the verb check: checks a config like a run, prints its sizes and looks at its data. Writes nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/terminal.h"
#include "data/dataset.h"
#include "data/tokenizer.h"
#include "run/checkpoint/checkpoint.h"
#include "run/config/config.h"
#include "run/config/options.h"
#include "run/banner.h"
#include "run/text/sample.h"
#include "run/text/tasks.h"
#include "run/verbs/verbs.h"

enum { LABEL_COLUMNS = 12 };
#define line(...) say_labelled(LABEL_COLUMNS, __VA_ARGS__)

/* Opens the data of a key like a run (exit 65 if it is faulty), and returns it. Missing data is no fault, because it
 * may be made later. */
static Dataset check_data(const char *key, const StringList *globs, const Config *c) {
    char tokens[32], samples[32], read[32], unread[SAMPLE_COUNT_CHARS], use[64];
    IoPaths files = {NULL, 0};
    if (globs->count == 0 || strcmp(globs->item[0], "-") == 0) return (Dataset){0};
    for (int i = 0; i < globs->count; i++) dataset_files(globs->item[i], &files);
    int is_there = files.count > 0;
    io_paths_free(&files);
    if (!is_there) {
        line(key, "no file matches \"%s\"%s yet", globs->item[0], globs->count > 1 ? " and the others" : "");
        return (Dataset){0};
    }
    Dataset     data = dataset_open(key, globs->item, globs->share, globs->count, c->batch.seq_len,
                                    c->model.shape.vocab_size);
    int64_t     run_samples = position_after((Position){0, 0, 0}, c, c->run.steps).samples;
    SampleCount count = dataset_count(&data);
    if (globs == &c->data.val)
        snprintf(use, sizeof use, "evaluations read %s tokens",
                 grouped_text(dataset_first_samples(&data, c->eval.tokens) * data.seq_len, read));
    else
        snprintf(use, sizeof use, "%.2f epochs", sample_epochs(run_samples, data.samples));
    line(key, "%d file%s, %s tokens, %s sample%s: %s%s", data.shards, plural(data.shards),
         grouped_text(data.tokens, tokens), grouped_text(data.samples, samples), plural(data.samples), use,
         sample_count_unread(&count, data.seq_len, "; ", unread));
    if (data.blend) { /* prints how much each data source of the blend contributes to the whole run */
        SourceUse source[BLEND_SOURCES];
        int       sources = blend_use(&data, c, run_samples, source);
        for (int i = 0; i < sources; i++) line("", "%s", source[i].text);
    }
    return data;
}

static void print_understood(const Config *c, int ranks) {
    char    a[32], b[32], all[32], shown[SHOWN_BYTES];
    int64_t parameters, micro_tokens = c->batch.micro_batch * c->batch.seq_len * (ranks ? ranks : 1);
    int64_t micros = c->batch.global_tokens / micro_tokens;
    model_parameters(c->model.shape, &parameters);
    line("model", "%s parameters: %s", grouped_text(parameters, a), model_shape_text(c->model.shape).text);
    line("steps", "%s of %s tokens = %s tokens in all", grouped_text(c->run.steps, a),
         grouped_text(c->batch.global_tokens, b), grouped_text(c->run.steps * c->batch.global_tokens, all));
    line("last step", "%s%s", grouped_text(schedule_last_step(c), a), c->run.stop_step > 0 ? ", by run.stop_step" : "");
    line("batch", "%" PRId64 " micro-batch%s of %" PRId64 " x %" PRId64 " tokens a step on %d rank%s%s", micros,
         micros == 1 ? "" : "es", c->batch.micro_batch, c->batch.seq_len, ranks ? ranks : 1, ranks > 1 ? "s" : "",
         ranks ? "" : " (ranks=N for more)");
    line("optimizer", "%s, learning rate %s, %s after %" PRId64 " warmup steps%s, precision %s", c->optimizer.name,
         number_text(c->optimizer.learning_rate, shown), option_find("schedule.name")->words[c->schedule.name],
         c->schedule.warmup_steps, c->schedule.warmup_steps > c->run.steps ? " (longer than the run)" : "",
         option_find("precision")->words[c->precision]);
    schedule_say_no_warmup(c, LABEL_COLUMNS);
    line("run folder", "%s", c->run.dir);
}

static int ranks; /* value of the key ranks=; 0 if not given */
static const VerbKey CHECK_KEYS[] = {
    {"ranks", "8", NULL, "check for a job of so many ranks", .whole = &ranks, .least = 1, .most = 1000000,
     .unset = "1"},
    {.name = NULL},
};

static int verb_check(int words, char **word) {
    Config config;
    char  *faults = config_load(word[0], word + 1, words - 1, ranks, &config);
    if (faults) {
        error_print_lines(faults);
        free(faults);
        config_free(&config);
        return EXIT_CONFIG;
    }
    Tokenizer tokenizer = run_tokenizer(&config);
    /* 1 if there is neither a tokenizer nor data beside which one could be found */
    int is_alone = run_has_no_data(&config) && tokenizer.kind == TOKENIZER_IDS;
    if (!is_alone) run_documents(&config, &tokenizer);
    checkpoint_precheck_source(&config, &tokenizer);
    print_understood(&config, ranks);
    Dataset train = check_data("data.train", &config.data.train, &config);
    Dataset val = check_data("data.val", &config.data.val, &config);
    dataset_warn_shared(&val, &train);
    if (train.shards) dataset_close(&train);
    if (val.shards) dataset_close(&val);
    for (int i = 0; !is_alone && i < config.eval.tasks.count; i++) {
        Task t = task_read(config.eval.tasks.item[i], (TaskReader){&tokenizer, config.batch.seq_len, 0, 0});
        line("eval.tasks", "%s: %" PRId64 " questions, %" PRId64 " texts", t.name, t.questions, t.texts);
        task_free(&t);
    }
    say(stdout, 2, "%s: " GREEN "ok" RESET, config.path);
    tokenizer_destroy(&tokenizer);
    config_free(&config);
    return EXIT_DONE;
}

const Verb CHECK_VERB = {
    "check", "config.json [key=value ...] [ranks=N]", "read a config, print what was understood, look at its data",
    "Checks a config as a run would, without starting one: every fault with line and column, then the sizes that "
    "follow from it, and the data. Writes nothing.",
    CHECK_KEYS, "./train_gpt check configs/demo.json batch.micro_batch=8 ranks=2", verb_check,
    {VERB_CONFIG, 0, "a config file"},
};
