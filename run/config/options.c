/* options.c - the option table, and functions on its rows, which set a value from JSON, check it and write it: see
 * options.h. */
#include "run/config/options.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "model/block.h"
#include "model/optimizer.h"
#include "model/precision.h"

#define EXACT 9007199254740992.0 /* 2^53: whole numbers in JSON are exact up to here */
#define DIM   2147483647.0       /* limit of token ids and dimensions, which have 32 bits */
#define BIG   1e30               /* largest real number, finite as fp32 */

/* Returns the offset of a field in Config. The compiler refuses it if the field does not have the type of the row. */
#define FIELD(f, type) (offsetof(Config, f) + 0 * sizeof(_Generic(((Config *)0)->f, type: 0)))
/* Lists the allowed words of an option, in the order of the values of its enum. */
#define WORDS(...)                 ((const char *const[]){__VA_ARGS__, NULL})
/* Writes one row of the option table. Each of the macros below writes a row of one type: KEY(field, default, allowed
 * values, help and further members). */
#define ROW(k, t, f, c, d, ...) \
    {.key = k, .type = t, .offset = FIELD(f, c), .fallback = d, .help = __VA_ARGS__}
#define TEXT(f, d, lo, hi, ...)          ROW(#f, OPTION_TEXT, f, const char *, d, __VA_ARGS__, .min = lo, .max = hi)
#define WORD(f, d, w, ...)               ROW(#f, OPTION_WORD, f, const char *, d, __VA_ARGS__, .words = w)
#define CHOICE_AT(k, f, d, w, ...)       ROW(k, OPTION_CHOICE, f, int, d, __VA_ARGS__, .words = w)
#define FLAG_AT(k, f, d, ...)            ROW(k, OPTION_FLAG, f, int, d, __VA_ARGS__)
#define INTEGER_AT(k, f, d, lo, hi, ...) ROW(k, OPTION_INTEGER, f, int64_t, d, __VA_ARGS__, .min = lo, .max = hi)
#define REAL_AT(k, f, d, lo, hi, ...)    ROW(k, OPTION_REAL, f, double, d, __VA_ARGS__, .min = lo, .max = hi)
#define LIST_OF(t, f, d, lo, ...)        ROW(#f, t, f, StringList, d, __VA_ARGS__, .min = lo, .max = 4095)
#define LIST(f, ...)                     LIST_OF(OPTION_LIST, f, __VA_ARGS__)
#define SOURCES(f, ...)                  LIST_OF(OPTION_SOURCES, f, __VA_ARGS__)
#define CHOICE(f, ...)                   CHOICE_AT(#f, f, __VA_ARGS__)
#define FLAG(f, ...)                     FLAG_AT(#f, f, __VA_ARGS__)
#define INTEGER(f, ...)                  INTEGER_AT(#f, f, __VA_ARGS__)
#define REAL(f, ...)                     REAL_AT(#f, f, __VA_ARGS__)
#define SIZE(f, ...)                     INTEGER_AT("model." #f, model.shape.f, __VA_ARGS__)
#define SHAPE_REAL(f, ...)               REAL_AT("model." #f, model.shape.f, __VA_ARGS__)
#define REQUIRED   .need = NEED_ALWAYS
#define FIXED      .fixed = 1

