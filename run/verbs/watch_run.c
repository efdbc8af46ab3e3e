/* watch_run.c - see watch_run.h. */
#include "run/verbs/watch_run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/guard/lock.h"
#include "run/log/run_log.h"

/* --- the log ------------------------------------------------------------------------------------------------------ */

static void begin_log(WatchRun *w) {
    memset(&w->curve, 0, sizeof w->curve);
    w->last.step = w->eval.step = -1;
    w->seen = w->at = 0;
}

void watch_run_begin(WatchRun *w, const char *dir) {
    struct stat st;
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)) fail(EXIT_DATA, "watch: %s is not the folder of a run", dir);
    memset(w, 0, sizeof *w);
    w->dir = dir;
    run_log_name(dir, w->name);
    begin_log(w);
}

static void keep(WatchRun *w, const MetricsLine *l) {
    if (l->kind == LINE_EVAL) {
        w->eval = *l;
        curve_eval(&w->curve, l->step, l->loss);
    } else if ((l->kind == LINE_TRAIN || l->kind == LINE_OUTER) && l->step > w->last.step) { /* rounds: of a server */
        int64_t before = w->last.step > 0 ? w->last.step : 0;
        double  steps = l->kind == LINE_OUTER ? (double)(l->step - before) : 1;
        w->last = *l;
        w->recent_ms[w->seen++ % WATCH_RECENT] = l->ms / steps;
        curve_train(&w->curve, (CurveStep){l->step, l->tokens, l->loss, l->lr, l->grad_norm});
    }
}

/* Returns 1 if the log still has the bytes that were read. A resume or a rollback cuts it. */
static int is_as_before(const WatchRun *w, FILE *f) {
    char    now[WATCH_TAIL];
    int64_t bytes = w->at < WATCH_TAIL ? w->at : WATCH_TAIL;
    return fseeko(f, w->at - bytes, SEEK_SET) == 0 && fread(now, 1, (size_t)bytes, f) == (size_t)bytes &&
           memcmp(now, w->tail, (size_t)bytes) == 0;
}

static void read_log(WatchRun *w) {
    MetricsLine line;
    Path        path = path_of("%s/metrics.jsonl", w->dir);
    FILE       *f = io_open_stream(path.text, IO_READ);
    if (!f) io_expect_file(path.text, -errno);
    if (!f || !is_as_before(w, f)) begin_log(w);
    if (!f) return;
    fseeko(f, w->at, SEEK_SET);
    while (metrics_line_next(f, &line) != LINE_OTHER) {
        keep(w, &line);
        w->at = ftello(f);
    }
    int64_t bytes = w->at < WATCH_TAIL ? w->at : WATCH_TAIL;
    if (fseeko(f, w->at - bytes, SEEK_SET) != 0 || fread(w->tail, 1, (size_t)bytes, f) != (size_t)bytes) begin_log(w);
    fclose(f);
}

static void read_steps(WatchRun *w) {
    cJSON       *config = run_log_config(w->dir);
    const cJSON *steps = json_member(json_member(config, "run"), "steps");
    if (cJSON_IsNumber(steps)) w->steps = (int64_t)steps->valuedouble;
    cJSON_Delete(config);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double watch_run_median_ms(const WatchRun *w) {
    double sorted[WATCH_RECENT];
    int    count = 0, most = w->seen < WATCH_RECENT ? (int)w->seen : WATCH_RECENT;
    for (int i = 0; i < most; i++)
        if (isfinite(w->recent_ms[i])) sorted[count++] = w->recent_ms[i];
    if (count == 0) return NAN;
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* --- the lock ----------------------------------------------------------------------------------------------------- */

/* Returns 1 if the holder is alive. On this host the kernel knows its process. On another host its beat must have
 * changed between looks, or the file must be recent. */
static int holder_is_there(WatchRun *w, const LockHolder *h, const char *text, const char *path, double now) {
    struct stat st;
    char        host[256] = "";
    gethostname(host, sizeof host - 1);
    LockHolder self = holder_self(host);
    if (strcmp(h->host, self.host) == 0) return strcmp(h->boot, self.boot) == 0 && holder_lives(h);
    if (!w->lock[0]) w->still_since_ms = clock_ms() - (stat(path, &st) == 0 ? fmax(0, now - (double)st.st_mtim.tv_sec) * 1e3 : 0);
    else if (strcmp(text, w->lock) != 0) w->still_since_ms = clock_ms();
    return clock_ms() - w->still_since_ms < LOCK_BEATS_MISSED * LOCK_BEAT_MS; /* the wall clock may jump */
}

/* Stores the last message of log.txt if only the indented further lines of that message follow it. */
static void read_message(WatchRun *w) {
    enum { END_BYTES = 8192 };
    static const char MARK[] = "train_gpt: ", WARNING[] = "train_gpt: warning:";
    char   text[END_BYTES + 1], *line = NULL;
    FILE  *f = io_open_stream(path_of("%s/log.txt", w->dir).text, IO_READ);
    w->message[0] = 0;
    if (!f) return;
    if (fseeko(f, -END_BYTES, SEEK_END) != 0) rewind(f); /* the file is shorter */
    text[fread(text, 1, END_BYTES, f)] = 0;
    fclose(f);
    for (char *at = text; at && *at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
        if (*at != ' ' && *at != '\n') line = at;
    if (!line || strncmp(line, MARK, strlen(MARK)) != 0 || strncmp(line, WARNING, strlen(WARNING)) == 0) return;
    line += strlen(MARK);
    snprintf(w->message, sizeof w->message, "%.*s", (int)strcspn(line, "\n"), line);
}

static void judge(WatchRun *w, double now) {
    LockHolder holder;
    char      *text = NULL;
    Path       path = path_of("%s/lock", w->dir);
    int64_t    bytes = io_read_file(path.text, sizeof w->lock - 1, &text);
    io_expect_file(path.text, bytes);
    int        is_signed = bytes > 0 && holder_parse(text, &holder),
        is_there = is_signed && holder_is_there(w, &holder, text, path.text, now);
    int is_at_end = w->steps > 0 && w->last.step >= w->steps;
    if (w->last.step < 0) w->state = is_there ? WATCH_STARTING : WATCH_EMPTY;
    else if (is_there) w->state = WATCH_RUNNING;
    else if (is_at_end) w->state = WATCH_DONE;
    else w->state = is_signed ? WATCH_LOST : WATCH_STOPPED;
    if (w->state == WATCH_LOST) read_message(w);
    if (w->state == WATCH_LOST && w->message[0]) w->state = WATCH_FAILED;
    w->lock[0] = 0;
    if (bytes > 0) strncat(w->lock, text, sizeof w->lock - 1);
    free(text);
}

void watch_run_look(WatchRun *w, double now) {
    read_log(w);
    read_steps(w);
    judge(w, now);
}
