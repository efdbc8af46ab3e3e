/* metrics.c - see metrics.h. A line is one write, so that `tail -f` shows whole lines. A checkpoint syncs the file. */
#include "run/log/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "data/tokens_json.h"
#include "run/log/picture.h"
#include "run/log/metrics_line.h"
#include "run/log/tensorboard.h"

enum { LINE_BYTES = METRICS_LINE_BYTES };

struct Metrics {
    char     path[4096], picture[4096], title[256];
    MetricsAbout about;
    int      fd;
    int64_t  step;         /* completed steps that the file covers */
    int64_t  last_train, last_eval, last_task; /* steps of the last lines that stay; 0, -1 and -1: none */
    int64_t  last_outer;   /* step of the last round that stays; 0: none */
    int64_t  trains, strangers;     /* lines of steps that stay; foreign lines between them */
    int64_t  cut_strangers;         /* whole foreign lines that are cut */
    double   hours;        /* "hours" of the last line that stays; NaN: missing */
    double   began_ms;     /* when this process opened the file, on clock_ms() */
    uint64_t bytes;        /* bytes of whole lines in the file           */
    char    *waiting;      /* owned: lines that are not in the file yet  */
    size_t   waiting_bytes, waiting_room;
    int      error;        /* -errno of the last failed write; 0: none waits */
    int      warned;       /* a picture could not be written             */
    CurvePoint *eval;      /* owned [evals]: all evaluations in the file */
    int64_t  evals;
    Curve    curve;
    TensorBoard *board;    /* owned; NULL: none */
};

/* Returns the wall clock in seconds since 1970, to the millisecond. It does not show the order of lines. */
static double wall_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-3 * (double)(now.tv_nsec / 1000000);
}

static void check_io(const Metrics *m, int status, const char *what) {
    if (status < 0) fail(EXIT_IO, "cannot %s %s: %s", what, m->path, io_error_text(status));
}

static void keep_step(Metrics *m, const MetricsLine *l) {
    m->last_train = l->step, m->trains++, m->hours = l->hours;
    curve_train(&m->curve, (CurveStep){l->step, l->tokens, l->loss, l->lr, l->grad_norm});
}

/* Records a round. On a server rounds are points of the curve. On an island they add nothing to its steps. */
static void keep_round(Metrics *m, int64_t step, int64_t tokens, double loss) {
    m->last_outer = step;
    if (step > m->last_train && step > m->curve.last_step) curve_train(&m->curve, (CurveStep){step, tokens, loss, NAN, NAN});
}

static void keep_eval(Metrics *m, int64_t step, double loss) {
    if ((m->evals & (m->evals - 1)) == 0) { /* a power of two: the list is full */
        m->eval = xrealloc(m->eval, sizeof *m->eval * (size_t)(m->evals ? 2 * m->evals : 1), "the evaluations of metrics.jsonl");
    }
    m->eval[m->evals++] = (CurvePoint){step, loss};
    curve_eval(&m->curve, step, loss);
}

static void keep_mark(Metrics *m, int64_t step, const char *event) {
    static const char *const EVENTS[] =
        {[CURVE_RESUMED] = "resume", [CURVE_SKIPPED] = "skip", [CURVE_ROLLED_BACK] = "rollback"};
    for (int kind = 0; kind < CURVE_MARK_KINDS; kind++)
        if (strcmp(event, EVENTS[kind]) == 0) curve_mark(&m->curve, step, (CurveMarkKind)kind);
}

void metrics_evals(const Metrics *m, double *last, double *best) {
    *last = m->evals ? m->eval[m->evals - 1].loss : NAN;
    *best = NAN;
    for (int64_t i = 0; i < m->evals; i++) *best = fmin(*best, m->eval[i].loss); /* fmin ignores NaN */
}

/* Reads the lines that stay, and returns their bytes. The first line after `step` or out of order ends them. Foreign
 * bytes stay if one of our lines follows; at the end they count as torn. They may be long, because a power loss can
 * leave gigabytes of NULs, and are read in chunks. */
