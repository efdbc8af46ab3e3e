/* config.h - the config of a run: every option resolved, and checked against the others.
 *
 * Each option has one row in run/config/options.c. The rows give the parser, defaults, ranges, --help, the JSON Schema
 * and the copy in the run folder. Strings live until config_free.
 */
#ifndef TRAIN_GPT_RUN_CONFIG_CONFIG_H
#define TRAIN_GPT_RUN_CONFIG_CONFIG_H

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdio.h>

#include "core/mesh.h"
#include "data/blend.h"
#include "model/params.h"

typedef struct {
    int               count;
    const char      **item;
    const BlendShare *share; /* [count] share of each source of a blend (sources mixed by weight); NULL: plain list */
} StringList;

typedef enum { RESUME_AUTO, RESUME_NEVER, RESUME_MUST } Resume;
typedef enum { ON_TROUBLE_STOP, ON_TROUBLE_SKIP, ON_TROUBLE_ROLLBACK, ON_TROUBLE_WARN } OnTrouble;
typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;
typedef enum { DECAY_SQRT, DECAY_LINEAR } DecayShape;
/* Cause of the document mask, by which attention stays within one document: nothing, the config (ASKED), or the kind of
 * model (DEFAULT). DEFAULT needs a vocabulary with an end of text. */
typedef enum { DOCUMENT_MASK_NONE, DOCUMENT_MASK_ASKED, DOCUMENT_MASK_DEFAULT } DocumentMask;
typedef enum { WEIGHT_DECAY_CONSTANT, WEIGHT_DECAY_LR, WEIGHT_DECAY_LINEAR } WeightDecaySchedule;
typedef enum { PARALLEL_AUTO, PARALLEL_NCCL, PARALLEL_RING, PARALLEL_MPI } ParallelComm;
typedef enum { SEND_DELTAS, SEND_GRADIENTS } OuterSend;
typedef enum { WAIT_ALL, WAIT_NONE } OuterWait;
typedef enum { COMPRESS_NONE, COMPRESS_BF16, COMPRESS_INT8 } OuterCompress;
typedef struct ConfigKept ConfigKept; /* memory of the strings and lists of a Config */

typedef struct {
    char        path[4096];             /* path of the config file */
    ConfigKept *kept;                   /* owned: the memory of strings and lists; config_free frees it */
    struct {
        const char *dir;
        int64_t     steps, stop_step, seed;
        int         resume;             /* resume from a checkpoint or begin anew: a value of Resume */
        StringList  allow_change;
        double      max_minutes;
        /* action if loss or gradient is not finite: a value of OnTrouble, but not ON_TROUBLE_WARN */
        int         on_nonfinite;
        int         on_spike;           /* action if the loss is far above recent ones: a value of OnTrouble */
        double      spike_threshold;
        int64_t     max_skips, verify_every;
        double      watchdog_seconds;
    } run;
    struct {
        const char *preset;
        ModelShape  shape;              /* sizes of the model: the options model.n_layer and so on */
        const char *init_from;
        /* 1 if the config sets model.activation; if 0, the weights of init_from may set it */
        int         activation_given;
    } model;
    struct { double std; } init;
    struct {
        StringList  train, val;
        int         shuffle;
        int         document_mask; /* cause of the document mask: a value of DocumentMask */
        const char *tokenizer;
    } data;
    /* capacity: rows (tokens for experts) that a rank has memory for, as a multiple of an equal share. model.shape has
     * the other options of experts. */
    struct { double capacity; } moe;
    struct { int64_t global_tokens, micro_batch, seq_len; } batch;
    struct {
        const char *name;
        double      learning_rate, beta1, beta2, eps, weight_decay, grad_clip;
        int         weight_decay_schedule; /* a value of WeightDecaySchedule */
        double      muon_momentum;
        int         newton_schulz, normuon; /* newton_schulz: a NewtonKind, the polynomials of Muon; normuon: 0 or 1 */
    } optimizer;
    struct {
        int     name;               /* schedule of the learning rate: a value of ScheduleKind */
        int64_t warmup_steps;
        int     warmup_given;       /* 1 if the config sets warmup_steps, perhaps to 0 */
        double  final_lr_fraction, decay_fraction;
        int     decay;              /* curve by which SCHEDULE_WSD lowers the learning rate: a value of DecayShape */
    } schedule;
    int precision;                      /* a value of Precision (model/precision.h) */
    struct {
        int64_t tensor, context, pipeline, interleave, expert, replicas, zero_stage;
        int     balance, comm; /* comm: library for collectives, a value of ParallelComm; balance: 0 or 1 */
        int     deterministic;
    } parallel;
    struct {
        const char *server, *key;
        int64_t     every, least_islands;
        int         send, wait, compress; /* values of OuterSend, OuterWait and OuterCompress */
        double      learning_rate, momentum, patience_seconds, linger_minutes;
    } outer;
    struct { int recompute, offload; /* values of Recompute and OptimizerMemory */ } memory;
    struct { int64_t every, keep, keep_every; int keep_best; int64_t memory_every; const char *memory_dir; } checkpoint;
    struct { int64_t every, tokens; StringList tasks; int64_t tasks_every; } eval;
    struct {
        int64_t every, tokens, top_k;
        double  temperature, top_p, min_p;
        const char *prompt;
    } sample;
    struct { int64_t every; int tensorboard; } log;
} Config;

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Reads a config file and applies the overrides, such as "optimizer.learning_rate=3e-4". The value of an override is
 * JSON, or a bare word that counts as a string. If path is the folder of a run, its config.json is read and run.dir is
 * that folder. ranks is the size of the job, against which batch.global_tokens is checked. It is 0 if it is not known
 * yet. config_check_ranks must then be called later.
 *
 * Returns NULL and fills *config. On faults it returns a malloc'ed text with one line "file:line:column: ..." for each
 * fault. If the file has a syntax fault, that is the only one. */