/* clang-format off */
const Option OPTIONS[] = {
    {.key = "$schema", .type = OPTION_IGNORED, .fallback = "\"\"", .max = EXACT, .help = "place of the JSON schema, for editors; "
             "the program ignores it"},

    TEXT(run.dir, NULL, 1, 3800, "folder that holds everything the run writes", .need = NEED_DERIVED, .example = "runs/mine",
         .shown = "runs/<config file's stem>"),
    INTEGER(run.steps, NULL, 1, EXACT, "optimizer steps in total", REQUIRED, .example = "600"),
    INTEGER(run.stop_step, "0", 0, EXACT,
            "step after which the run saves and stops, with exit code 75; the schedule stays that of run.steps; 0 = none"),
    INTEGER(run.seed, "1337", 0, EXACT, "seed of first weights, shuffle and sampling", FIXED),
    CHOICE(run.resume, "\"auto\"", WORDS([RESUME_AUTO] = "auto", [RESUME_NEVER] = "never", [RESUME_MUST] = "must"),
           "auto: start from the newest complete checkpoint in run.dir, if there is one; never: refuse a folder that holds a run; "
           "must: refuse a folder without a checkpoint"),
    LIST(run.allow_change, "[]", 0, "keys or sections whose values may differ from the checkpoint's when a run resumes"),
    REAL(run.max_minutes, "0", 0, BIG, "minutes after which the run saves and stops, with exit code 75; 0 = no limit"),
    CHOICE(run.on_nonfinite, "\"stop\"",
           WORDS([ON_TROUBLE_STOP] = "stop", [ON_TROUBLE_SKIP] = "skip", [ON_TROUBLE_ROLLBACK] = "rollback"),
           "what to do when loss or gradient is not finite, also after the step is computed again: stop: end with exit code "
           "76; skip: leave the step out; rollback: return to the newest checkpoint and leave out the data of the steps "
           "since then"),
    CHOICE(run.on_spike, "\"warn\"",
           WORDS([ON_TROUBLE_STOP] = "stop", [ON_TROUBLE_SKIP] = "skip", [ON_TROUBLE_ROLLBACK] = "rollback",
                 [ON_TROUBLE_WARN] = "warn"),
           "what to do when the loss is far above the recent ones (run.spike_threshold), also after the step is computed "
           "again: warn: print a warning and train on; stop: end with exit code 76; skip: leave the step out; rollback: "
           "return to the newest checkpoint and leave out the data of the steps since then"),
    REAL(run.spike_threshold, "10", 0, BIG,
         "a loss is a spike if it lies more than this many robust standard deviations (1.4826 MAD) above the median of the "
         "last 128 losses; 0 = no loss is a spike"),
    INTEGER(run.max_skips, "3", 0, EXACT,
         "largest number of steps in a row that run.on_nonfinite and run.on_spike may skip, and of rollbacks that do not get "
         "past the same step; one more ends the run with exit code 76"),
    INTEGER(run.verify_every, "1000", 0, EXACT,
            "steps between two that are computed twice from the same batches; the hashes of both gradients are compared, to "
            "find faulty hardware; 0 = never"),
    REAL(run.watchdog_seconds, "0", 0, BIG,
         "seconds without progress after which the job ends with exit code 77; 0 = the program chooses: 300 s while the job "
         "starts, then 20 x the longest pause so far, at least 30 s"),

    WORD(model.preset, "\"\"", PRESET_NAMES,
         "a model of published size; other keys of the section model override its values; \"\" = none"),
    SIZE(n_layer, NULL, 1, 65536, "number of blocks", .need = NEED_MODEL, FIXED, .example = "12"),
    SIZE(n_head, NULL, 1, DIM, "number of attention heads in a block; must divide n_embd unless head_dim is given", .need = NEED_MODEL, FIXED, .example = "12"),
    SIZE(n_embd, NULL, 1, DIM, "width of the model: channels of a token", .need = NEED_MODEL, FIXED, .example = "768"),
    SIZE(n_positions, NULL, 1, DIM, "number of positions of the model: the length of its longest sequence", .need = NEED_MODEL, FIXED, .example = "1024"),
    SIZE(vocab_size, NULL, 1, DIM, "number of entries of the vocabulary: token ids are 0 to vocab_size - 1", .need = NEED_MODEL, FIXED, .example = "50257"),
    CHOICE_AT("model.arch", model.shape.arch, "\"gpt2\"",
              WORDS([ARCH_GPT2] = "gpt2", [ARCH_LLAMA] = "llama", [ARCH_QWEN3] = "qwen3",
                    [ARCH_QWEN3_MOE] = "qwen3-moe"),
              "kind of model: gpt2; llama: RMSNorm, rotary positions, SwiGLU, heads that share keys, no biases; qwen3: llama "
              "with a norm of each head of q and k; qwen3-moe: qwen3 with experts (section moe)", FIXED),
    CHOICE_AT("model.activation", model.shape.activation, "\"gelu_new\"", ACTIVATION_NAMES,
              "activation function of the MLP, by its name at Hugging Face: gelu_new (GELU by tanh), gelu (GELU by erf, exact), "
              "relu2 (ReLU squared), silu; gpt2 allows all; llama, qwen3 and qwen3-moe allow only silu, their default; with "
              "model.init_from the default is the activation of those weights", FIXED),
    SIZE(n_kv_head, "0", 0, DIM,
         "number of heads of keys and values, which the n_head query heads share; must divide n_head; 0 = n_head; gpt2 "
         "allows only 0", FIXED),
    SIZE(head_dim, "0", 0, DIM, "channels of an attention head; 0 = n_embd / n_head; gpt2 allows only 0", FIXED),
    SIZE(n_inner, "0", 0, DIM,
         "width of the MLP: required for llama and qwen3; 0 = 4 x n_embd, for gpt2; qwen3-moe has moe.n_inner instead", FIXED),
    FLAG_AT("model.tie_embeddings", model.shape.tie_embeddings, "true",
            "true: the output head uses the weights of the embedding; false: the head has weights of its own, which gpt2 "
            "does not allow; if the key is not given, llama, qwen3 and qwen3-moe have false", FIXED),
    SHAPE_REAL(norm_eps, "1e-5", 1e-30, 1,
         "epsilon of RMSNorm, added to the mean square under the root; if the key is not given, qwen3 and qwen3-moe have "
         "1e-6; gpt2 allows only 1e-5", FIXED),
    SHAPE_REAL(rope_theta, "10000", 1, BIG, "base of the wavelengths of rotary positions (not of gpt2)", FIXED),
    SHAPE_REAL(rope_factor, "0", 0, BIG,
         "Llama 3's scaling of rotary positions: factor that multiplies long wavelengths; 0 = no scaling", FIXED),
    SHAPE_REAL(rope_low_freq_factor, "1", 0, BIG,
               "scaled rotary positions: wavelengths longer than rope_original_positions / rope_low_freq_factor are multiplied by "
               "rope_factor", FIXED),
    SHAPE_REAL(rope_high_freq_factor, "4", 0, BIG,
         "scaled rotary positions: wavelengths shorter than rope_original_positions / rope_high_freq_factor do not change", FIXED),
    SIZE(rope_original_positions, "8192", 1, DIM, "scaled rotary positions: number of positions that the model had before the scaling", FIXED),
    SIZE(mup_base_n_embd, "0", 0, DIM,
         "muP: width (n_embd) of the narrow model with which the learning rate was searched; learning rates and first "
         "weights are scaled from that width to n_embd; 0 = no muP", FIXED),
    SIZE(mup_base_head_dim, "0", 0, DIM,
         "muP: channels of a head in the narrow model of width mup_base_n_embd; 0 = as many as in this model", FIXED),
    SHAPE_REAL(logit_softcap, "0", 0, BIG, "soft cap c of the logits: a logit becomes c x tanh(logit / c); Gemma 2 has 30; 0 = none", FIXED),
    SHAPE_REAL(z_loss, "0", 0, 1, "weight z of the z-loss: training adds z x (log of the softmax denominator)^2 to each token's loss; "
               "logged losses leave it out", FIXED),
    TEXT(model.init_from, "\"\"", 0, 4095,
         "weights to start from at step 0: a .safetensors file, a Hugging Face folder with one file of weights or several, or a run "
         "folder; \"\" = random weights"),

    REAL(init.std, "0.02", 1e-30, 1,
         "standard deviation of first weights; projections into the residual stream have init.std / sqrt(2 n_layer)", FIXED),

    INTEGER_AT("moe.experts", model.shape.n_experts, "0", 0, 4096,
               "number of experts in each block of qwen3-moe, which requires moe.experts, moe.top_k and moe.n_inner; 0 for "
               "other kinds of model",
               FIXED),
    INTEGER_AT("moe.top_k", model.shape.top_k, "0", 0, 4096,
               "number of experts that compute each token of qwen3-moe; 0 for other kinds of model", FIXED),
    INTEGER_AT("moe.n_inner", model.shape.n_expert_inner, "0", 0, DIM,
               "width of the MLP of one expert of qwen3-moe; 0 for other kinds of model", FIXED),
    FLAG_AT("moe.norm_top_k", model.shape.norm_top_k, "true",
            "true: the weights with which the experts of a token are added are divided by their sum", FIXED),
    CHOICE_AT("moe.balance", model.shape.balance, "\"switch\"",
              WORDS([BALANCE_NONE] = "none", [BALANCE_BIAS] = "bias", [BALANCE_SWITCH] = "switch"),
              "method that gives the experts equal shares of the tokens: switch: an extra loss; bias: a number for each "
              "expert, which changes after each step and is added when experts are chosen (Hugging Face's class has no such "
              "tensor); none: no method", FIXED),
    REAL_AT("moe.balance_rate", model.shape.balance_rate, "1e-3", 0, BIG,
            "with moe.balance=switch the factor of the extra loss; with moe.balance=bias how much the bias of an expert "
            "changes in a step",
            FIXED),
    REAL(moe.capacity, "2.0", 1e-3, 4096,
         "with parallel.expert: number of rows (tokens for experts) for which a rank has memory, as a multiple of an equal "
         "share; more rows take further rounds, which backward computes again"),

    SOURCES(data.train, NULL, 1,
            "token shards (files of tokens) to train on: a name, a glob or a list of these, or a blend: a list of {path, "
            "weight, until_tokens}; a name that exists is that file, even with wildcards in it", REQUIRED,
            .example = "'datasets/my/train_*.bin'"),
    LIST(data.val, "\"\"", 0,
         "token shards (files of tokens) for validation: a name, a glob or a list of these; \"\" = no validation"),
    FLAG(data.shuffle, "true", "true: samples in a new random order each epoch; false: in the order of the files", FIXED),
    FLAG(data.document_mask, "false",
         "true: attention stays within a document, which begins with the end-of-text token before it, and learnt positions start "
         "again there; if the key is not given, all kinds of model but gpt2 have true", FIXED),
    TEXT(data.tokenizer, "\"\"", 0, 4095,
         "folder or file of the tokenizer: tokenizer.json, vocab.json with merges.txt, NAME.tiktoken; \"\" = the one in the folders "
         "of data.train and data.val, else bytes if vocab_size is 256, else ids only"),

    INTEGER(batch.global_tokens, NULL, 1, EXACT,
            "tokens of a step over all ranks: a multiple of micro_batch x seq_len x ranks / (parallel.tensor x "
            "parallel.context x parallel.pipeline)",
            REQUIRED, FIXED, .example = "524288"),
    INTEGER(batch.micro_batch, NULL, 1, DIM, "number of sequences that a rank computes at once", REQUIRED, .example = "8"),
    INTEGER(batch.seq_len, NULL, 1, DIM, "tokens of a sequence, at most n_positions", .need = NEED_DERIVED, .example = "512",
            .shown = "model.n_positions", FIXED),

    WORD(optimizer.name, "\"adamw\"", WORDS("adamw", "muon"),
         "update rule: adamw; muon: Muon for the matrices of blocks, with learning rates like AdamW's, and AdamW for all other "
         "weights", FIXED),
    REAL(optimizer.learning_rate, "6e-4", 0, BIG, "highest learning rate of the schedule", FIXED),
    REAL(optimizer.beta1, "0.9", 0, 1, "decay of AdamW's first moment", .half_open = 1, FIXED),
    REAL(optimizer.beta2, "0.95", 0, 1, "decay of AdamW's second moment", .half_open = 1, FIXED),
    REAL(optimizer.eps, "1e-8", 1e-30, 1, "number that AdamW adds to the root of the second moment", FIXED),
    REAL(optimizer.weight_decay, "0.1", 0, BIG, "decoupled weight decay of the tensors with two dimensions or more", FIXED),
    CHOICE(optimizer.weight_decay_schedule, "\"constant\"",
           WORDS([WEIGHT_DECAY_CONSTANT] = "constant", [WEIGHT_DECAY_LR] = "lr", [WEIGHT_DECAY_LINEAR] = "linear"),
           "weight decay over the run: constant; lr: in proportion to the learning rate; linear: down to 0 at the end", FIXED),
    REAL(optimizer.muon_momentum, "0.95", 0, 1, "muon only: Nesterov momentum of the gradients of matrices", .half_open = 1,
         .optimizer = "muon", FIXED),
    CHOICE(optimizer.newton_schulz, "\"quintic\"",
           WORDS([NEWTON_QUINTIC] = "quintic", [NEWTON_POLAR_EXPRESS] = "polar_express"),
           "muon only: polynomials of the five Newton-Schulz rounds: quintic: Muon's own; polar_express: those that bring singular "
           "values closer to 1", .optimizer = "muon", FIXED),
    FLAG(optimizer.normuon, "false",
         "muon only: true: NorMuon, where each neuron moves about equally far; beta2 is the decay of its second moment, too",
         .optimizer = "muon", FIXED),
    REAL(optimizer.grad_clip, "1.0", 0, BIG, "largest norm of the gradient: a larger gradient is scaled down to it; 0 = off", FIXED),

    CHOICE(schedule.name, "\"cosine\"",
           WORDS([SCHEDULE_COSINE] = "cosine", [SCHEDULE_LINEAR] = "linear", [SCHEDULE_CONSTANT] = "constant",
                 [SCHEDULE_WSD] = "wsd"),
         "shape of the learning rate after the warmup; wsd (warmup, stable, decay) is constant, then falls at the end", FIXED),
    INTEGER(schedule.warmup_steps, "0", 0, EXACT, "number of first steps, in which the learning rate rises linearly from 0", FIXED),
    REAL(schedule.final_lr_fraction, "0.0", 0, 1, "learning rate at the end, as a fraction of the highest one", FIXED),
    REAL(schedule.decay_fraction, "0.2", 0, 1,
         "schedule wsd only: length of the decay at the end of the run, in which the learning rate falls, as a fraction of "
         "run.steps", FIXED),
    CHOICE(schedule.decay, "\"sqrt\"", WORDS([DECAY_SQRT] = "sqrt", [DECAY_LINEAR] = "linear"),
         "schedule wsd only: shape of the decay at the end; with p, the share of the decay that is done, the learning rate "
         "falls as sqrt: 1 - sqrt(p); linear: 1 - p", FIXED),

    CHOICE(precision, "\"auto\"",
           WORDS([PRECISION_AUTO] = "auto", [PRECISION_FP32] = "fp32", [PRECISION_TF32] = "tf32",
                 [PRECISION_BF16] = "bf16", [PRECISION_FP16] = "fp16", [PRECISION_FP8] = "fp8"),
           "type of activations and matrix products: auto = bf16 if the processor or GPU of every rank computes it natively, "
           "else fp32; tf32 and fp16 need a GPU; fp8 = bf16, but the matrix products of blocks in fp8 (on a CPU slow, for "
           "tests)"),

    INTEGER(parallel.tensor, "1", 1, 1024,
            "number of ranks that divide each matrix of the model, and the rows of activations between matrices; must divide "
            "n_head and n_embd"),
    INTEGER(parallel.context, "1", 1, 1024,
            "number of ranks that divide each sequence; batch.seq_len must be a multiple of 128 x this number"),
    INTEGER(parallel.pipeline, "1", 1, 1024,
            "number of pipeline stages: groups of blocks, each on ranks of its own; the micro-batches of a step pass through "
            "the stages one after another"),
    INTEGER(parallel.interleave, "1", 1, 1024,
            "number of separate groups of blocks on each pipeline stage: with more groups the stages wait less and send more "
            "messages; parallel.pipeline x parallel.interleave is at most n_layer"),
    INTEGER(parallel.expert, "1", 1, 1024,
            "number of data ranks that divide the experts of qwen3-moe; the activations of a token travel to the rank of its "
            "expert and back"),
    INTEGER(parallel.zero_stage, "1", 0, 3,
            "ZeRO stage, what data ranks divide among themselves: 0 nothing; 1 the optimizer state; 2 also the gradients; 3 "
            "also the weights"),
    INTEGER(parallel.replicas, "1", 1, 1 << 20,
            "number of copies of the training state that parallel.zero_stage divides (HSDP); gradients are summed within a "
            "copy first, then across copies"),
    FLAG(parallel.balance, "false", "true: ranks that compute faster take more of the micro-batches of a step"),
    CHOICE(parallel.comm, "\"auto\"",
           WORDS([PARALLEL_AUTO] = "auto", [PARALLEL_NCCL] = "nccl", [PARALLEL_RING] = "ring", [PARALLEL_MPI] = "mpi"),
           "library that exchanges data between ranks: auto = nccl if every rank has its own GPU, else ring; ring: the "
           "program's own, over MPI; mpi: MPI's collectives"),
    FLAG(parallel.deterministic, "false", "true: any number of data ranks computes the same bits"),

    TEXT(outer.server, "\"\"", 0, 4095,
         "host:port of the server (./train_gpt serve) with which this job, an island, exchanges weights; several servers, "
         "each with a part of the model, are separated by commas; \"\" = none"),
    INTEGER(outer.every, "100", 1, EXACT,
         "number of steps in a round, after which an island sends its update to the server and fetches new weights; must "
         "divide run.steps", FIXED),
    CHOICE(outer.send, "\"deltas\"", WORDS([SEND_DELTAS] = "deltas", [SEND_GRADIENTS] = "gradients"),
           "what an island sends to the server: deltas: the change of its weights over a round (DiLoCo, local SGD); gradients: its "
           "gradients, with which the server updates the weights (parameter server)", FIXED),
    CHOICE(outer.wait, "\"all\"", WORDS([WAIT_ALL] = "all", [WAIT_NONE] = "none"),
         "which islands the server waits for: all: a round ends when every island has sent its update; none: the server "
         "applies each update when it arrives"),
    REAL(outer.learning_rate, "0.7", 0, BIG,
         "factor by which the server multiplies the mean delta of the islands (outer.send); 1 with outer.momentum 0 = plain "
         "averaging"),
    REAL(outer.momentum, "0.9", 0, 1,
         "Nesterov momentum of the updates by which the server of islands applies deltas", .half_open = 1),
    REAL(outer.patience_seconds, "60", 0.1, 86400,
         "seconds of silence after which a round of islands continues without an island, and after which an island without "
         "its server saves and stops, with exit code 77"),
    REAL(outer.linger_minutes, "60", 0, 525600,
         "minutes that the server of islands stays after the last step, for islands that come late: they fetch the last "
         "weights and end with exit code 0"),
    INTEGER(outer.least_islands, "1", 1, 4096, "number of islands for which the server waits before the first round"),
    TEXT(outer.key, "\"outer.key\"", 1, 3800,
         "file of the secret key that the server and its islands share: ./train_gpt serve writes it; copy it to the hosts of "
         "the islands"),
    CHOICE(outer.compress, "\"none\"",
           WORDS([COMPRESS_NONE] = "none", [COMPRESS_BF16] = "bf16", [COMPRESS_INT8] = "int8"),
         "type in which islands send deltas, and the server sends changes of the weights; none = fp32; the rounding error is "
         "added to the next delta or change"),

    CHOICE(memory.recompute, "\"none\"",
           WORDS([RECOMPUTE_NONE] = "none", [RECOMPUTE_LIGHT] = "light", [RECOMPUTE_BLOCK] = "block"),
           "activations that backward computes again, so that less is kept in memory: none; light = those of norms and "
           "activation functions; block = those of whole blocks"),
    CHOICE(memory.offload, "\"none\"", WORDS([MEMORY_DEVICE] = "none", [MEMORY_HOST] = "optimizer"),
           "optimizer: fp32 master weights and moments are kept and updated in host memory; none: they are on the GPU; no "
           "effect on the CPU"),

    INTEGER(checkpoint.every, "1000", 0, EXACT, "steps between checkpoints; 0 = one at the end only"),
    INTEGER(checkpoint.keep, "2", 1, EXACT,
         "number of newest checkpoints that are kept; 1 counts as 2, so that an older one is left if the newest is damaged"),
    INTEGER(checkpoint.keep_every, "0", 0, EXACT, "steps between milestones, checkpoints that are never removed; 0 = none"),
    FLAG(checkpoint.keep_best, "false", "true: the checkpoint with the best validation loss is also kept"),
    INTEGER(checkpoint.memory_every, "0", 0, EXACT,
            "steps between copies of the training state in the memory of each host and of the next one, from which a run "
            "resumes after a crash; 0 = never"),
    TEXT(checkpoint.memory_dir, "\"/dev/shm\"", 1, 3800, "folder, in memory, of the copies that checkpoint.memory_every makes"),
    INTEGER(eval.every, "250", 0, EXACT, "steps between evaluations on data.val (also at step 0 and at the end); 0 = never"),
    INTEGER(eval.tokens, "131072", 0, EXACT,
         "number of tokens of an evaluation: the first ones of data.val, with any number of ranks; 0 = all"),
    LIST(eval.tasks, "[]", 0, "files of questions that each evaluation scores: JSONL, or llm.c's hellaswag_val.bin"),
    INTEGER(eval.tasks_every, "0", 0, EXACT, "steps between scorings of eval.tasks (also at step 0 and at the end); 0 = eval.every"),
    INTEGER(sample.every, "0", 0, EXACT, "steps between samples of generated text; 0 = never"),
    INTEGER(sample.tokens, "128", 1, EXACT, "tokens of each sample of generated text"),
    TEXT(sample.prompt, "\"\"", 0, 65535, "text that a sample continues"),
    REAL(sample.temperature, "0.8", 0, BIG,
         "number by which logits are divided before a token of a sample is drawn; 0 = the likeliest token each time"),
    INTEGER(sample.top_k, "0", 0, EXACT, "top-k sampling: the tokens of a sample are drawn among the k likeliest; 0 = all"),
    REAL(sample.top_p, "1", 0, 1,
         "top-p sampling: the tokens of a sample are drawn among the fewest likeliest ones whose probabilities add up to p; "
         "1 = all"),
    REAL(sample.min_p, "0", 0, 1,
         "min-p sampling: the tokens of a sample are drawn among those whose probability is at least this fraction of the "
         "likeliest one's; 0 = all"),
    INTEGER(log.every, "1", 1, EXACT, "steps between progress lines; metrics.jsonl has every step"),
    FLAG(log.tensorboard, "true",
         "true: the numbers of metrics.jsonl are also written as event files for TensorBoard, in run.dir/tb"),
};
/* clang-format on */
const int OPTION_COUNT = sizeof OPTIONS / sizeof *OPTIONS;

