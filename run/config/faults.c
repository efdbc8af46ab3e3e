/* faults.c - collects the faults of a user's files, and finds the key or word nearest to a mistyped one: see
 * faults.h. */
#include "run/config/faults.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/io.h"
#include "run/config/options.h"

void faults_add(Faults *faults, Where where, const char *fmt, ...) {
    char    quoted[256];
    va_list args;
    if (faults->count++ >= FAULTS_SHOWN) return;
    if (!faults->out) faults->out = memory_file_open(&faults->text, &faults->bytes);
    if (where.override)
        fprintf(faults->out, "override %s: error: ", json_quote_short(quoted, sizeof quoted, where.override));
    else if (where.file && where.at.line > 0)
        fprintf(faults->out, "%s:%d:%d: error: ", where.file, where.at.line, where.at.column);
    else if (where.file) fprintf(faults->out, "%s: error: ", where.file);
    va_start(args, fmt);
    vfprintf(faults->out, fmt, args);
    va_end(args);
    fputc('\n', faults->out);
}

char *faults_take(Faults *faults) {
    if (!faults->out) return NULL;
    if (faults->count > FAULTS_SHOWN) fprintf(faults->out, "and %d more faults\n", faults->count - FAULTS_SHOWN);
    fclose(faults->out);
    char *text = faults->text;
    *faults = (Faults){NULL, NULL, 0, 0};
    return text;
}

/* --- the nearest word --------------------------------------------------------------------------------------------- */

enum { LONGEST = 64 };

/* Names, divided by spaces, that llm.c, nanoGPT, Hugging Face, Megatron and torchtitan have for keys and sections of
 * this program. */
