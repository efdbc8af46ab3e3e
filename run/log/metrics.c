/* metrics.c - writes metrics.jsonl and loss.svg: see metrics.h. A line is one write, so that `tail -f` shows whole
 * lines. A checkpoint syncs the file. */
#include "run/log/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/thread.h"
#include "data/tokens_json.h"
#include "run/log/picture.h"

struct Metrics {
    char     path[4096], picture[4096], title[256];
    MetricsAbout about;
    int      fd;
    int64_t  step;         /* completed steps that the file covers */
    /* steps of the last train, eval and task lines that a resume keeps; 0, -1 and -1: no such line */
    int64_t  last_train, last_eval, last_task;
    int64_t  last_outer;   /* step of the last kept line of a round (outer.server); 0: none */
    /* number of train lines that a resume keeps, and of lines of other programs between them */
    int64_t  trains, strangers;
    int64_t  cut_strangers;         /* whole lines of other programs that are cut off */
    double   hours;        /* "hours" (time trained) of the last train line that a resume keeps; NaN: missing */
    double   began_ms;     /* time on clock_ms() at which this process opened the file */
    uint64_t bytes;        /* bytes of whole lines in the file           */
    char    *waiting;      /* owned: lines that are not in the file yet  */
    size_t   waiting_bytes, waiting_capacity;
    int      error;        /* -errno of the last failed write; 0: no line waits */
    int      warned;       /* 1 after the warning that loss.svg could not be written */
    CurvePoint *eval;      /* owned [evals]: all evaluations in the file */
    int64_t  evals;
    Curve    curve;
    TensorBoard *board;    /* owned: the file for TensorBoard; NULL if none is written */
};

/* Returns the wall clock in seconds since 1970, to the millisecond. It may jump, so it does not show the order of
 * lines. */
static double wall_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-3 * (double)(now.tv_nsec / 1000000);
}

static void check_io(const Metrics *m, int status, const char *what) {
    if (status < 0) fail(EXIT_IO, "cannot %s %s: %s", what, m->path, io_error_text(status));
}

/* Records a round of jobs that train together (outer.server). In the log of the server each round is a point of the
 * curve. In the log of a job the train lines already have the steps, so the round adds no point. */
static void keep_round(Metrics *m, int64_t step, int64_t tokens, double loss) {
    m->last_outer = step;
    if (step > m->last_train && step > m->curve.last_step)
        curve_train(&m->curve, (CurveStep){step, tokens, loss, NAN, NAN});
}

static void keep_eval(Metrics *m, int64_t step, double loss) {
    m->eval = xgrow(m->eval, m->evals, sizeof *m->eval, "the evaluations of metrics.jsonl");
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
    for (int64_t i = 0; i < m->evals; i++) *best = fmin(*best, m->eval[i].loss); /* fmin ignores a loss that is NaN */
}

/* Reads the lines that a resume after `step` keeps, and returns their bytes. These lines end before the first line that
 * is later than `step` or out of order. Lines of other programs stay if one of our lines follows; at the end of the
 * file they count as torn. */
static uint64_t read_history(Metrics *m, int64_t step) {
    FILE *f = io_open_stream(m->path, IO_READ);
    m->last_train = m->last_outer = m->trains = m->strangers = 0, m->last_eval = m->last_task = -1;
    if (!f) {
        if (errno != ENOENT) check_io(m, -errno, "read");
        return 0;
    }
    uint64_t    kept = 0;
    int         is_past = 0;
    int64_t     strangers = 0;
    MetricsLine l;
    while (metrics_line_after(f, &l, &strangers) != LINE_OTHER) {
        is_past |= l.step > step || (l.kind == LINE_TRAIN && l.step <= m->last_train);
        if (is_past) continue;
        if (l.kind == LINE_TRAIN) {
            m->last_train = l.step, m->trains++, m->hours = l.hours;
            curve_train(&m->curve, (CurveStep){l.step, l.tokens, l.loss, l.lr, l.grad_norm});
        }
        if (l.kind == LINE_OUTER) keep_round(m, l.step, l.tokens, l.loss);
        if (l.kind == LINE_EVENT) keep_mark(m, l.step, l.event);
        /* The log has no lines of the steps that other jobs of outer.server trained before this one joined. They do not
         * count as missing. */
        if (l.kind == LINE_EVENT && strcmp(l.event, "join") == 0) m->trains = l.step;
        if (l.kind == LINE_TASK) m->last_task = l.step;
        if (l.kind == LINE_EVAL) m->last_eval = l.step, keep_eval(m, l.step, l.loss);
        kept = (uint64_t)ftello(f), m->strangers = strangers;
    }
    fclose(f);
    m->cut_strangers = strangers - m->strangers;
    return kept;
}

