/* checkpoint_resume.c - resumes from the newest checkpoint that verifies; see checkpoint.h.
 *
 * Rank 0 decides. Every rank hashes its share of the files, and reads the parts of the parameters that it owns by their
 * offsets in the whole model. So any number of ranks and any zero_stage can resume what any other has saved. Nothing on
 * the disk changes, with one exception: copies in memory of a newer step first become a checkpoint (memory_rescue).
 *
 * Each refusal ends the program: exit 64 if config and folder do not fit each other, 65 for a wrong or missing file.
 */
#include "run/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "core/io.h"
#include "core/terminal.h"
#include "core/error.h"
#include "run/checkpoint/algorithms_file.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/memory_copies.h"
#include "run/checkpoint/weights.h"
#include "run/config/spec.h"

/* --- may this folder be used -------------------------------------------------------------------------------------- */

/* Refuses a run folder with checkpoints or lines of metrics if run.resume = "never". checkpoints: the number of
 * checkpoints. */
static void refuse_used_folder(const char *run_dir, int checkpoints) {
    struct stat st;
    Path        metrics = path_of("%s/metrics.jsonl", run_dir);
    int         logged = stat(metrics.text, &st) == 0 && st.st_size > 0;
    if (!logged && checkpoints == 0) return;
    fail(EXIT_CONFIG,
         "%s holds a run already (%s) and run.resume is \"never\": choose another run.dir, or run.resume=auto to "
         "continue it", run_dir, checkpoints ? "checkpoints" : "metrics.jsonl");
}

NORETURN static void refuse_no_checkpoint(const char *checkpoints) {
    fail(EXIT_DATA,
         "run.resume is \"must\" but there is no checkpoint in %s: correct run.dir, or begin a new run with "
         "run.resume=auto",
         checkpoints);
}

void checkpoint_precheck(const Config *config) {
    Path checkpoints = path_of("%s/checkpoints", config->run.dir);
    int  count = folders_list(checkpoints.text, NULL);
    if (count < 0) return; /* a folder that cannot be read is reported when it is read again */
    if (config->run.resume == RESUME_NEVER) refuse_used_folder(config->run.dir, count);
    if (config->run.resume == RESUME_MUST && count == 0 && config->checkpoint.memory_every == 0)
        refuse_no_checkpoint(checkpoints.text);
}

/* Rank 0. Renames metrics.jsonl if the run folder has no checkpoints, although the metrics show that some were saved.
 * The new name is metrics.jsonl.passed-over (or -2 and so on), and a warning names it. So a run that starts from step 0
 * replaces no lines. */
static void keep_lost_metrics(const char *run_dir) {
    static const char SAVE[] = "{\"kind\":\"event\",\"event\":\"save\",\"step\":";
    Path    metrics = path_of("%s/metrics.jsonl", run_dir);
    FILE   *lines = io_open_stream(metrics.text, IO_READ);
    char   *line = NULL;
    size_t  room = 0;
    int64_t saved = -1;
    while (lines && getline(&line, &room, lines) > 0)
        if (strncmp(line, SAVE, strlen(SAVE)) == 0) saved = strtoll(line + strlen(SAVE), NULL, 10);
    free(line);
    if (lines) fclose(lines);
    if (saved < 0) return;
    Path kept;
    int  error = folder_set_aside(run_dir, "metrics.jsonl", &kept);
    if (error) fail(EXIT_IO, "%s: cannot be renamed to %s: %s", metrics.text, kept.text, io_error_text(error));
    warn("%s says that step %" PRId64 " was saved, and %s/checkpoints holds no checkpoint: the run begins anew, and "
         "the lines so far are kept in %s. To go on from that step instead, stop this run and put the folders back",
         metrics.text, saved, run_dir, kept.text);
}

/* --- may it continue ---------------------------------------------------------------------------------------------- */

static int may_change_data(const Config *config) {
    for (int i = 0; i < config->run.allow_change.count; i++)
        if (strcmp(config->run.allow_change.item[i], "data.train") == 0 ||
            strcmp(config->run.allow_change.item[i], "data") == 0)
            return 1;
    return 0;
}

