/* checkpoint_resume.c - resumes from the newest checkpoint that verifies; see checkpoint.h.
 *
 * Rank 0 decides. Every rank hashes its share of the files and reads its own pieces by global offset. So any number of
 * ranks and any zero_stage can resume what any other has saved. Nothing on the disk changes, except that copies in
 * memory of a newer step first become a checkpoint (memory_rescue.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/terminal.h"
#include "core/xalloc.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/checkpoint_refuse.h"
#include "run/checkpoint/lineage.h"
#include "run/checkpoint/memory_rescue.h"
#include "run/checkpoint/algorithms_file.h"
#include "run/checkpoint/weights_file.h"

/* --- which checkpoint --------------------------------------------------------------------------------------------- */

/* Collective. Finds the newest checkpoint of list [count] (rank 0) that verifies. Returns 1 with *at and *m, or 0 if
 * there is none. Warns of those that it passes over, and writes the first fault to fault [MANIFEST_FAULT_BYTES]. */
static int find_good(Comm *c, const char *checkpoints, const StepFolder *list, int64_t count, StepFolder *at, Manifest *m,
                     char *fault) {
    char    why[MANIFEST_FAULT_BYTES];
    int64_t warned = 0;
    fault[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (comm_rank(c) == 0) *at = list[i];
        comm_broadcast(c, at, sizeof *at, 0);
        Path           folder = path_of("%s/%s", checkpoints, at->name);
        ManifestStatus status = folder_verify(c, folder.text, at->step, NULL, m, why);
        if (status == MANIFEST_GOOD) folder_warn_rest(warned, "are passed over");
        if (status == MANIFEST_GOOD) return 1;
        if (status == MANIFEST_FOREIGN) fail(EXIT_DATA, "%s: %s", folder.text, why); /* steps of a newer program stay */
        if (status == MANIFEST_UNKNOWN) folder_fail_unknown(folder.text, why);
        folder_warn(&warned, "%s is passed over: %s; a later save renames it to %s.passed-over, and nothing removes it but you",
                    folder.text, why, at->name);
        if (!fault[0]) manifest_fault(fault, "%s: %.900s", at->name, why);
    }
    folder_warn_rest(warned, "are passed over");
    return 0;
}

/* Refuses to start from step 0 if checkpoints exist but none verifies. */
static void refuse_broken(const char *checkpoints, int64_t count, const char *fault) {
    if (count > 0)
        fail(EXIT_DATA,
             "no checkpoint in %s verifies (of %" PRId64 "; %s): restore one, or train anew with another run.dir",
             checkpoints, count, fault);
}

/* Collective. Returns the number of step folders. Rank 0 gets their list. */
static int64_t list_folders(const CheckpointState *state, const char *checkpoints, StepFolder **list) {
    int64_t count = comm_rank(state->comm) == 0 ? folders_list(checkpoints, list) : 0;
    if (count < 0) fail(EXIT_IO, "cannot read the folder %s: %s", checkpoints, strerror((int)-count));
    comm_broadcast(state->comm, &count, sizeof count, 0);
    return count;
}

/* Collective. Returns 1 with the checkpoint to resume from, or 0 for a new run. Ends the job if run.resume or the
 * checkpoints do not allow that. */
static int find_checkpoint(const CheckpointState *state, StepFolder *at, Manifest *m) {
    const Config *config = state->config;
    char          fault[MANIFEST_FAULT_BYTES];
    StepFolder   *list = NULL, rescued = {0};
    Path          checkpoints = path_of("%s/checkpoints", config->run.dir);
    int64_t       count = list_folders(state, checkpoints.text, &list);
    if (config->run.resume == RESUME_NEVER) refuse_used_folder(config->run.dir, (int)count);
    int found = find_good(state->comm, checkpoints.text, list, count, at, m, fault);
    free(list);
    if (memory_rescue(state, found ? at->step : -1, &rescued)) {
        if (found) manifest_free(m);
        found = find_good(state->comm, checkpoints.text, &rescued, 1, at, m, fault);
        count = 1;
    }
    if (!found) refuse_broken(checkpoints.text, count, fault);
    if (!found && config->run.resume == RESUME_MUST) refuse_no_checkpoint(checkpoints.text);
    if (!found && comm_rank(state->comm) == 0) keep_lost_metrics(config->run.dir);
    return found;
}

