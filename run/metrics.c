/* metrics.c - see metrics.h. A line is one write, so that `tail -f` follows the run; a checkpoint syncs the file. */
#include "run/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"
#include "run/curve.h"

enum { LINE_BYTES = 768 /* room for the longest line there is, with its end */ };

struct Metrics {
    char     path[4096], picture[4096], title[256];
    int      fd;
    int64_t  step;         /* completed steps that the file accounts for */
    int64_t  last_train, last_eval; /* steps of the last lines that stay; 0 and -1: there are none */
    int64_t  trains, strangers;     /* lines of steps that stay, and lines between them that are not ours */
    int      has_ours;              /* a line in our format was met, even one that is cut */
    uint64_t bytes;        /* of whole lines in the file                 */
    char    *waiting;      /* owned: lines that are not in the file yet  */
    size_t   waiting_bytes, waiting_room;
    int      error;        /* why: -errno of the last try, 0: all is well */
    int      warned;       /* of a picture that could not be written     */
    double   last_loss, best_loss;  /* of the evaluations that stay; NaN: none */
    Curve    curve;
};

static void check_io(const Metrics *m, int status, const char *what) {
    if (status < 0) fail(EXIT_IO, "cannot %s %s: %s", what, m->path, strerror(-status));
}

/* One line as this file writes them: kind, step and loss (NaN for null). Returns 0 for anything else, a torn line among
 * it. */
static int parse_line(const char *line, size_t bytes, int *is_train, CurvePoint *point) {
    long long step;
    int       at = 0;
    if (bytes < 3 || line[bytes - 1] != '\n' || memchr(line, 0, bytes)) return 0;
    if (line[bytes - 2] != '}' && (line[bytes - 2] != '\r' || line[bytes - 3] != '}')) return 0; /* an editor's line ends are no reason to lose a run's */
    *is_train = sscanf(line, "{\"kind\":\"train\",\"step\":%lld,%n", &step, &at) == 1 && at > 0;
    if (!*is_train && (sscanf(line, "{\"kind\":\"eval\",\"step\":%lld,%n", &step, &at) != 1 || at == 0)) return 0;
    const char *loss = strstr(line + at - 1, ",\"loss\":");
    if (!loss) return 0;
    loss += strlen(",\"loss\":");
    char *end = NULL;
    point->step = step;
    point->loss = strncmp(loss, "null", 4) == 0 ? NAN : strtod(loss, &end);
    return end != loss;
}

static void note_eval(Metrics *m, int64_t step, double loss) {
    m->last_loss = loss;
    m->best_loss = fmin(m->best_loss, loss); /* which passes a NaN over */
    curve_eval(&m->curve, step, loss);
}

void metrics_evals(const Metrics *m, double *last, double *best) {
    *last = m->last_loss;
    *best = m->best_loss;
}

/* Reads the lines that stay; returns their bytes. The first line past `step` or out of order ends them. Foreign bytes
 * stay as they are where one of our lines follows; at the end they count as torn. They may be long (a power loss can
 * leave gigabytes of NULs) and are read in pieces. */
static uint64_t read_history(Metrics *m, int64_t step) {
    FILE *f = fopen(m->path, "r");
    m->last_train = m->trains = m->strangers = 0, m->last_eval = -1, m->has_ours = 0;
    m->last_loss = m->best_loss = NAN;
    if (!f) {
        if (errno != ENOENT) check_io(m, -errno, "read");
        return 0;
    }
    uint64_t   kept = 0, at = 0;
    char       line[LINE_BYTES];
    int        is_train, is_start = 1, strangers = 0;
    CurvePoint p;
    while (fgets(line, sizeof line, f)) {
        size_t bytes = (size_t)((uint64_t)ftello(f) - at); /* there may be NULs among them */
        int    is_end = line[bytes - 1] == '\n', is_ours = is_start && parse_line(line, bytes, &is_train, &p);
        is_start = is_end, at += bytes;
        if (!is_ours) strangers += is_end;
        if (!is_ours) continue;
        m->has_ours = 1;
        if (p.step > step || (is_train && p.step <= m->last_train)) break;
        if (is_train) m->last_train = p.step, m->trains++, curve_train(&m->curve, p.step, p.loss);
        else          m->last_eval = p.step, note_eval(m, p.step, p.loss);
        kept = at, m->strangers = strangers;
    }
    fclose(f);
    return kept;
}

int metrics_lack_eval(const char *dir, int64_t step) {
    if (step == 0) return 1; /* the file starts anew */
    Metrics m = {0};
    snprintf(m.path, sizeof m.path, "%s/metrics.jsonl", dir);
    read_history(&m, step);
    return m.last_train == step && m.last_eval >= 0 && m.last_eval < step;
}

/* A file without a line of ours may be another program's: it is kept beside. */
static void keep_beside(const Metrics *m) {
    char found[sizeof m->path + 8];
    if (io_file_bytes(m->path) <= 0) return;
    snprintf(found, sizeof found, "%s.found", m->path);
    check_io(m, io_rename(m->path, found), "move");
    warn("%s holds no line as the program writes them: it is now %s", m->path, found);
}