/* --- look-ups ----------------------------------------------------------------------------------------------------- */

const Option *option_find(const char *key) {
    for (int i = 0; i < OPTION_COUNT; i++)
        if (!strcmp(OPTIONS[i].key, key)) return &OPTIONS[i];
    return NULL;
}

const char *option_section(int k) {
    static const char *const sections[] = {"run", "model", "moe", "init", "data", "batch", "optimizer", "schedule",
                                           "parallel", "outer", "memory", "checkpoint", "eval", "sample", "log", NULL};
    return sections[k];
}

int option_is_section(const char *name) {
    for (int k = 0; option_section(k); k++)
        if (!strcmp(option_section(k), name)) return 1;
    return 0;
}

int option_in_section(const Option *o, const char *section) {
    size_t length = strlen(section);
    return !strncmp(o->key, section, length) && o->key[length] == '.';
}

const char *option_left(const char *key) {
    static const struct { const char *key, *fallback; } left[] = {
        {"outer.moments", "\"own\""}, {"outer.stream", "false"}};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (!strcmp(left[i].key, key)) return left[i].fallback;
    return NULL;
}

const char *option_home(const Option *o) {
    for (int i = 0; option_section(i); i++)
        if (option_in_section(o, option_section(i))) return option_section(i);
    return "";
}