/* Prints the argument that lets a resume change these keys besides those that the config allows. It is
 * run.allow_change=KEY, or a list in quotes. */
static void print_allow(FILE *out, const Config *config, const cJSON *changed) {
    cJSON *keys = cJSON_Duplicate(changed, 1);
    for (int i = config->run.allow_change.count; i-- > 0;)
        cJSON_InsertItemInArray(keys, 0, cJSON_CreateString(config->run.allow_change.item[i]));
    char *list = cJSON_PrintUnformatted(keys);
    if (cJSON_GetArraySize(keys) == 1) fprintf(out, "run.allow_change=%s", keys->child->valuestring);
    else                               fprintf(out, "'run.allow_change=%s'", list);
    free(list);
    cJSON_Delete(keys);
}

/* Returns 1 if the models of two configs have weights and optimizer states with the same names and shapes. */
static int has_same_tensors(const Config *a, const Config *b) {
    Layout now = model_layout(a->model.shape, (LayoutPlace){.ranks = 1, .tensor_ranks = 1});
    Layout then = model_layout(b->model.shape, (LayoutPlace){.ranks = 1, .tensor_ranks = 1});
    int    same = now.params == then.params && config_optimizer(a) == config_optimizer(b);
    for (int i = 0; same && i < now.params; i++)
        same = strcmp(now.param[i].name, then.param[i].name) == 0 && now.param[i].dim[0] == then.param[i].dim[0] &&
               now.param[i].dim[1] == then.param[i].dim[1];
    layout_destroy(&now), layout_destroy(&then);
    return same;
}

/* Compares the training shards with those in the manifest: name without folder, size, token count, and the hash of the
 * first and last tokens, which manifests of older versions lack. Prints `before` and the first difference to out, and
 * returns 1. Returns 0 if all are the same. */
static int compare_data(const Dataset *now, const Manifest *m, const char *before, FILE *out) {
    int shards = m->data_files < now->shards ? m->data_files : now->shards;
    for (int i = 0; i < shards; i++) {
        const Shard        *s = &now->shard[i];
        const ManifestData *d = &m->data[i];
        int same_sizes = json_reads_as(d->name, shard_name(s)) && s->file_bytes == d->bytes &&
                         s->header.tokens == d->tokens;
        if (same_sizes && (!d->ends || d->ends == s->ends)) continue;
        if (same_sizes)
            fprintf(out, "%sdata.train: shard %d, %s, holds other tokens than in the checkpoint", before, i,
                    shard_name(s));
        else
            fprintf(out,
                    "%sdata.train: shard %d is %s (%" PRIu64 " bytes, %" PRId64
                    " tokens), in the checkpoint %s (%" PRIu64 " bytes, %" PRId64 " tokens)",
                    before, i, shard_name(s), s->file_bytes, s->header.tokens, d->name, d->bytes, d->tokens);
        return 1;
    }
    if (m->data_files != now->shards)
        fprintf(out, "%sdata.train: %d shards, in the checkpoint %d", before, now->shards, m->data_files);
    return m->data_files != now->shards;
}

/* Warns of changed options that a resume allows although they change the learning rate or the validation loss. step:
 * completed steps. */
static void warn_of_changes(const Config *now, const Config *then, int64_t step) {
    double before = schedule_lr(then, step), lr = schedule_lr(now, step);
    if (now->run.steps != then->run.steps && lr != before)
        warn("run.steps is %" PRId64 ", in the checkpoint %" PRId64 ": the learning rate of step %" PRId64 " is %.3e, "
             "and with the old run.steps it would be %.3e; to end a run early without this change, set run.stop_step "
             "instead of run.steps",
             now->run.steps, then->run.steps, step + 1, lr, before);
    if (now->eval.tokens != then->eval.tokens)
        warn("eval.tokens is %" PRId64 ", in the checkpoint %" PRId64 ": from step %" PRId64 " on evaluations use "
             "other tokens, so their losses cannot be compared with those of earlier steps",
             now->eval.tokens, then->eval.tokens, step);
}