static uint64_t read_history(Metrics *m, int64_t step) {
    FILE *f = io_open_stream(m->path, IO_READ);
    m->last_train = m->last_outer = m->trains = m->strangers = 0, m->last_eval = m->last_task = -1;
    if (!f) {
        if (errno != ENOENT) check_io(m, -errno, "read");
        return 0;
    }
    uint64_t   kept = 0, at = 0;
    char       line[LINE_BYTES];
    int        is_start = 1, is_past = 0;
    int64_t    strangers = 0;
    MetricsLine l;
    while (fgets(line, sizeof line, f)) {
        size_t bytes = (size_t)((uint64_t)ftello(f) - at); /* the line may contain NULs */
        int    is_end = line[bytes - 1] == '\n', is_ours = is_start && metrics_line_parse(line, bytes, &l) != LINE_OTHER;
        is_start = is_end, at += bytes;
        if (!is_ours) strangers += is_end && line[0];
        if (!is_ours) continue;
        is_past |= l.step > step || (l.kind == LINE_TRAIN && l.step <= m->last_train);
        if (is_past) continue;
        if (l.kind == LINE_TRAIN) keep_step(m, &l);
        if (l.kind == LINE_OUTER) keep_round(m, l.step, l.tokens, l.loss);
        if (l.kind == LINE_EVENT) keep_mark(m, l.step, l.event);
        if (l.kind == LINE_EVENT && strcmp(l.event, "join") == 0) m->trains = l.step; /* skips steps of other islands */
        if (l.kind == LINE_TASK) m->last_task = l.step;
        if (l.kind == LINE_EVAL) m->last_eval = l.step, keep_eval(m, l.step, l.loss);
        kept = at, m->strangers = strangers;
    }
    fclose(f);
    m->cut_strangers = strangers - m->strangers;
    return kept;
}

int metrics_lack_eval(const char *dir, int64_t step, LineKind kind) {
    if (step == 0) return 1; /* the file will be emptied */
    Metrics m = {0};
    snprintf(m.path, sizeof m.path, "%s/metrics.jsonl", dir);
    read_history(&m, step);
    free(m.eval);
    int64_t last = kind == LINE_TASK ? m.last_task : m.last_eval;
    return m.last_train == step && last >= 0 && last < step;
}

/* Copies the file to a free name before foreign lines are cut from it. */
static void keep_beside(const Metrics *m) {
    char  found[sizeof m->path + 32], *text = NULL;
    snprintf(found, sizeof found, "%s.found", m->path);
    for (int i = 2; io_file_bytes(found) >= 0 && i < 1000; i++) snprintf(found, sizeof found, "%s.found-%d", m->path, i);
    int64_t bytes = io_read_file(m->path, SIZE_MAX / 2, &text);
    check_io(m, bytes < 0 ? (int)bytes : io_replace_file(found, text, (size_t)bytes), "copy");
    free(text);
    warn("%s has lines of another program, which are now cut: %s is a copy of the whole file", m->path, found);
}

Metrics *metrics_open(const char *dir, int64_t step, MetricsAbout about) {
    Metrics *m = xcalloc(1, sizeof *m, "the metrics of a run");
    snprintf(m->path, sizeof m->path, "%s/metrics.jsonl", dir);
    snprintf(m->picture, sizeof m->picture, "%s/loss.svg", dir);
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && dir[start - 1] != '/') start--;
    snprintf(m->title, sizeof m->title, "%.*s", (int)(end - start), dir + start);

    m->step = step, m->about = about;
    uint64_t kept = read_history(m, step > 0 ? step : -1); /* at step 0 no line stays */
    if (m->cut_strangers > 0) keep_beside(m);
    if (m->strangers)
        warn("%s: %lld lines among the run's are not the program's; they stay as they are", m->path,
             (long long)m->strangers);
    if (m->trains < step && m->last_outer == 0) /* the steps of an island begin where it joined */
        warn("%s has lines of %lld of the %lld steps so far; the others are lost", m->path, (long long)m->trains,
             (long long)step);
    m->fd = io_open(m->path, IO_APPEND);
    check_io(m, m->fd, "open");
    check_io(m, io_truncate(m->fd, kept), "cut");
    m->bytes = kept;
    m->began_ms = clock_ms();
    if (about.tensorboard) m->board = tensorboard_open(dir, step, wall_time());
    if (!isfinite(m->hours)) m->hours = 0;
    return m;
}