const char *option_name(const Option *o) {
    const char *dot = strchr(o->key, '.');
    return dot ? dot + 1 : o->key;
}

const char *preset_text(const char *name) {
    for (int i = 1; PRESET_NAMES[i]; i++)
        if (!strcmp(PRESET_NAMES[i], name)) return PRESET_TEXTS[i];
    return NULL;
}

/* --- values as text ----------------------------------------------------------------------------------------------- */

char *option_allowed(const Option *o, char out[ALLOWED_BYTES]) {
    char low[SHOWN_BYTES], high[SHOWN_BYTES];
    switch (o->type) {
    case OPTION_IGNORED:
    case OPTION_TEXT:    snprintf(out, ALLOWED_BYTES, "a string"); break;
    case OPTION_FLAG:    snprintf(out, ALLOWED_BYTES, "true or false"); break;
    case OPTION_LIST:    snprintf(out, ALLOWED_BYTES, "a string or a list of strings"); break;
    case OPTION_SOURCES:
        snprintf(out, ALLOWED_BYTES, "a string or a list of strings, or of sources with weights");
        break;
    case OPTION_WORD:
    case OPTION_CHOICE:
        for (int i = 0, used = 0; o->words[i] && used < ALLOWED_BYTES; i++)
            used += snprintf(out + used, (size_t)(ALLOWED_BYTES - used), "%s\"%s\"",
                             i == 0 ? "" : o->words[i + 1] ? ", " : " or ", o->words[i]);
        break;
    case OPTION_INTEGER:
    case OPTION_REAL:
        snprintf(out, ALLOWED_BYTES, o->half_open ? "%s of at least %.40s and below %.40s" : "%s from %.40s to %.40s",
                 o->type == OPTION_INTEGER ? "an integer" : "a number", number_text(o->min, low),
                 number_text(o->max, high));
        break;
    }
    return out;
}