void checkpoint_refuse_settings(const Config *config, const Dataset *train, const char *folder, const Manifest *m) {
    char  *text = NULL;
    size_t bytes = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    cJSON *changed = cJSON_CreateArray();
    Config then;
    char  *fault = config_from_json(m->config, &then); /* if the config is of another version of the program, `fault`
                                                        * says so */
    char  *settings = config_compare(config, m->config, changed);
    int    keys = cJSON_GetArraySize(changed);
    int    is_blend = keys && strcmp(cJSON_GetArrayItem(changed, keys - 1)->valuestring, "data.train") == 0;
    fprintf(out, "%s", settings ? settings : "");
    int other_data = !may_change_data(config) && compare_data(train, m, settings ? "; " : "", out);
    int may_go_on = !fault && has_same_tensors(config, &then);
    fprintf(out, ". Set back what changed, %stake another run.dir", may_go_on ? "" : "or ");
    if (other_data && !is_blend) cJSON_AddItemToArray(changed, cJSON_CreateString("data.train"));
    if (may_go_on) {
        fprintf(out, ", or go on with the new values: ");
        print_allow(out, config, changed);
    }
    fclose(out);
    if (settings || other_data) fail(EXIT_CONFIG, "%s: %s", folder, text);
    free(text);
    cJSON_Delete(changed);
    if (!fault) {
        warn_of_changes(config, &then, m->step);
        config_free(&then);
    }
    free(fault);
}

/* Ends the job with exit 65 if t, the tokenizer of the data (NULL if not known), differs from the tokenizer of the
 * checkpoint. Allows it if run.allow_change names data.train. */
static void refuse_other_tokenizer(const Config *config, const Tokenizer *t, const char *folder) {
    if (!t || may_change_data(config)) return;
    char  *cure = NULL;
    size_t bytes = 0;
    FILE  *out = memory_file_open(&cure, &bytes);
    cJSON *changed = cJSON_CreateStringArray((const char *const[]){"data.train"}, 1);
    fprintf(out, "give the data of the run, use another run.dir, or go on with these data: ");
    print_allow(out, config, changed);
    fclose(out);
    Path theirs = path_of("%s/tokenizer.json", folder);
    tokenizer_refuse_other(t, "the tokenizer of the data", theirs.text, "the checkpoint", cure);
    cJSON_Delete(changed);
    free(cure);
}

/* --- whose checkpoints are these ---------------------------------------------------------------------------------- */

/* Decides to which run checkpoints belong. A run folder that was copied and is continued becomes a new run.
 *
 * state.json names the folder that wrote it, as an absolute path. A checkpoint was copied if that folder still exists,
 * is another one than this, and holds a checkpoint of the same run. The copy then gets a new run_id and names its
 * parent. If that folder is gone, the run was moved and stays the same. A folder that is seen under two paths is one
 * folder. A copy whose original is gone or not visible, such as on another machine, counts as moved.
 *
 * Returns 1 if the folder `from`, which state.json names, is another folder than run_dir and holds the run `run_id`.
 * Returns 0 if `from` is NULL or "". */
static int is_copy(const char *run_dir, const char *from, const char *run_id) {
    struct stat here, there;
    if (!from || !from[0] || stat(run_dir, &here) != 0 || stat(from, &there) != 0) return 0;
    if (here.st_dev == there.st_dev && here.st_ino == there.st_ino) return 0;
    StepFolder *list = NULL;
    Path        checkpoints = path_of("%s/checkpoints", from);
    int         count = folders_list(checkpoints.text, &list), found = 0;
    for (int i = 0; i < count && !found; i++) {
        Manifest m;
        char     fault[MANIFEST_FAULT_BYTES];
        Path     folder = path_of("%s/%s", checkpoints.text, list[i].name);
        if (folder_manifest(folder.text, &m, fault) != MANIFEST_GOOD) continue;
        found = strcmp(m.run_id, run_id) == 0;
        manifest_free(&m);
    }
    free(list);
    return found;
}