/* Appends ,"key":value to line; a value that is not finite becomes null. */
static void put_number(char *line, size_t capacity, const char *key, double value) {
    size_t at = strlen(line);
    if (isfinite(value)) snprintf(line + at, capacity - at, ",\"%s\":%.9g", key, value);
    else                 snprintf(line + at, capacity - at, ",\"%s\":null", key);
}

static void put_time(char *line, size_t capacity, double time) {
    size_t at = strlen(line);
    snprintf(line + at, capacity - at, ",\"time\":%.3f", time);
}

/* Writes all waiting lines, or none. The torn line of a failed write is cut off before the next try. */
static int write_waiting(Metrics *m) {
    int error = m->error ? io_truncate(m->fd, m->bytes) : 0;
    if (!error) error = io_write(m->fd, m->waiting, m->waiting_bytes);
    if (error && !m->error)
        warn("cannot write %s: %s; its lines wait in memory, and no checkpoint is saved without them", m->path,
             io_error_text(error));
    if (error) io_truncate(m->fd, m->bytes);
    m->error = error;
    if (error) return 0;
    m->bytes += m->waiting_bytes;
    m->waiting_bytes = 0;
    return 1;
}

/* Ends a line and adds it to those that wait for the next write. */
static void keep_line(Metrics *m, char *line, size_t capacity) {
    size_t at = strlen(line);
    snprintf(line + at, capacity - at, "}\n");
    if (m->waiting_bytes + at + 2 > m->waiting_room) {
        m->waiting_room = 2 * (m->waiting_bytes + capacity);
        m->waiting = xrealloc(m->waiting, m->waiting_room, "the lines of metrics.jsonl that wait for room on the disk");
    }
    memcpy(m->waiting + m->waiting_bytes, line, at + 2);
    m->waiting_bytes += at + 2;
}

static void write_line(Metrics *m, char *line, size_t capacity) {
    keep_line(m, line, capacity);
    write_waiting(m);
}

static void put_sent(char *line, size_t room, const int64_t sent[AXES]) {
    size_t used = strlen(line);
    for (int a = 0; a < AXES; a++)
        used += (size_t)snprintf(line + used, room - used, "%s\"%s\":%lld%s", a ? "," : ",\"sent\":{",
                                 mesh_axis_name((Axis)a), (long long)sent[a], a == AXES - 1 ? "}" : "");
}

static void put_bytes(char *line, size_t room, const char *key, int64_t bytes) {
    size_t used = strlen(line);
    snprintf(line + used, room - used, ",\"%s\":%lld", key, (long long)bytes);
}

static void put_sources(char *line, size_t room, const StepMetrics *s) {
    size_t used = strlen(line);
    for (int i = 0; i < s->sources; i++)
        used += (size_t)snprintf(line + used, room - used, "%s%lld%s", i ? "," : ",\"source_tokens\":[",
                                 (long long)s->source_tokens[i], i == s->sources - 1 ? "]" : "");
}

static void put_machine(char *line, size_t room, const StepMetrics *s) {
    if (s->memory_bytes > 0) put_bytes(line, room, "memory_bytes", s->memory_bytes);
    for (int kind = 0; kind < GPU_READINGS; kind++) {
        const char *key = gpu_reading_key((GpuReadingKind)kind);
        if (!(s->gpu.has >> kind & 1)) continue;
        if (kind == GPU_MEMORY) put_bytes(line, room, key, (int64_t)s->gpu.value[kind]);
        else                    put_number(line, room, key, s->gpu.value[kind]);
    }
}