const char *option_default_text(const Option *o) {
    if (o->fallback) return o->fallback;
    return o->need == NEED_DERIVED ? o->shown : o->need == NEED_MODEL ? "required without model.preset" : "required";
}

/* --- setting ------------------------------------------------------------------------------------------------------ */

struct ConfigKept { ConfigKept *next; };

/* Returns zeroed memory that is freed with the config. */
static void *keep_bytes(Config *config, size_t bytes) {
    ConfigKept *block = xcalloc(1, sizeof *block + bytes, "reading the config");
    block->next = config->kept;
    config->kept = block;
    return block + 1;
}

const char *config_keep(Config *config, const char *text) {
    size_t bytes = strlen(text) + 1;
    return memcpy(keep_bytes(config, bytes), text, bytes);
}

void config_free(Config *config) {
    for (ConfigKept *next; config->kept; config->kept = next) {
        next = config->kept->next;
        free(config->kept);
    }
}

/* Writes the sentence of a fault. Returns 0. */
#define refuse(fault, ...) fault_text((fault)->text, sizeof (fault)->text, 0, __VA_ARGS__)

static int refuse_value(OptionFault *fault, const Option *o, const cJSON *value) {
    char allowed[ALLOWED_BYTES], got[SHOWN_BYTES];
    return refuse(fault, "%s must be %s, not %s", o->key, option_allowed(o, allowed), value_text(value, got));
}

