/* faults.c - see faults.h. */
#include "run/config/faults.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/error.h"
#include "run/config/options.h"

static void append(Faults *faults, const char *text) {
    size_t more = strlen(text);
    char  *grown = xrealloc(faults->text, faults->bytes + more + 1, "reading the config");
    memcpy(grown + faults->bytes, text, more + 1);
    faults->text = grown;
    faults->bytes += more;
}

void faults_add(Faults *faults, Where where, const char *fmt, ...) {
    if (faults->count++ >= FAULTS_SHOWN) return;
    char    quoted[256], place[64], text[1024];
    va_list args;
    if (where.override) {
        append(faults, "override ");
        append(faults, json_quote_short(quoted, sizeof quoted, where.override));
        append(faults, ": error: ");
    } else if (where.file) {
        if (where.at.line > 0) snprintf(place, sizeof place, ":%d:%d: error: ", where.at.line, where.at.column);
        else                   snprintf(place, sizeof place, ": error: ");
        append(faults, where.file);
        append(faults, place);
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    append(faults, text);
    append(faults, "\n");
}

char *faults_take(Faults *faults) {
    if (faults->count > FAULTS_SHOWN) {
        char text[64];
        snprintf(text, sizeof text, "and %d more faults\n", faults->count - FAULTS_SHOWN);
        append(faults, text);
    }
    char *text = faults->text;
    *faults = (Faults){NULL, 0, 0};
    return text;
}

/* --- the nearest word --------------------------------------------------------------------------------------------- */

enum { LONGEST = 64 };

/* Names that llm.c, nanoGPT, Hugging Face, Megatron and torchtitan have for keys of this program. */
static const struct { const char *foreign, *key; } SYNONYMS[] = {
    {"lr", "optimizer.learning_rate"}, {"max_lr", "optimizer.learning_rate"}, {"base_lr", "optimizer.learning_rate"},
    {"peak_lr", "optimizer.learning_rate"}, {"wd", "optimizer.weight_decay"}, {"decay", "optimizer.weight_decay"},
    {"clip", "optimizer.grad_clip"}, {"max_grad_norm", "optimizer.grad_clip"}, {"gradient_clipping", "optimizer.grad_clip"},
    {"clip_grad", "optimizer.grad_clip"}, {"betas", "optimizer.beta1"}, {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"}, {"epsilon", "optimizer.eps"}, {"adam_epsilon", "optimizer.eps"},
    {"bs", "batch.micro_batch"}, {"batch_size", "batch.micro_batch"}, {"micro_batch_size", "batch.micro_batch"},
    {"mbs", "batch.micro_batch"}, {"device_batch_size", "batch.micro_batch"}, {"per_device_train_batch_size", "batch.micro_batch"},
    {"global_batch_size", "batch.global_tokens"}, {"total_batch_size", "batch.global_tokens"}, {"gbs", "batch.global_tokens"},
    {"tokens_per_step", "batch.global_tokens"}, {"total_tokens", "batch.global_tokens"},
    {"gradient_accumulation_steps", "batch.global_tokens"}, {"grad_accum", "batch.global_tokens"},
    {"sequence_length", "batch.seq_len"}, {"seq_length", "batch.seq_len"}, {"seqlen", "batch.seq_len"}, {"block_size", "batch.seq_len"},
    {"num_layers", "model.n_layer"}, {"num_hidden_layers", "model.n_layer"}, {"n_layers", "model.n_layer"}, {"layers", "model.n_layer"},
    {"num_key_value_heads", "model.n_kv_head"}, {"kv_channels", "model.head_dim"}, {"intermediate_size", "model.n_inner"}, {"rms_norm_eps", "model.norm_eps"},
    {"n_kv_heads", "model.n_kv_head"}, {"num_kv_heads", "model.n_kv_head"}, {"rope_base", "model.rope_theta"},
    {"rope_scaling", "model.rope_factor"}, {"ffn_hidden_size", "model.n_inner"}, {"num_experts", "moe.experts"},
    {"num_local_experts", "moe.experts"}, {"num_experts_per_tok", "moe.top_k"}, {"moe_intermediate_size", "moe.n_inner"},
    {"activation_function", "model.activation"}, {"hidden_act", "model.activation"}, {"activation_fn", "model.activation"},
    {"norm_topk_prob", "moe.norm_top_k"}, {"router_aux_loss_coef", "moe.balance_rate"}, {"capacity_factor", "moe.capacity"},
    {"expert_model_parallel_size", "parallel.expert"}, {"fp8", "precision"}, {"muon", "optimizer.name"},
    {"tie_word_embeddings", "model.tie_embeddings"}, {"model_type", "model.arch"}, {"architecture", "model.arch"},
    {"depth", "model.n_layer"}, {"num_heads", "model.n_head"}, {"num_attention_heads", "model.n_head"}, {"n_heads", "model.n_head"},
    {"heads", "model.n_head"}, {"hidden_size", "model.n_embd"}, {"d_model", "model.n_embd"}, {"width", "model.n_embd"},
    {"dim", "model.n_embd"}, {"n_embed", "model.n_embd"}, {"embedding_size", "model.n_embd"}, {"n_ctx", "model.n_positions"},
    {"ctx_len", "model.n_positions"}, {"context_length", "model.n_positions"}, {"max_seq_len", "model.n_positions"},
    {"max_position_embeddings", "model.n_positions"}, {"vocab", "model.vocab_size"}, {"n_vocab", "model.vocab_size"},
    {"pretrained", "model.init_from"}, {"load_from", "model.init_from"}, {"max_steps", "run.steps"}, {"num_steps", "run.steps"},
    {"train_steps", "run.steps"}, {"total_steps", "run.steps"}, {"iters", "run.steps"}, {"max_iters", "run.steps"},
    {"train_iters", "run.steps"}, {"num_iterations", "run.steps"}, {"iterations", "run.steps"}, {"random_seed", "run.seed"},
    {"out_dir", "run.dir"}, {"output_dir", "run.dir"}, {"save_dir", "run.dir"}, {"output", "run.dir"}, {"max_time", "run.max_minutes"},
    {"time_limit", "run.max_minutes"}, {"timeout", "run.watchdog_seconds"}, {"warmup", "schedule.warmup_steps"},
    {"warmup_iters", "schedule.warmup_steps"}, {"lr_warmup_steps", "schedule.warmup_steps"}, {"min_lr", "schedule.final_lr_fraction"},
    {"final_lr", "schedule.final_lr_fraction"}, {"min_lr_ratio", "schedule.final_lr_fraction"}, {"cooldown", "schedule.decay_fraction"},
    {"lr_scheduler_type", "schedule.name"}, {"lr_decay_style", "schedule.name"}, {"dtype", "precision"}, {"amp", "precision"},
    {"bf16", "precision"}, {"fp16", "precision"}, {"fp32", "precision"}, {"mixed_precision", "precision"}, {"zero", "parallel.zero_stage"},
    {"nccl", "parallel.comm"}, {"activation_checkpointing", "memory.recompute"}, {"gradient_checkpointing", "memory.recompute"},
    {"save_every", "checkpoint.every"}, {"save_interval", "checkpoint.every"}, {"checkpoint_interval", "checkpoint.every"},
    {"keep_last", "checkpoint.keep"}, {"eval_interval", "eval.every"}, {"eval_every", "eval.every"}, {"val_every", "eval.every"},
    {"eval_tokens", "eval.tokens"}, {"log_interval", "log.every"}, {"log_every", "log.every"}, {"sample_every", "sample.every"},
    {"dataset", "data.train"}, {"train_data", "data.train"}, {"train_files", "data.train"}, {"train_bin", "data.train"},
    {"validation", "data.val"}, {"valid", "data.val"}, {"val_data", "data.val"}, {"val_bin", "data.val"},
    {"optim", "optimizer"}, {"adamw", "optimizer"}, {"training", "run"}, {"train", "run"}, {"trainer", "run"}, {"gpt", "model"},
    {"network", "model"}, {"lr_scheduler", "schedule"}, {"scheduler", "schedule"}, {"lr_schedule", "schedule"}, {"logging", "log"},
    {"evaluation", "eval"}, {"validate", "eval"}, {"distributed", "parallel"}, {"parallelism", "parallel"}, {"ckpt", "checkpoint"},
    {"checkpoints", "checkpoint"}, {"generate", "sample"}, {"sampling", "sample"}, {"inputs", "data"},
};

static int fold(char c) {
    if (c >= 'A' && c <= 'Z') return c + ('a' - 'A');
    return c == '-' ? '_' : (unsigned char)c;
}

/* Copies the first LONGEST bytes of a word in lower case, with '-' as '_'. Returns the number of bytes. */
static int fold_word(unsigned char folded[LONGEST], const char *word) {
    int length = 0;
    for (; length < LONGEST && word[length]; length++) folded[length] = (unsigned char)fold(word[length]);
    return length;
}

static int min(int a, int b) { return a < b ? a : b; }

/* Computes the edit distance as optimal string alignment, with a table of three rows. */
int edit_distance(const char *left, const char *right) {
    unsigned char a[LONGEST], b[LONGEST];
    int           n = fold_word(a, left), m = fold_word(b, right), rows[3][LONGEST + 1];
    for (int j = 0; j <= m; j++) rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            row[j] = min(min(up[j], row[j - 1]) + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = min(row[j], up2[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

/* Returns 1 if two words are equal in all bytes after folding. edit_distance() compares only the first LONGEST. */
static int same_word(const char *left, const char *right) {
    int i = 0;
    while (left[i] && fold(left[i]) == fold(right[i])) i++;
    return fold(left[i]) == fold(right[i]);
}

/* Returns a lower bound of edit_distance(): the difference of the lengths, each at most LONGEST. */
static int least_distance(const char *left, const char *right) {
    return abs((int)strnlen(left, LONGEST) - (int)strnlen(right, LONGEST));
}

/* Returns 1 if at most a third of the letters of the typed word are wrong. One wrong letter is always allowed. */
static int is_near(int edits, const char *typed) {
    int length = (int)strlen(typed);
    return edits <= (length < 6 ? 1 : length / 3);
}

Nearest nearest_word(const char *typed, const char *const *words) {
    Nearest best = {NULL, 0};
    int     least = 2 * LONGEST;
    for (int i = 0; words[i]; i++) {
        if (least_distance(typed, words[i]) >= least) continue;
        int edits = edit_distance(typed, words[i]);
        if (edits >= least) continue;
        least = edits;
        best = (Nearest){words[i], is_near(edits, typed)};
    }
    return best;
}

static const char *last_part(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static int same_section(const char *path, const char *key) {
    size_t length = strcspn(key, ".");
    return strcspn(path, ".") == length && !strncmp(path, key, length);
}

/* Returns 1 if one word is the beginning of the other ("temp", "training"), which counts as one edit. */
static int is_cut_short(const char *typed, const char *word) {
    size_t length = strlen(typed) < strlen(word) ? strlen(typed) : strlen(word), same = 0;
    while (same < length && fold(typed[same]) == fold(word[same])) same++;
    return same >= 3 && same == length && strlen(typed) != strlen(word);
}

typedef struct { Nearest found; int least; } Search;

/* Compares a key with the best one found so far. A key of another section than the typed one costs half an edit more,
 * so the typed section wins a tie. Other ties go to the first row of the option table. */
static void consider(Search *search, const char *path, const char *key) {
    const char *typed = last_part(path), *word = last_part(key);
    int         cut_short = is_cut_short(typed, word);
    if (2 * min(least_distance(path, key), cut_short ? 1 : least_distance(typed, word)) >= search->least) return;
    int whole = edit_distance(path, key), last = cut_short ? 1 : edit_distance(typed, word);
    int by_whole = 2 * whole, by_last = 2 * last + !same_section(path, key);
    if (min(by_whole, by_last) >= search->least) return;
    search->least = min(by_whole, by_last);
    search->found = (Nearest){key, is_near(by_whole <= by_last ? whole : last, typed)};
}

/* Prefers a key of the typed section that is one edit away to an equal name in another section. An example is
 * parallel.experts: parallel.expert wins over moe.experts. */
static void near_in_section(Search *search, const char *path) {
    for (int i = 0; strchr(path, '.') && i < OPTION_COUNT; i++)
        if (same_section(path, OPTIONS[i].key) && edit_distance(path, OPTIONS[i].key) <= 1) search->found.word = OPTIONS[i].key;
}

Nearest nearest_key(const char *path, NearestKind kind) {
    Search search = {{NULL, 0}, 4 * LONGEST};
    if (kind == NEAREST_SECTION)
        for (int i = 0; option_section(i); i++) consider(&search, path, option_section(i));
    else
        for (int i = 0; i < OPTION_COUNT; i++) consider(&search, path, OPTIONS[i].key);
    if (search.least == 1 && !same_section(path, search.found.word)) near_in_section(&search, path);
    if (search.least <= 1) return search.found;
    for (size_t i = 0; i < sizeof SYNONYMS / sizeof *SYNONYMS; i++) {
        if (!same_word(last_part(path), SYNONYMS[i].foreign)) continue;
        int is_option = option_find(SYNONYMS[i].key) != NULL;
        if (is_option == (kind == NEAREST_OPTION)) return (Nearest){SYNONYMS[i].key, 1};
    }
    return search.found;
}