void metrics_train(Metrics *m, const StepMetrics *s) {
    CHECK(s->step == m->step + 1, "metrics of step %lld after step %lld", (long long)s->step, (long long)m->step);
    char   line[LINE_BYTES];
    double time = wall_time();
    snprintf(line, sizeof line, "{\"kind\":\"train\",\"step\":%lld,\"tokens\":%lld", (long long)s->step, (long long)s->tokens);
    put_number(line, sizeof line, "loss", s->loss);
    put_number(line, sizeof line, "lr", s->lr);
    put_number(line, sizeof line, "grad_norm", s->grad_norm);
    put_number(line, sizeof line, "tokens_per_s", s->tokens_per_s);
    put_number(line, sizeof line, "mfu", s->mfu);
    put_number(line, sizeof line, "ms", s->ms);
    put_number(line, sizeof line, "comm_ms", s->comm_ms);
    put_number(line, sizeof line, "comm_exposed_ms", s->comm_exposed_ms);
    for (int a = 0; a < AXES; a++) {
        char key[24];
        snprintf(key, sizeof key, "%s_ms", a == AXIS_STAGE ? "pipeline_wait" : mesh_axis_name((Axis)a));
        if (s->timed >> a & 1) put_number(line, sizeof line, key, s->axis_ms[a]);
    }
    if (s->has_experts) {
        put_number(line, sizeof line, "busiest_expert", s->busiest);
        put_number(line, sizeof line, "expert_entropy", s->entropy);
        if (s->rounds > 1) put_number(line, sizeof line, "expert_rounds", (double)s->rounds);
    }
    if (s->has_fp8) {
        put_number(line, sizeof line, "fp8_saturated", s->fp8_saturated);
        put_number(line, sizeof line, "fp8_vanished", s->fp8_vanished);
    }
    if (s->has_sent) put_sent(line, sizeof line, s->sent);
    put_time(line, sizeof line, time);
    put_number(line, sizeof line, "hours", m->hours + (clock_ms() - m->began_ms) / 3.6e6);
    put_number(line, sizeof line, "epoch", s->epoch);
    put_sources(line, sizeof line, s);
    put_machine(line, sizeof line, s);
    write_line(m, line, sizeof line);
    m->step = s->step;
    TensorBoardScalar scalars[] = {{"train/loss", s->loss}, {"train/lr", s->lr}, {"train/grad_norm", s->grad_norm},
                                   {"train/tokens_per_s", s->tokens_per_s}, {"train/mfu", s->mfu}};
    tensorboard_add(m->board, s->step, time, scalars, 5);
    curve_train(&m->curve, (CurveStep){s->step, s->tokens, s->loss, s->lr, s->grad_norm});
}

void metrics_outer(Metrics *m, const OuterMetrics *o) {
    char   line[LINE_BYTES];
    double time = wall_time();
    snprintf(line, sizeof line, "{\"kind\":\"outer\",\"round\":%lld,\"step\":%lld,\"islands\":%d,\"staleness\":%lld", (long long)o->round,
             (long long)o->step, o->islands, (long long)o->staleness);
    if (o->fragments) snprintf(line + strlen(line), sizeof line - strlen(line), ",\"fragments\":%d", o->fragments);
    if (o->received) {
        put_number(line, sizeof line, "waited_ms", o->waited_ms);
        snprintf(line + strlen(line), sizeof line - strlen(line), ",\"sent_bytes\":%lld,\"received_bytes\":%lld",
                 (long long)o->sent, (long long)o->received);
    }
    put_number(line, sizeof line, "norm", o->norm);
    put_number(line, sizeof line, "ms", o->ms);
    put_number(line, sizeof line, "tokens_per_s", o->tokens_per_s);
    snprintf(line + strlen(line), sizeof line - strlen(line), ",\"tokens\":%lld", (long long)o->tokens);
    put_number(line, sizeof line, "loss", o->loss);
    put_time(line, sizeof line, time);
    put_number(line, sizeof line, "hours", m->hours + (clock_ms() - m->began_ms) / 3.6e6);
    write_line(m, line, sizeof line);
    tensorboard_add(m->board, o->step, time, (TensorBoardScalar[]){{"outer/loss", o->loss}, {"outer/norm", o->norm}}, 2);
    keep_round(m, o->step, o->tokens, o->loss);
}