uint64_t checkpoint_random(Comm *c) {
    uint64_t number = 0;
    if (comm_rank(c) == 0 && getrandom(&number, sizeof number, 0) != sizeof number)
        fail(EXIT_IO, "cannot make the random id of a run: the system call getrandom() gives no random bytes; the "
             "container or seccomp profile must allow it");
    comm_broadcast(c, &number, sizeof number, 0);
    return number;
}

static void make_run_id(CheckpointState *state) {
    char *run_id = state->train_state->run_id;
    snprintf(run_id, sizeof state->train_state->run_id, "%016" PRIx64, checkpoint_random(state->comm));
}

/* --- which checkpoint --------------------------------------------------------------------------------------------- */

/* Collective. Finds the newest checkpoint of list [count] (rank 0) that verifies. Returns 1 with *at and *m, or 0 if
 * there is none. Warns of newer ones that do not verify, and writes the first fault to fault [MANIFEST_FAULT_BYTES]. */
static int find_good(Comm *c, const char *checkpoints, const StepFolder *list, int64_t count, StepFolder *at,
                     Manifest *m, char *fault) {
    char    why[MANIFEST_FAULT_BYTES];
    int64_t warned = 0;
    int     found = 0;
    fault[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (comm_rank(c) == 0) *at = list[i];
        comm_broadcast(c, at, sizeof *at, 0);
        Path           folder = path_of("%s/%s", checkpoints, at->name);
        ManifestStatus status = folder_verify(c, folder.text, at->step, NULL, m, why);
        found = status == MANIFEST_GOOD;
        if (found) break;
        /* a folder that a newer version of the program wrote stays unchanged, and the job ends */
        if (status == MANIFEST_FOREIGN) fail(EXIT_DATA, "%s: %s", folder.text, why);
        if (status == MANIFEST_UNKNOWN) folder_fail_unknown(folder.text, why);
        folder_warn(&warned, "%s is passed over: %s; a later save renames it to %s.passed-over, and nothing removes it "
                    "but you", folder.text, why, at->name);
        if (!fault[0]) manifest_fault(fault, "%s: %.900s", at->name, why);
    }
    folder_warn_rest(warned, "are passed over");
    return found;
}

/* Ends the program if checkpoints exist but none verifies, because the run would begin again at step 0. */
static void refuse_broken(const char *checkpoints, int64_t count, const char *fault) {
    if (count > 0)
        fail(EXIT_DATA,
             "no checkpoint in %s is complete and undamaged (of %" PRId64 "; %s): restore one from a copy, or begin a "
             "new run with another run.dir",
             checkpoints, count, fault);
}

/* Collective. Lists the step folders below `checkpoints`. Returns their number. Rank 0 gets the list. */
static int64_t list_folders(const CheckpointState *state, const char *checkpoints, StepFolder **list) {
    int64_t count = comm_rank(state->comm) == 0 ? folders_list(checkpoints, list) : 0;
    if (count < 0) fail(EXIT_IO, "cannot read the folder %s: %s", checkpoints, strerror((int)-count));
    comm_broadcast(state->comm, &count, sizeof count, 0);
    return count;
}

/* Collective. Finds the checkpoint to resume from. Returns 1 with *at and *m, or 0 for a new run. Ends the job if
 * run.resume or the checkpoints forbid that. */
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

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Returns tensor i of a weights file that this program wrote. Exit 65 unless it has this name, is fp32, and is at the
 * offset that the layout gives. */
static const SafeTensor *own_tensor(const WeightsFile *w, int i, const char *name, int dims, const int64_t *dim,
                                    uint64_t begin) {
    const SafeTensor *t = i < w->header.tensors ? &w->header.tensor[i] : NULL;
    int same = t && strcmp(t->name, name) == 0 && t->type == SAFE_F32 && t->dims == dims && t->begin == begin;
    for (int d = 0; same && d < dims; d++) same = t->dim[d] == (uint64_t)dim[d];
    if (!same)
        fail(EXIT_DATA,
             "%s: tensor %s is not where this model has it: the file is damaged, or another version of the program "
             "wrote it; use another checkpoint",
             w->path, name);
    return t;
}