int metrics_lack_eval(const char *dir, int64_t step, LineKind kind) {
    if (step == 0) return 1; /* a run from step 0 will empty the file */
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
    for (int i = 2; io_file_bytes(found) >= 0 && i < 1000; i++)
        snprintf(found, sizeof found, "%s.found-%d", m->path, i);
    int64_t bytes = io_read_file(m->path, SIZE_MAX / 2, &text);
    check_io(m, bytes < 0 ? (int)bytes : io_replace_file(found, text, (size_t)bytes), "copy");
    free(text);
    warn("%s has lines of another program, which are now cut: %s is a copy of the whole file", m->path, found);
}

Metrics *metrics_open(const char *dir, int64_t step, MetricsAbout about) {
    Metrics *m = xcalloc(1, sizeof *m, "the metrics of a run");
    snprintf(m->path, sizeof m->path, "%s/metrics.jsonl", dir);
    snprintf(m->picture, sizeof m->picture, "%s/loss.svg", dir);
    run_log_name(dir, m->title);
    m->step = step, m->about = about;
    uint64_t kept = read_history(m, step > 0 ? step : -1); /* for step 0 no line of the file stays */
    if (m->cut_strangers > 0) keep_beside(m);
    if (m->strangers)
        warn("%s: another program wrote %lld of the lines; they stay in the file as they are", m->path,
             (long long)m->strangers);
    /* not checked if the log has rounds (outer.server), because the steps of such a job begin where it joined */
    if (m->trains < step && m->last_outer == 0)
        warn("%s has lines for only %lld of the %lld steps so far; plots and tables will lack the other steps", m->path,
             (long long)m->trains, (long long)step);
    m->fd = io_open(m->path, IO_APPEND);
    check_io(m, m->fd, "open");
    check_io(m, io_truncate(m->fd, kept), "cut");
    m->bytes = kept;
    m->began_ms = clock_ms();
    if (about.tensorboard) m->board = tensorboard_open(dir, step, wall_time());
    if (!isfinite(m->hours)) m->hours = 0;
    return m;
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

enum { POINTS = 32 };

/* A line of metrics.jsonl, and those of its numbers that TensorBoard draws. */
typedef struct {
    char   text[METRICS_LINE_BYTES];
    size_t used;
    double time;           /* wall clock when the line was begun, in seconds since 1970 */
    Metric point[POINTS];  /* numbers that TensorBoard draws; names are borrowed until keep_line */
    int    points;
} Line;

static Line line_now(void) { return (Line){.time = wall_time()}; }

static void put(Line *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(Line *l, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    l->used += (size_t)vsnprintf(l->text + l->used, sizeof l->text - l->used, fmt, args);
    va_end(args);
    CHECK(l->used < sizeof l->text, "a line of more than %zu bytes", sizeof l->text);
}

static void put_count(Line *l, const char *key, int64_t value) { put(l, ",\"%s\":%lld", key, (long long)value); }

/* Appends a key with a number to a line. A value that is not finite becomes null. */
static void put_number(Line *l, const char *key, double value) {
    if (isfinite(value)) put(l, ",\"%s\":%.9g", key, value);
    else                 put(l, ",\"%s\":null", key);
}

/* Appends a number that TensorBoard also draws. The key is what follows the last slash of its tag. */
static void put_point(Line *l, const char *tag, double value) {
    CHECK(l->points < POINTS, "more than %d points in a line", POINTS);
    put_number(l, strrchr(tag, '/') + 1, value);
    l->point[l->points++] = (Metric){tag, value};
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

/* Ends the line of a step and adds it to those that wait for the next write. Adds its points to the file of
 * TensorBoard. */
static void keep_line(Metrics *m, Line *l, int64_t step) {
    put(l, "}\n");
    if (m->waiting_bytes + l->used > m->waiting_capacity) {
        m->waiting_capacity = 2 * (m->waiting_bytes + METRICS_LINE_BYTES);
        m->waiting =
            xrealloc(m->waiting, m->waiting_capacity, "the lines of metrics.jsonl that wait for room on the disk");
    }
    memcpy(m->waiting + m->waiting_bytes, l->text, l->used);
    m->waiting_bytes += l->used;
    if (l->points) tensorboard_add(m->board, step, l->time, l->point, l->points);
}

static void write_line(Metrics *m, Line *l, int64_t step) {
    keep_line(m, l, step);
    write_waiting(m);
}

/* Appends the wall clock and the time that the run has trained. */
static void put_times(const Metrics *m, Line *l) {
    put(l, ",\"time\":%.3f", l->time);
    put_number(l, "hours", m->hours + (clock_ms() - m->began_ms) / 3.6e6);
}

void metric_add(StepMetrics *s, const char *tag, double value) {
    CHECK(s->mores < METRICS_MORE, "more than %d numbers besides those of every run", METRICS_MORE);
    s->more[s->mores++] = (Metric){tag, value};
}

void metrics_train(Metrics *m, const StepMetrics *s) {
    CHECK(s->step == m->step + 1, "metrics of step %lld after step %lld", (long long)s->step, (long long)m->step);
    Line l = line_now();
    put(&l, "{\"kind\":\"train\",\"step\":%lld", (long long)s->step);
    put_count(&l, "tokens", s->tokens);
    put_point(&l, "train/loss", s->loss);
    put_point(&l, "train/lr", s->lr);
    put_point(&l, "train/grad_norm", s->grad_norm);
    put_point(&l, "train/tokens_per_s", s->tokens_per_s);
    put_point(&l, "train/mfu", s->mfu);
    put_number(&l, "ms", s->ms);
    put_number(&l, "comm_ms", s->exchange.comm_ms);
    put_number(&l, "comm_exposed_ms", s->exchange.exposed_ms);
    for (int a = 0; a < AXES; a++) {
        char key[24];
        snprintf(key, sizeof key, "%s_ms", a == AXIS_STAGE ? "pipeline_wait" : mesh_axis_name((Axis)a));
        if (s->mesh.size[a] > 1 && a != AXIS_SHARD)
            put_number(&l, key, a == AXIS_STAGE ? s->exchange.waited_ms[a] : s->exchange.ms[a]);
    }
    for (int i = 0; i < s->mores; i++) put_point(&l, s->more[i].name, s->more[i].value);
    for (int a = 0; a < AXES && s->has_sent; a++)
        put(&l, "%s\"%s\":%lld%s", a ? "," : ",\"sent\":{", mesh_axis_name((Axis)a), (long long)s->exchange.sent[a],
            a == AXES - 1 ? "}" : "");
    put_times(m, &l);
    put_number(&l, "epoch", s->epoch);
    for (int i = 0; i < s->sources; i++)
        put(&l, "%s%lld%s", i ? "," : ",\"source_tokens\":[", (long long)s->source_tokens[i],
            i == s->sources - 1 ? "]" : "");
    if (s->memory_bytes > 0) put_count(&l, "memory_bytes", s->memory_bytes);
    for (int kind = 0; kind < GPU_READINGS; kind++) {
        const char *key = gpu_reading_key((GpuReadingKind)kind);
        if (!(s->gpu.has >> kind & 1)) continue;
        if (kind == GPU_MEMORY) put_count(&l, key, (int64_t)s->gpu.value[kind]);
        else                    put_number(&l, key, s->gpu.value[kind]);
    }
    write_line(m, &l, s->step);
    m->step = s->step;
    curve_train(&m->curve, (CurveStep){s->step, s->tokens, s->loss, s->lr, s->grad_norm});
}

void metrics_outer(Metrics *m, const OuterMetrics *o) {
    Line l = line_now();
    put(&l, "{\"kind\":\"outer\",\"round\":%lld,\"step\":%lld,\"islands\":%d,\"staleness\":%lld", (long long)o->round,
        (long long)o->step, o->islands, (long long)o->staleness);
    if (o->received) {
        put_number(&l, "waited_ms", o->waited_ms);
        put_count(&l, "sent_bytes", o->sent);
        put_count(&l, "received_bytes", o->received);
    }
    put_point(&l, "outer/norm", o->norm);
    put_number(&l, "ms", o->ms);
    put_number(&l, "tokens_per_s", o->tokens_per_s);
    put_count(&l, "tokens", o->tokens);
    put_point(&l, "outer/loss", o->loss);
    put_times(m, &l);
    write_line(m, &l, o->step);
    keep_round(m, o->step, o->tokens, o->loss);
}

void metrics_eval(Metrics *m, int64_t step, double loss) {
    Line l = line_now();
    put(&l, "{\"kind\":\"eval\",\"step\":%lld", (long long)step);
    put_point(&l, "val/loss", loss);
    if (isfinite(m->about.bytes_per_token)) put_point(&l, "val/bpb", bits_per_byte(loss, m->about.bytes_per_token));
    put(&l, ",\"time\":%.3f", l.time);
    write_line(m, &l, step);
    keep_eval(m, step, loss);
}

double metrics_eval_loss(const Metrics *m, int64_t step) {
    for (int64_t i = m->evals - 1; i >= 0; i--)
        if (m->eval[i].step == step) return m->eval[i].loss;
    return NAN;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static Line event_line(const char *event, int64_t step) {
    Line l = line_now();
    put(&l, "{\"kind\":\"event\",\"event\":\"%s\",\"step\":%lld,\"time\":%.3f", event, (long long)step, l.time);
    return l;
}

static void write_event(Metrics *m, Line *l, const char *event, int64_t step) {
    write_line(m, l, step);
    keep_mark(m, step, event);
}

void metrics_event(Metrics *m, const char *event, int64_t step, const Metric *numbers, int count) {
    Line l = event_line(event, step);
    for (int i = 0; i < count; i++) put_number(&l, numbers[i].name, numbers[i].value);
    write_event(m, &l, event, step);
}

void metrics_skipped(Metrics *m, int64_t step, const char *why) {
    if (!m) return;
    char quoted[METRICS_LINE_BYTES - 207]; /* 207 bytes are enough for the rest of the line */
    Line l = event_line("skip", step);
    if (json_quote(quoted, sizeof quoted, why) < sizeof quoted) put(&l, ",\"why\":%s", quoted);
    write_event(m, &l, "skip", step);
}

/* Writes an event (rollback, join) after which the log continues at step `to` instead of `from`. */
static void move_to(Metrics *m, const char *event, int64_t to, int64_t from) {
    Line l = event_line(event, to);
    put_count(&l, "from", from);
    write_event(m, &l, event, to);
    m->step = to;
}

/* Drops the waiting lines, because their steps are later than any checkpoint. */
void metrics_rolled_back(Metrics *m, int64_t to, int64_t from) {
    double hours = m->hours; /* the discarded steps count as trained time, too */
    memset(&m->curve, 0, sizeof m->curve);
    m->evals = 0;
    m->waiting_bytes = 0;
    m->bytes = read_history(m, to);
    m->hours = hours;
    check_io(m, io_truncate(m->fd, m->bytes), "cut");
    move_to(m, "rollback", to, from);
    tensorboard_forget(m->board, to, wall_time());
}

void metrics_joined(Metrics *m, int64_t to, int64_t from) { move_to(m, "join", to, from); }

void metrics_tasks(Metrics *m, int64_t step, const TaskScores *scores, int tasks) {
    for (int i = 0; i < tasks; i++) {
        const TaskScores *t = &scores[i];
        int               is_text = t->kind == TASK_CONTINUATION;
        char              name[256], acc[300], other[300];
        Line              l = line_now();
        json_quote_short(name, sizeof name, t->name);
        /* length of the name without its quotes; the name is valid UTF-8, as TensorBoard requires */
        int shown = (int)strlen(name) - 2;
        snprintf(acc, sizeof acc, "task/%.*s/acc", shown, name + 1);
        snprintf(other, sizeof other, "task/%.*s/%s", shown, name + 1, is_text ? "perplexity" : "acc_norm");
        put(&l, "{\"kind\":\"task\",\"step\":%lld,\"task\":%s", (long long)step, name);
        put_count(&l, "n", t->questions);
        put_point(&l, acc, t->acc);
        put_number(&l, "stderr", t->acc_stderr);
        put_point(&l, other, is_text ? t->perplexity : t->acc_norm);
        if (!is_text) put_number(&l, "acc_norm_stderr", t->acc_norm_stderr);
        if (isfinite(t->centered)) put_number(&l, "centered", t->centered);
        keep_line(m, &l, step);
    }
    write_waiting(m);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

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
    /* m->fd becomes the new file, because a save syncs that descriptor */
    if (fd >= 0 && dup2(fd, m->fd) < 0) fd = -errno;
    else if (fd >= 0) io_close(fd);
    if (fd < 0 && !m->error)
        warn("%s was removed while the run works, and cannot be written again: %s", m->path, strerror(-fd));
    else if (fd >= 0) warn("%s was removed while the run works: all of its lines are written again", m->path);
}

int metrics_catch_up(Metrics *m, char *fault) {
    restore_removed(m);
    if (m->waiting_bytes == 0 || write_waiting(m)) return 1;
    snprintf(fault, METRICS_FAULT_BYTES, "cannot write %.900s: %s", m->path, io_error_text(m->error));
    return 0;
}
const char *metrics_path(const Metrics *m) { return m->path; }
int         metrics_fd(const Metrics *m) { return m->fd; }

/* Draws loss.svg. If it cannot be written, the run continues after one warning. */
void metrics_draw(Metrics *m) {
    size_t bytes;
    char  *svg = curve_svg(&m->curve, (CurveTitle){m->title, m->about.commit, m->about.parameters}, &bytes);
    int    status = io_replace_file(m->picture, svg, bytes);
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