void metrics_eval(Metrics *m, int64_t step, double loss) {
    char   line[256];
    double bpb = bits_per_byte(loss, m->about.bytes_per_token), time = wall_time();
    snprintf(line, sizeof line, "{\"kind\":\"eval\",\"step\":%lld", (long long)step);
    put_number(line, sizeof line, "loss", loss);
    if (isfinite(m->about.bytes_per_token)) put_number(line, sizeof line, "bpb", bpb);
    put_time(line, sizeof line, time);
    write_line(m, line, sizeof line);
    tensorboard_add(m->board, step, time, (TensorBoardScalar[]){{"val/loss", loss}, {"val/bpb", bpb}}, 2);
    keep_eval(m, step, loss);
}

double metrics_eval_loss(const Metrics *m, int64_t step) {
    for (int64_t i = m->evals - 1; i >= 0; i--)
        if (m->eval[i].step == step) return m->eval[i].loss;
    return NAN;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

/* Writes an event. fields: further members of its line, such as ,"ms":12. */
static void write_event(Metrics *m, const char *event, int64_t step, const char *fields) {
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "{\"kind\":\"event\",\"event\":\"%s\",\"step\":%lld", event, (long long)step);
    put_time(line, sizeof line, wall_time());
    strcat(line, fields);
    write_line(m, line, sizeof line);
    keep_mark(m, step, event);
}

void metrics_resumed(Metrics *m, int64_t step, int ranks) {
    char fields[48];
    snprintf(fields, sizeof fields, ",\"ranks\":%d", ranks);
    write_event(m, "resume", step, fields);
}

void metrics_saved(Metrics *m, int64_t step, double ms) {
    char fields[48] = "";
    put_number(fields, sizeof fields, "ms", ms);
    write_event(m, "save", step, fields);
}

void metrics_copied(Metrics *m, int64_t step, double ms, double wait_ms) {
    char fields[96] = "";
    put_number(fields, sizeof fields, "ms", ms);
    put_number(fields, sizeof fields, "wait_ms", wait_ms);
    write_event(m, "memory", step, fields);
}

void metrics_skipped(Metrics *m, int64_t step, const char *why) {
    char fields[LINE_BYTES - 200] = ",\"why\":"; /* the other fields of the line need less than 200 */
    if (json_quote(fields + 7, sizeof fields - 7, why) >= sizeof fields - 7) fields[0] = 0;
    write_event(m, "skip", step, fields);
}

/* Drops the waiting lines, because their steps are later than any checkpoint. */
void metrics_rolled_back(Metrics *m, int64_t to, int64_t from) {
    double hours = m->hours; /* the discarded steps count as trained time, too */
    char   fields[48];
    memset(&m->curve, 0, sizeof m->curve);
    m->evals = 0;
    m->waiting_bytes = 0;
    m->step = to;
    m->bytes = read_history(m, to);
    m->hours = hours;
    check_io(m, io_truncate(m->fd, m->bytes), "cut");
    snprintf(fields, sizeof fields, ",\"from\":%lld", (long long)from);
    write_event(m, "rollback", to, fields);
    tensorboard_forget(m->board, to, wall_time());
}

void metrics_joined(Metrics *m, int64_t to, int64_t from) {
    char fields[48];
    snprintf(fields, sizeof fields, ",\"from\":%lld", (long long)from);
    write_event(m, "join", to, fields);
    m->step = to;
}