/* Reads the elements of a tensor that this rank holds, and stores them in the optimizer. which: 0 for the masters (fp32
 * weights), or 1 + k for optimizer state k. base: tensor of the file with the first element of the model; the others
 * follow it. block: buffer of two blocks of WEIGHTS_BLOCK elements. */
static void read_spans(const CheckpointState *state, const WeightsFile *w, const SafeTensor *base, int which,
                       float *block) {
    const Optimizer *o = state->optimizer;
    for (int i = 0; i < o->shards->spans; i++) {
        Span span = o->shards->span[i];
        for (int64_t at = 0, n; at < span.elems; at += n) {
            watchdog_tick(state->watchdog, "reading a checkpoint");
            if (comm_rank(state->comm) == 0) say_part("loading the checkpoint", 0, 0);
            n = weights_read_span(w, base, 0, checkpoint_layout(state), &span, at, block);
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
        own_tensor(&model, i, p->name, p->dims, p->dim, 4 * (uint64_t)p->offset);
    }
    /* the tensors follow each other without gaps, so they are read as one */
    read_spans(state, &model, &model.header.tensor[0], 0, block);
    for (int k = 0; k < state->optimizer->kind->states; k++)
        read_spans(state, &states,
                   own_tensor(&states, k, state->optimizer->kind->state[k].name, 1, &layout->elems,
                              4 * (uint64_t)k * (uint64_t)layout->elems),
                   1 + k, block);
    free(block);
    weights_close(&model);
    weights_close(&states);
    optimizer_publish(state->optimizer, state->stream);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

/* Sets the state of the run to that of a checkpoint. A checkpoint that was saved without fp8 has no scales of fp8. A
 * run with fp8 then begins them anew, as in its first step. */
static Resumed take_over(CheckpointState *state, const StepFolder *at, const Manifest *m) {
    Resumed     resumed = {.step = m->step, .ranks = m->ranks};
    TrainState *t = state->train_state;
    Path        folder = path_of("%s/checkpoints/%s", state->config->run.dir, at->name);
    read_checkpoint(state, folder.text);
    snprintf(resumed.name, sizeof resumed.name, "%s", at->name);
    snprintf(resumed.grid, sizeof resumed.grid, "%s", m->grid);
    t->start = (Position){m->step, m->tokens, m->samples};
    t->missed = m->missed;
    t->guard = m->guard;
    if (strcmp(m->precision, state->precision) == 0)
        t->loss_scale = (LossScale){m->loss_scale, m->loss_scale_steps};
    if (t->fp8) t->fp8->steps = 0;
    if (t->fp8 && strcmp(m->precision, "fp8") == 0 && !fp8_history_from_json(t->fp8, m->fp8))
        fail(EXIT_DATA, "%s/" MANIFEST_NAME " has no valid \"fp8\" (the largest values of %lld tensors, by which fp8 "
             "scales): move the folder %s out of checkpoints/, and the run resumes from the checkpoint before it; or "
             "give precision=bf16", folder.text, (long long)t->fp8->cells, at->name);
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
    checkpoint_refuse_settings(state->config, state->train, folder.text, &m);
    refuse_other_tokenizer(state->config, state->tokenizer, folder.text);
    Resumed     resumed = take_over(state, &at, &m);
    TrainState *t = state->train_state;
    int64_t     is_copied = comm_rank(state->comm) == 0 && is_copy(state->config->run.dir, m.folder, m.run_id);
    comm_broadcast(state->comm, &is_copied, sizeof is_copied, 0);
    resumed.is_copy = (int)is_copied;
    snprintf(t->run_id, sizeof t->run_id, "%s", m.run_id);
    t->parent = m.parent;
    if (is_copied) { /* a copied folder becomes a new run, and the run of the checkpoint its parent */
        t->parent.step = m.step;
        snprintf(t->parent.run_id, sizeof t->parent.run_id, "%s", m.run_id);
        make_run_id(state);
    }
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