Metrics *metrics_open(const char *dir, int64_t step) {
    Metrics *m = calloc(1, sizeof *m);
    if (!m) fail(EXIT_MEMORY, "no memory for the metrics of %s", dir);
    snprintf(m->path, sizeof m->path, "%s/metrics.jsonl", dir);
    snprintf(m->picture, sizeof m->picture, "%s/loss.svg", dir);
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && dir[start - 1] != '/') start--;
    snprintf(m->title, sizeof m->title, "%.*s", (int)(end - start), dir + start);

    m->step = step;
    m->last_loss = m->best_loss = NAN;
    uint64_t kept = step > 0 ? read_history(m, step) : 0;
    if (step > 0 && !m->has_ours) keep_beside(m);
    if (m->strangers)
        warn("%s: %lld lines among the run's are not the program's; they stay as they are", m->path,
             (long long)m->strangers);
    if (m->trains < step)
        warn("%s has lines of %lld of the %lld steps so far; the others are lost", m->path, (long long)m->trains,
             (long long)step);
    m->fd = io_open(m->path, IO_APPEND);
    check_io(m, m->fd, "open");
    check_io(m, io_truncate(m->fd, kept), "cut");
    m->bytes = kept;
    return m;
}

/* Lines that wait are later than any checkpoint. */
void metrics_rewind(Metrics *m, int64_t step) {
    memset(&m->curve, 0, sizeof m->curve);
    m->waiting_bytes = 0;
    m->step = step;
    m->bytes = read_history(m, step);
    check_io(m, io_truncate(m->fd, m->bytes), "cut");
}

/* Appends ,"key":value to line; a value that is not finite becomes null. */
static void put_number(char *line, size_t capacity, const char *key, double value) {
    size_t at = strlen(line);
    if (isfinite(value)) snprintf(line + at, capacity - at, ",\"%s\":%.9g", key, value);
    else                 snprintf(line + at, capacity - at, ",\"%s\":null", key);
}

/* Writes all waiting lines, or none: the torn part of a failed write is cut off before the next. */
static int write_waiting(Metrics *m) {
    int error = m->error ? io_truncate(m->fd, m->bytes) : 0;
    if (!error) error = io_write(m->fd, m->waiting, m->waiting_bytes);
    if (error && !m->error)
        warn("cannot write %s: %s; its lines wait in memory, and no checkpoint is saved without them", m->path,
             strerror(-error));
    if (error) io_truncate(m->fd, m->bytes);
    m->error = error;
    if (error) return 0;
    m->bytes += m->waiting_bytes;
    m->waiting_bytes = 0;
    return 1;
}

static void write_line(Metrics *m, char *line, size_t capacity) {
    size_t at = strlen(line);
    snprintf(line + at, capacity - at, "}\n");
    if (m->waiting_bytes + at + 2 > m->waiting_room) {
        m->waiting_room = 2 * (m->waiting_bytes + capacity);
        m->waiting = realloc(m->waiting, m->waiting_room);
        if (!m->waiting) fail(EXIT_MEMORY, "no memory for the lines that %s has no room for", m->path);
    }
    memcpy(m->waiting + m->waiting_bytes, line, at + 2);
    m->waiting_bytes += at + 2;
    write_waiting(m);
}

static void put_sent(char *line, size_t room, const int64_t sent[AXES]) {
    size_t used = strlen(line);
    for (int a = 0; a < AXES; a++)
        used += (size_t)snprintf(line + used, room - used, "%s\"%s\":%lld%s", a ? "," : ",\"sent\":{",
                                 mesh_axis_name((Axis)a), (long long)sent[a], a == AXES - 1 ? "}" : "");
}

void metrics_train(Metrics *m, const StepMetrics *s) {
    CHECK(s->step == m->step + 1, "metrics of step %lld after step %lld", (long long)s->step, (long long)m->step);
    char line[LINE_BYTES];
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
    if (s->has_sent) put_sent(line, sizeof line, s->sent);
    write_line(m, line, sizeof line);
    m->step = s->step;
    curve_train(&m->curve, s->step, s->loss);
}

void metrics_eval(Metrics *m, int64_t step, double loss) {
    char line[128];
    snprintf(line, sizeof line, "{\"kind\":\"eval\",\"step\":%lld", (long long)step);
    put_number(line, sizeof line, "loss", loss);
    write_line(m, line, sizeof line);
    note_eval(m, step, loss);
}

static int failed(const Metrics *m, int error, const char *what, char *fault) {
    if (error) snprintf(fault, METRICS_FAULT_BYTES, "cannot %s %.900s: %s", what, m->path, strerror(-error));
    return !error;
}

int metrics_catch_up(Metrics *m, char *fault) {
    return m->waiting_bytes == 0 || write_waiting(m) || failed(m, m->error, "write", fault);
}
const char *metrics_path(const Metrics *m) { return m->path; }
int         metrics_fd(const Metrics *m) { return m->fd; }

/* A picture is not worth the run: one warning, then silence. */
void metrics_draw(Metrics *m) {
    size_t bytes;
    char  *svg = curve_svg(&m->curve, m->title, &bytes);
    int    status = svg ? io_replace_file(m->picture, svg, bytes) : -ENOMEM;
    free(svg);
    if (status < 0 && !m->warned) warn("cannot write %s: %s", m->picture, strerror(-status));
    if (status < 0) m->warned = 1;
}

void metrics_close(Metrics *m) {
    if (!m) return;
    if (m->waiting_bytes > 0 && !write_waiting(m)) check_io(m, m->error, "write");
    check_io(m, io_close(m->fd), "close");
    free(m->waiting);
    free(m);
}