void metrics_tasks(Metrics *m, int64_t step, const TaskScores *scores, int tasks) {
    for (int i = 0; i < tasks; i++) {
        const TaskScores *t = &scores[i];
        char              line[LINE_BYTES], name[256], acc[300], other[300];
        json_quote_short(name, sizeof name, t->name);
        snprintf(line, sizeof line, "{\"kind\":\"task\",\"step\":%lld,\"task\":%s,\"n\":%lld", (long long)step, name,
                 (long long)t->questions);
        put_number(line, sizeof line, "acc", t->acc);
        put_number(line, sizeof line, "stderr", t->acc_stderr);
        if (t->kind == TASK_CONTINUATION) put_number(line, sizeof line, "perplexity", t->perplexity);
        else put_number(line, sizeof line, "acc_norm", t->acc_norm);
        if (t->kind != TASK_CONTINUATION) put_number(line, sizeof line, "acc_norm_stderr", t->acc_norm_stderr);
        if (isfinite(t->centered)) put_number(line, sizeof line, "centered", t->centered);
        keep_line(m, line, sizeof line);
        int is_open = t->kind == TASK_CONTINUATION;
        int shown = (int)strlen(name) - 2; /* without quotes; valid UTF-8, as TensorBoard requires */
        snprintf(acc, sizeof acc, "task/%.*s/acc", shown, name + 1);
        snprintf(other, sizeof other, "task/%.*s/%s", shown, name + 1, is_open ? "perplexity" : "acc_norm");
        tensorboard_add(m->board, step, wall_time(),
                        (TensorBoardScalar[]){{acc, t->acc}, {other, is_open ? t->perplexity : t->acc_norm}}, 2);
    }
    write_waiting(m);
}

static int failed(const Metrics *m, int error, const char *what, char *fault) {
    if (error) snprintf(fault, METRICS_FAULT_BYTES, "cannot %s %.900s: %s", what, m->path, io_error_text(error));
    return !error;
}

/* Restores a file that a user has removed, alone or with its folder, during the run. The open descriptor still has its
 * lines. They are written again under the name, and the run continues there. */
static void restore_removed(Metrics *m) {
    char own[64], dir[sizeof m->path], *text = NULL;
    if (io_file_bytes(m->path) != -ENOENT) return;
    snprintf(own, sizeof own, "/proc/self/fd/%d", m->fd);
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(m->path, '/') - m->path), m->path);
    int64_t bytes = io_read_file(own, SIZE_MAX / 2, &text);
    int     fd = bytes < 0 ? (int)bytes : io_mkdirs(dir);
    if (fd >= 0) fd = io_replace_file(m->path, text, (size_t)bytes);
    if (fd >= 0) fd = io_open(m->path, IO_APPEND);
    free(text);
    if (fd >= 0 && dup2(fd, m->fd) < 0) fd = -errno; /* a save syncs this descriptor */
    else if (fd >= 0) io_close(fd);
    if (fd < 0 && !m->error) warn("%s was removed while the run works, and cannot be written again: %s", m->path, strerror(-fd));
    else if (fd >= 0) warn("%s was removed while the run works: all of its lines are written again", m->path);
}

int metrics_catch_up(Metrics *m, char *fault) {
    restore_removed(m);
    return m->waiting_bytes == 0 || write_waiting(m) || failed(m, m->error, "write", fault);
}
const char *metrics_path(const Metrics *m) { return m->path; }
int         metrics_fd(const Metrics *m) { return m->fd; }

/* Draws the picture. If it cannot be written, the run continues after one warning. */
void metrics_draw(Metrics *m) {
    size_t bytes;
    char  *svg = curve_svg(&m->curve, (CurveTitle){m->title, m->about.commit, m->about.parameters}, &bytes);
    int    status = svg ? io_replace_file(m->picture, svg, bytes) : -ENOMEM;
    free(svg);
    if (status < 0 && !m->warned) warn("cannot write %s: %s", m->picture, io_error_text(status));
    if (status < 0) m->warned = 1;
}

void metrics_close(Metrics *m) {
    if (!m) return;
    restore_removed(m);
    if (m->waiting_bytes > 0 && !write_waiting(m)) check_io(m, m->error, "write");
    tensorboard_close(m->board);
    check_io(m, io_close(m->fd), "close");
    free(m->waiting);
    free(m->eval);
    free(m);
}