static void make_run_id(CheckpointState *state) {
    uint64_t id = 0;
    if (comm_rank(state->comm) == 0 && getrandom(&id, sizeof id, 0) != sizeof id) fail(EXIT_IO, "the system gives no random bytes");
    comm_broadcast(state->comm, &id, sizeof id, 0);
    snprintf(state->train_state->run_id, sizeof state->train_state->run_id, "%016" PRIx64, id);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Returns a tensor of a file that this program wrote. Exit 65 unless it is fp32 and at the offset of the layout. */
static const SafeTensor *own_tensor(const WeightsFile *w, const char *name, int dims, const int64_t *dim, uint64_t begin) {
    const SafeTensor *t = safetensors_find(&w->header, name);
    int               same = t && t->type == SAFE_F32 && t->dims == dims && t->begin == begin;
    for (int d = 0; same && d < dims; d++) same = t->dim[d] == (uint64_t)dim[d];
    if (!same) fail(EXIT_DATA, "%s: tensor %s is not where this model has it", w->path, name);
    return t;
}

/* Reads the spans of this rank, of the masters (which 0) or of state k (which 1 + k). base: a flat tensor that begins
 * at global offset 0. */
static void read_spans(const CheckpointState *state, const WeightsFile *w, const SafeTensor *base, int which, float *block) {
    const Optimizer *o = state->optimizer;
    for (int i = 0; i < o->shards->spans; i++) {
        Span span = o->shards->span[i];
        for (int64_t at = 0, n; at < span.elems; at += n) {
            watchdog_tick(state->watchdog, "reading a checkpoint");
            if (comm_rank(state->comm) == 0) say_part("loading the checkpoint", 0, 0);
            n = weights_read_span(w, base, 0, checkpoint_layout(state), &span, at, block, block + WEIGHTS_BLOCK);
            optimizer_put(o, state->stream, tensor_slice(optimizer_tensor(o, which, span), at, n), block);
        }
    }
}

static void read_checkpoint(const CheckpointState *state, const char *folder) {
    const Layout *layout = checkpoint_layout(state);
    WeightsFile   model = weights_open(path_of("%s/%s", folder, manifest_file_name[FILE_MODEL]).text);
    WeightsFile   states = weights_open(path_of("%s/%s", folder, manifest_file_name[FILE_OPTIMIZER]).text);
    float        *block = xmalloc(2 * sizeof *block * WEIGHTS_BLOCK, "reading weights");
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        own_tensor(&model, p->name, p->dims, p->dim, 4 * (uint64_t)p->offset);
    }
    read_spans(state, &model, &model.header.tensor[0], 0, block); /* the tensors adjoin, so they are read as one */
    for (int k = 0; k < state->optimizer->kind->states; k++)
        read_spans(state, &states,
                   own_tensor(&states, state->optimizer->kind->state[k].name, 1, &layout->elems,
                              4 * (uint64_t)k * (uint64_t)layout->elems),
                   1 + k, block);
    free(block);
    weights_close(&model);
    weights_close(&states);
    optimizer_publish(state->optimizer, state->stream);
}

/* Takes run_id and parent from the checkpoint. In a copied folder it makes a new run_id, and the run of the checkpoint
 * is the parent. Returns 1 for a copied folder. */
static int take_identity(CheckpointState *state, const Manifest *m) {
    TrainState *t = state->train_state;
    int64_t     is_copy = comm_rank(state->comm) == 0 && lineage_is_copy(state->config->run.dir, m->folder, m->run_id);
    comm_broadcast(state->comm, &is_copy, sizeof is_copy, 0);
    snprintf(t->run_id, sizeof t->run_id, "%s", m->run_id);
    t->parent = m->parent;
    if (!is_copy) return 0;
    t->parent.step = m->step;
    snprintf(t->parent.run_id, sizeof t->parent.run_id, "%s", m->run_id);
    make_run_id(state);
    return 1;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

/* Takes the history of fp8 from the checkpoint. A checkpoint of another precision has none, so the next step counts as
 * the first. */
static void take_fp8(Fp8History *h, const Manifest *m, const char *folder) {
    if (!h) return;
    h->steps = 0;
    if (strcmp(m->precision, "fp8") == 0 && !fp8_history_from_json(h, m->fp8))
        fail(EXIT_DATA, "%s/" MANIFEST_NAME " has no valid fp8, the maxima of %lld tensors: resume from another step, or with "
             "precision=bf16", folder, (long long)h->cells);
}

static Resumed take_over(CheckpointState *state, const StepFolder *at, const Manifest *m) {
    Resumed resumed = {.step = m->step, .ranks = m->ranks};
    Path    folder = path_of("%s/checkpoints/%s", state->config->run.dir, at->name);
    read_checkpoint(state, folder.text);
    snprintf(resumed.name, sizeof resumed.name, "%s", at->name);
    snprintf(resumed.grid, sizeof resumed.grid, "%s", m->grid);
    state->train_state->start = (Position){m->step, m->tokens, m->samples};
    state->train_state->missed = m->missed;
    state->train_state->guard = m->guard;
    if (strcmp(m->precision, state->precision) == 0)
        state->train_state->loss_scale = (LossScale){m->loss_scale, m->loss_scale_steps};
    take_fp8(state->train_state->fp8, m, folder.text);
    return resumed;
}

Resumed checkpoint_resume(CheckpointState *state) {
    StepFolder at;
    Manifest   m;
    if (!find_checkpoint(state, &at, &m)) {
        make_run_id(state);
        return (Resumed){0};
    }
    Path folder = path_of("%s/checkpoints/%s", state->config->run.dir, at.name);
    refuse_other_settings(state->config, state->train, folder.text, &m);
    refuse_other_tokenizer(state->config, state->tokenizer, folder.text);
    Resumed resumed = take_over(state, &at, &m);
    resumed.is_copy = take_identity(state, &m);
    if (!device_is_host() && m.gemm) algorithms_from_json(m.gemm, folder.text);
    manifest_free(&m);
    return resumed;
}

Resumed checkpoint_roll_back(CheckpointState *state) {
    char        fault[MANIFEST_FAULT_BYTES];
    StepFolder *list = NULL, at;
    Manifest    m;
    Path        checkpoints = path_of("%s/checkpoints", state->config->run.dir);
    int64_t     count = list_folders(state, checkpoints.text, &list);
    int         found = find_good(state->comm, checkpoints.text, list, count, &at, &m, fault);
    free(list);
    if (!found) refuse_broken(checkpoints.text, count, fault);
    if (!found) return (Resumed){0};
    Resumed resumed = take_over(state, &at, &m);
    manifest_free(&m);
    return resumed;
}