static const struct { const char *key, *foreign; } SYNONYMS[] = {
    {"optimizer.learning_rate", "lr max_lr base_lr peak_lr"}, {"optimizer.weight_decay", "wd decay"},
    {"optimizer.grad_clip", "clip max_grad_norm gradient_clipping clip_grad"}, {"optimizer.beta1", "betas adam_beta1"},
    {"optimizer.beta2", "adam_beta2"}, {"optimizer.eps", "epsilon adam_epsilon"},
    {"batch.micro_batch", "bs batch_size micro_batch_size mbs device_batch_size per_device_train_batch_size"},
    {"batch.global_tokens", "global_batch_size total_batch_size gbs tokens_per_step total_tokens "
                            "gradient_accumulation_steps grad_accum"},
    {"batch.seq_len", "sequence_length seq_length seqlen block_size"},
    {"model.n_layer", "num_layers num_hidden_layers n_layers layers depth"},
    {"model.n_kv_head", "num_key_value_heads n_kv_heads num_kv_heads"}, {"model.head_dim", "kv_channels"},
    {"model.n_inner", "intermediate_size ffn_hidden_size"}, {"model.norm_eps", "rms_norm_eps"},
    {"model.rope_theta", "rope_base"}, {"model.rope_factor", "rope_scaling"},
    {"moe.experts", "num_experts num_local_experts"}, {"moe.top_k", "num_experts_per_tok"},
    {"moe.n_inner", "moe_intermediate_size"}, {"moe.norm_top_k", "norm_topk_prob"},
    {"moe.balance_rate", "router_aux_loss_coef"}, {"moe.capacity", "capacity_factor"},
    {"parallel.expert", "expert_model_parallel_size"}, {"precision", "fp8 dtype amp bf16 fp16 fp32 mixed_precision"},
    {"optimizer.name", "muon"}, {"model.activation", "activation_function hidden_act activation_fn"},
    {"model.tie_embeddings", "tie_word_embeddings"},
    {"model.arch", "model_type architecture"}, {"model.n_head", "num_heads num_attention_heads n_heads heads"},
    {"model.n_embd", "hidden_size d_model width dim n_embed embedding_size"},
    {"model.n_positions", "n_ctx ctx_len context_length max_seq_len max_position_embeddings"},
    {"model.vocab_size", "vocab n_vocab"}, {"model.init_from", "pretrained load_from"},
    {"run.steps", "max_steps num_steps train_steps total_steps iters max_iters train_iters num_iterations iterations"},
    {"run.seed", "random_seed"}, {"run.dir", "out_dir output_dir save_dir output"},
    {"run.max_minutes", "max_time time_limit"}, {"run.watchdog_seconds", "timeout"},
    {"schedule.warmup_steps", "warmup warmup_iters lr_warmup_steps"},
    {"schedule.final_lr_fraction", "min_lr final_lr min_lr_ratio"}, {"schedule.decay_fraction", "cooldown"},
    {"schedule.name", "lr_scheduler_type lr_decay_style"}, {"parallel.zero_stage", "zero"}, {"parallel.comm", "nccl"},
    {"memory.recompute", "activation_checkpointing gradient_checkpointing"},
    {"checkpoint.every", "save_every save_interval checkpoint_interval"}, {"checkpoint.keep", "keep_last"},
    {"eval.every", "eval_interval eval_every val_every"}, {"eval.tokens", "eval_tokens"},
    {"log.every", "log_interval log_every"}, {"sample.every", "sample_every"},
    {"data.train", "dataset train_data train_files train_bin"}, {"data.val", "validation valid val_data val_bin"},
    {"optimizer", "optim adamw"}, {"run", "training train trainer"}, {"model", "gpt network"},
    {"schedule", "lr_scheduler scheduler lr_schedule"}, {"log", "logging"}, {"eval", "evaluation validate"},
    {"parallel", "distributed parallelism"}, {"checkpoint", "ckpt checkpoints"}, {"sample", "generate sampling"},
    {"data", "inputs"},
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

/* Returns the number of equal bytes at the beginning of two words, after folding. */
static size_t common_start(const char *left, const char *right) {
    size_t i = 0;
    while (left[i] && fold(left[i]) == fold(right[i])) i++;
    return i;
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

typedef struct { Nearest found; int least; } Search;

/* Compares a key with the best one found so far. A key of another section than the typed one costs half an edit more,
 * so the typed section wins a tie. Other ties go to the first row of the option table. */
static void consider(Search *search, const char *path, const char *key) {
    const char *typed = last_part(path), *word = last_part(key);
    size_t      same = common_start(typed, word);
    /* 1 if one word is the beginning of the other ("temp", "training"), which counts as one edit */
    int         cut_short = same >= 3 && !typed[same] != !word[same];
    if (2 * min(least_distance(path, key), cut_short ? 1 : least_distance(typed, word)) >= search->least) return;
    int whole = edit_distance(path, key), last = cut_short ? 1 : edit_distance(typed, word);
    int by_whole = 2 * whole, by_last = 2 * last + !same_section(path, key);
    if (min(by_whole, by_last) >= search->least) return;
    search->least = min(by_whole, by_last);
    search->found = (Nearest){key, is_near(by_whole <= by_last ? whole : last, typed)};
}

Nearest nearest_key(const char *path, NearestKind kind) {
    const char *typed = last_part(path);
    Search search = {{NULL, 0}, 4 * LONGEST};
    if (kind == NEAREST_SECTION)
        for (int i = 0; option_section(i); i++) consider(&search, path, option_section(i));
    else
        for (int i = 0; i < OPTION_COUNT; i++) consider(&search, path, OPTIONS[i].key);
    /* Prefers a key of the typed section that is one edit away to an equal name in another section. An example is
     * parallel.experts: parallel.expert wins over moe.experts. */
    int is_elsewhere = search.least == 1 && strchr(path, '.') && !same_section(path, search.found.word);
    for (int i = 0; is_elsewhere && i < OPTION_COUNT; i++)
        if (same_section(path, OPTIONS[i].key) && edit_distance(path, OPTIONS[i].key) <= 1)
            search.found.word = OPTIONS[i].key;
    if (search.least <= 1) return search.found;
    for (size_t i = 0; i < sizeof SYNONYMS / sizeof *SYNONYMS; i++) {
        int is_option = option_find(SYNONYMS[i].key) != NULL;
        if (is_option != (kind == NEAREST_OPTION)) continue;
        size_t length;
        for (const char *word = SYNONYMS[i].foreign; *word; word += length + (word[length] == ' ')) {
            length = strcspn(word, " ");
            if (strlen(typed) == length && common_start(typed, word) == length) return (Nearest){SYNONYMS[i].key, 1};
        }
    }
    return search.found;
}