static int set_text(const Option *o, Config *config, const cJSON *value, const char **field, OptionFault *fault) {
    if (!cJSON_IsString(value)) return refuse_value(fault, o, value);
    double bytes = (double)strlen(value->valuestring);
    if (bytes < o->min) return refuse(fault, "%s must not be empty", o->key);
    if (bytes > o->max)
        return refuse(fault, "%s is a string of %.0f bytes; at most %.0f are allowed", o->key, bytes, o->max);
    *field = config_keep(config, value->valuestring);
    return 1;
}

static int set_list(const Option *o, Config *config, const cJSON *value, StringList *list, OptionFault *fault) {
    int count = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    if (cJSON_IsString(value) && !*value->valuestring && o->min == 0) count = 0; /* "" counts as the empty list */
    else if (!cJSON_IsString(value) && !cJSON_IsArray(value)) return refuse_value(fault, o, value);
    if (count < o->min) return refuse(fault, "%s must name at least one file", o->key);
    *list = (StringList){count, count ? keep_bytes(config, sizeof *list->item * (size_t)count) : NULL, NULL};
    const cJSON *item = cJSON_IsArray(value) ? value->child : value;
    Option       one = *o;
    char         key[128], got[SHOWN_BYTES];
    one.type = OPTION_TEXT, one.min = 1;
    for (int i = 0; i < count; i++, item = item->next) {
        if (cJSON_IsArray(value)) {
            snprintf(key, sizeof key, "%s[%d]", o->key, i);
            one.key = key, fault->element = i;
        }
        if (!cJSON_IsString(item)) return refuse(fault, "%s must be a string, not %s", key, value_text(item, got));
        if (!set_text(&one, config, item, &list->item[i], fault)) return 0;
    }
    return 1;
}