char *config_load(const char *path, char *const *overrides, int override_count, int ranks, Config *config);
/* Reads a config file for another machine and applies the overrides. Parameters and result are those of config_load.
 * Settings for which this build has no kernels are allowed. */
char *config_load_elsewhere(const char *path, char *const *overrides, int override_count, int ranks, Config *config);

/* Reads a config from the text [bytes] of a file and applies the overrides. Parameters and result are those of
 * config_load. Has no effect except on *config. Faults name the file by path. */
char *config_parse(const char *path, const char *text, size_t bytes, char *const *overrides, int override_count,
                   int ranks, Config *config);
void  config_free(Config *config);      /* frees the memory of a config; call it also after faults */

/* --- checking ----------------------------------------------------------------------------------------------------- */

/* Checks the rules that need the number of ranks. Returns NULL or a malloc'ed sentence that names the nearest valid
 * values. */
char *config_check_ranks(const Config *config, int ranks);
/* Checks a config whose parallel.*, memory.* or batch.micro_batch were changed after it was loaded. Checks the rules of
 * config_check_ranks, and the rules between these keys. Returns NULL or a malloc'ed sentence. */
char *config_check_changed(const Config *config, int ranks);
/* Checks the sizes of a model that were not read from a config: their ranges, and the rules between them. Returns NULL,
 * or a malloc'ed sentence that names config keys. */
char *config_check_shape(ModelShape shape);
Mesh  config_mesh(const Config *config, int ranks); /* returns the grid of this number of ranks, which
                                                     * config_check_ranks has allowed */
int   config_datas(const Config *config, int ranks); /* returns the number of groups of ranks that compute different
                                                      * micro-batches */

/* --- the saved copy, and what differs ----------------------------------------------------------------------------- */

/* Returns the resolved config with every option, as nested objects. The caller deletes it. */
cJSON *config_to_json(const Config *config);
/* Returns 1 if text [bytes] is a resolved config, written by config_to_json() of this version or an earlier one. It
 * then has options only, and more of them than people write by hand. */
int config_is_saved(const char *text, size_t bytes);
/* Returns a hash (XXH3) of the options that every rank must share. These are all except the paths of data, weights and
 * run folder. */
uint64_t config_fingerprint(const Config *config);

/* Fills *config from the JSON in config.json of a run or checkpoint. Does not check the rules between options. Returns
 * NULL or a malloc'ed fault. */