/* --- a blend: a list of sources with weights ---------------------------------------------------------------------- */

static const double SUM_SLACK = 1e-5; /* error that the sum of weights may have: thirds with five digits sum to
                                       * 0.99999 */

static int refuse_member(OptionFault *fault, const char *key, const char *name, const char *allowed, const cJSON *got) {
    char shown[SHOWN_BYTES];
    if (!got) return refuse(fault, "%s lacks \"%s\": %s", key, name, allowed);
    return refuse(fault, "%s.%s must be %s, not %s", key, name, allowed, value_text(got, shown));
}

/* Reads an entry of a blend (list of data sources with weights). key: name of the entry in messages, such as
 * "data.train[2]". */
static int read_entry(const char *key, Config *config, const cJSON *entry, double longest, const char **path,
                      BlendShare *share, OptionFault *fault) {
    static const char *const KNOWN[] = {"path", "weight", "until_tokens", "$comment"};
    char                     shown[SHOWN_BYTES];
    if (!cJSON_IsObject(entry))
        return refuse(fault, "%s must be an object such as {\"path\": ..., \"weight\": ...}, as the entries before it "
                      "are, not %s", key,
                      value_text(entry, shown));
    for (const cJSON *member = entry->child; member; member = member->next) {
        int is_known = 0;
        for (int i = 0; i < 4; i++) is_known |= !strcmp(member->string, KNOWN[i]);
        if (!is_known)
            return refuse(fault, "%s has the unknown key %s: a source takes path, weight, until_tokens", key,
                          json_quote_short(shown, sizeof shown, member->string));
    }
    const cJSON *name = json_member(entry, "path"), *weight = json_member(entry, "weight");
    const cJSON *until = json_member(entry, "until_tokens");
    double       w = number_value(weight), end = until ? number_value(until) : 0;
    if (!cJSON_IsString(name) || !*name->valuestring)
        return refuse_member(fault, key, "path", "a path of token files, or a pattern such as data/train_*.bin", name);
    if ((double)strlen(name->valuestring) > longest)
        return refuse(fault, "%s.path has more than %.0f bytes: give a shorter path", key, longest);
    if (!(w > 0 && w <= 1)) return refuse_member(fault, key, "weight", "a number above 0 and at most 1", weight);
    if (until && !(end >= 1 && end <= 0x1p53 && end == floor(end)))
        return refuse_member(fault, key, "until_tokens", "an integer of at least 1", until);
    *path = config_keep(config, name->valuestring);
    *share = (BlendShare){w, (int64_t)end};
    return 1;
}

/* Sets a blend (a list of data sources) from a JSON value, like option_set. Reads its entries one by one. Then
 * sources_check checks them together. */
static int set_sources(const Option *o, Config *config, const cJSON *value, StringList *list, OptionFault *fault) {
    int count = cJSON_GetArraySize(value);
    if (count > BLEND_SHARES)
        return refuse(fault, "%s is a blend of %d entries; at most %d are allowed", o->key, count, BLEND_SHARES);
    const char **path = keep_bytes(config, sizeof *path * (size_t)count);
    BlendShare  *share = keep_bytes(config, sizeof *share * (size_t)count);
    const cJSON *entry = value->child;
    for (int i = 0; i < count; i++, entry = entry->next) {
        char key[128];
        snprintf(key, sizeof key, "%s[%d]", o->key, i);
        fault->element = i;
        if (!read_entry(key, config, entry, o->max, &path[i], &share[i], fault)) return 0;
    }
    *list = (StringList){count, path, share};
    return 1;
}

/* Returns the index after the last entry of one stage of a blend, a list of data sources with weights. The stage begins
 * with entry `from`. */
static int stage_end(const StringList *list, int from) {
    int to = from;
    while (to < list->count && list->share[to].until_tokens == list->share[from].until_tokens) to++;
    return to;
}

/* Checks one stage of a blend (list of data sources with weights), the entries `from` to `to` - 1: names, and the sum
 * of the weights. */
static int check_stage(const char *key, const StringList *list, int from, int to, OptionFault *fault) {
    double sum = 0;
    int    is_only = stage_end(list, 0) == list->count;
    char   stage[64] = "", quoted[SHOWN_BYTES];
    if (!is_only && list->share[from].until_tokens)
        snprintf(stage, sizeof stage, " until %lld tokens", (long long)list->share[from].until_tokens);
    else if (!is_only) snprintf(stage, sizeof stage, " of the last stage");
    for (int i = from; i < to; i++) {
        sum += list->share[i].weight;
        for (int k = from; k < i; k++)
            if (!strcmp(list->item[k], list->item[i]))
                return refuse(fault, "%s names %s in two entries%s: give it once, with the sum of its weights", key,
                              json_quote_short(quoted, sizeof quoted, list->item[i]), stage);
    }
    if (fabs(sum - 1.0) <= SUM_SLACK) return 1;
    return refuse(fault, "%s: the weights%s sum to %.6g and must sum to 1: divide each by %.6g", key, stage, sum, sum);
}