char *config_from_json(const cJSON *json, Config *config);

/* Returns the value of a key such as "run.steps" in a config (JSON), or NULL if there is none. */
const cJSON *config_value(const cJSON *config, const char *key);
/* Returns the blend of data.train in a config (JSON) as text, malloc'ed: "0.7 of source 0 until 1000, ...", or
 * "no blend". The text has no paths, because hosts may have the files in other folders. */
char *config_blend(const cJSON *config);

/* Compares the options fixed for a resume with the config of the checkpoint, except those in run.allow_change. Fixed
 * are resolved model sizes, batch.global_tokens, batch.seq_len, run.seed, data.shuffle, weights and stages of
 * data.train, optimizer.* and schedule.*. Returns NULL, or a malloc'ed text that names each key with both values.
 * Appends the keys that differ to the list `changed` unless it is NULL. Does not compare the training shards.
 * run/checkpoint does, because it knows their sizes. */
char *config_compare(const Config *now, const cJSON *saved, cJSON *changed);

/* Returns 1 if two values of options are equal. NULL, a missing value, equals only NULL. */
int config_same_value(const cJSON *a, const cJSON *b);

/* Compares two configs and calls tell(ctx, key, a, b) for each key whose values differ. A key that only one of them has
 * counts as its default in the other, or as NULL if the option table has none. b NULL: compares with the defaults.
 * run.dir is left out, because it is a path. Returns the number of keys that differ. If tell is NULL, it is not
 * called. */
typedef void ConfigDiffers(void *ctx, const char *key, const cJSON *a, const cJSON *b);
int config_diff(const cJSON *a, const cJSON *b, ConfigDiffers *tell, void *ctx);

/* --- learning rate, weight decay, clipping: schedule.c ------------------------------------------------------------ */

/* Returns the learning rate of 0-based step s. lr = optimizer.learning_rate, w = schedule.warmup_steps, N = run.steps,
 * f = schedule.final_lr_fraction, p = (s-w)/(N-w). For s < w: lr (s+1)/w. Then
 *   cosine lr (f + (1-f)(1+cos(pi p))/2)    linear lr (1 - (1-f) p)    constant lr
 *   wsd    lr until s0 = N - ceil(decay_fraction N), then with q = (s-s0)/(N-s0), by schedule.decay,
 *          sqrt lr (f + (1-f)(1 - sqrt(q)))   (Hägele et al., arXiv:2405.18392)    linear lr (f + (1-f)(1 - q)) */
double schedule_lr(const Config *config, int64_t s);

/* Returns the weight decay of 0-based step s, by optimizer.weight_decay_schedule. With d = optimizer.weight_decay:
 *
 *   constant d    lr d schedule_lr(s) / optimizer.learning_rate    linear d (1 - s / run.steps)
 *
 * An optimizer step multiplies it with the learning rate, so that even a constant weight decay falls with the rate. */
double schedule_weight_decay(const Config *config, int64_t s);

/* Returns the step after which this process stops: run.stop_step if it is set and below run.steps, otherwise
 * run.steps. */
int64_t schedule_last_step(const Config *config);

/* Prints a line if a run of 200 steps or more does not set schedule.warmup_steps. Without a warmup its first steps have
 * the full learning rate, which gives a worse loss. columns: width of the label at the start of the line. */
void schedule_say_no_warmup(const Config *config, int columns);

/* Returns min(1, grad_clip/norm), the factor that clips a gradient of this norm. There is no epsilon. Returns 1 if
 * grad_clip is 0. */
double clip_scale(double norm, double grad_clip);

/* --- the option table, printed: option_help.c --------------------------------------------------------------------- */

/* Functions that print the option table for people. config_print_help prints all options. config_print_topic prints a
 * section or one key, and returns 0 if there is no such topic. Both use `columns` columns and the marks of
 * core/terminal.h. config_print_markdown prints docs/config.md. */
void config_print_help(FILE *out, int columns);
int  config_print_topic(FILE *out, const char *topic, int columns);
void config_print_markdown(FILE *out);
void config_print_schema(FILE *out);    /* prints a JSON Schema 2020-12 */

#endif