/* Checks that the next stage of a blend (list of data sources with weights) ends later than this one, or never. */
static int check_order(const char *key, const StringList *list, int from, int to, OptionFault *fault) {
    int64_t end = list->share[from].until_tokens, next = to < list->count ? list->share[to].until_tokens : 0;
    if (to == list->count && end)
        return refuse(fault, "%s: until_tokens = %lld is the end of the last stage, and nothing follows: leave it out "
                      "there", key, (long long)end);
    if (to == list->count || (end && (next == 0 || next > end))) return 1;
    if (!end)
        return refuse(fault, "%s[%d] follows entries without until_tokens, which hold to the end of the run: give "
                      "those an end", key, to);
    return refuse(fault, "%s[%d].until_tokens = %lld follows %lld: give the stages in the order of until_tokens", key,
                  to, (long long)next, (long long)end);
}

int sources_check(const char *key, const StringList *list, OptionFault *fault) {
    int sources = blend_sources(list->item, list->count);
    if (sources > BLEND_SOURCES)
        return refuse(fault, "%s is a blend of %d sources; at most %d are allowed", key, sources, BLEND_SOURCES);
    for (int from = 0, to; from < list->count; from = to) {
        to = stage_end(list, from);
        if (!check_order(key, list, from, to, fault) || !check_stage(key, list, from, to, fault)) return 0;
    }
    return 1;
}

/* --- any value ---------------------------------------------------------------------------------------------------- */

static int in_range(const Option *o, double v) {
    return v >= o->min && (o->half_open ? v < o->max : v <= o->max);
}

int option_set(const Option *o, Config *config, const cJSON *value, OptionFault *fault) {
    void  *field = (char *)config + o->offset;
    double number = number_value(value);
    int    word = 0;
    fault->element = -1;
    switch (o->type) {
    case OPTION_IGNORED:
        return cJSON_IsString(value) ? 1 : refuse_value(fault, o, value);
    case OPTION_TEXT:
        return set_text(o, config, value, field, fault);
    case OPTION_WORD:
    case OPTION_CHOICE:
        while (cJSON_IsString(value) && o->words[word] && strcmp(o->words[word], value->valuestring)) word++;
        if (!cJSON_IsString(value) || !o->words[word]) return refuse_value(fault, o, value);
        if (o->type == OPTION_WORD) *(const char **)field = o->words[word];
        else                        *(int *)field = word;
        return 1;
    case OPTION_FLAG:
        if (!cJSON_IsBool(value)) return refuse_value(fault, o, value);
        *(int *)field = cJSON_IsTrue(value) ? 1 : 0;
        return 1;
    case OPTION_INTEGER:
        if (!in_range(o, number) || number != floor(number)) return refuse_value(fault, o, value);
        *(int64_t *)field = (int64_t)number;
        return 1;
    case OPTION_REAL:
        if (!in_range(o, number)) return refuse_value(fault, o, value);
        *(double *)field = number;
        return 1;
    case OPTION_SOURCES:
        if (cJSON_IsArray(value) && cJSON_IsObject(value->child)) return set_sources(o, config, value, field, fault);
        /* fall through */
    case OPTION_LIST:
        return set_list(o, config, value, field, fault);
    }
    return 0;
}

void option_set_default(const Option *o, Config *config) {
    OptionFault fault;
    void       *field = (char *)config + o->offset;
    if (o->fallback) {
        cJSON *value = cJSON_Parse(o->fallback);
        CHECK(option_set(o, config, value, &fault), "the default of %s is not allowed", o->key);
        cJSON_Delete(value);
    } else if (o->type == OPTION_TEXT) *(const char **)field = "";
    else if (o->type == OPTION_LIST || o->type == OPTION_SOURCES) *(StringList *)field = (StringList){0, NULL, NULL};
    else *(int64_t *)field = 0;
}

cJSON *option_to_json(const Option *o, const Config *config) {
    const void       *field = (const char *)config + o->offset;
    const StringList *list = field;
    cJSON            *array;
    switch (o->type) {
    case OPTION_IGNORED: return cJSON_CreateString("");
    case OPTION_TEXT:
    case OPTION_WORD:    return cJSON_CreateString(*(const char *const *)field);
    case OPTION_CHOICE:  return cJSON_CreateString(o->words[*(const int *)field]);
    case OPTION_FLAG:    return cJSON_CreateBool(*(const int *)field);
    case OPTION_INTEGER: return number_json((double)*(const int64_t *)field);
    case OPTION_REAL:    return number_json(*(const double *)field);
    case OPTION_LIST:
    case OPTION_SOURCES: break;
    }
    array = cJSON_CreateArray();
    for (int i = 0; i < list->count; i++) {
        cJSON *entry = list->share ? cJSON_CreateObject() : cJSON_CreateString(list->item[i]);
        cJSON_AddItemToArray(array, entry);
        if (!list->share) continue;
        cJSON_AddStringToObject(entry, "path", list->item[i]);
        cJSON_AddItemToObject(entry, "weight", number_json(list->share[i].weight));
        if (list->share[i].until_tokens)
            cJSON_AddItemToObject(entry, "until_tokens", number_json((double)list->share[i].until_tokens));
    }
    return array;
}
