/* watch.c - `train_gpt watch RUN... [once=true]`: shows runs in the terminal, on any machine that sees their folders.
 * It reads their files and redraws every two seconds. Each run has a part of the screen: its state, its newest numbers,
 * its losses as a curve of braille dots. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "core/format.h"
#include "core/io.h"
#include "core/terminal.h"
#include "run/config/config.h"
#include "run/guard/lock.h"
#include "run/log/picture.h"
#include "run/log/run_log.h"
#include "run/verbs/verbs.h"

static int once;
static const VerbKey WATCH_KEYS[] = {
    {"once", "true", "false", "print once and end, as it does where there is no terminal", .flag = &once},
    {.name = NULL},
};

enum { MOST_RUNS = 64, PAUSE_S = 2 };

/* --- a run, read from its files: only what was added since the last look; memory does not grow with the run ------- */

enum { WATCH_RECENT = 20, WATCH_TAIL = 64 };

typedef enum {
    WATCH_EMPTY,     /* no step yet, and no process holds the folder    */
    WATCH_STARTING,  /* no step yet, but a process holds the folder     */
    WATCH_RUNNING,
    WATCH_STOPPED,   /* ended in order before step run.steps */
    WATCH_DONE,      /* ended at step run.steps              */
    WATCH_LOST,      /* ended without a message: killed, crashed or host lost      */
    WATCH_FAILED     /* ended with a message, the last one in log.txt              */
} WatchState;

typedef struct {
    const char *dir;                   /* borrowed */
    char        name[256];
    WatchState  state;
    int64_t     steps;                 /* run.steps of the run's config; 0 if not known */
    MetricsLine last, eval;            /* newest step and newest evaluation; step is -1 if there is none */
    double      recent_ms[WATCH_RECENT]; /* ms of the last steps; the newest at index (seen - 1) % WATCH_RECENT */
    int64_t     seen;                  /* number of steps read so far */
    Curve       curve;
    int64_t     at;                    /* bytes of metrics.jsonl that were read, up to the end of a line */
    char        tail[WATCH_TAIL];      /* the last bytes that were read; if they change, the log was cut */
    char        lock[1024];            /* text of the lock file when it was last read */
    char        message[512];          /* last message of a run in state WATCH_FAILED */
    double      still_since_ms;        /* time of clock_ms() at which the lock file last changed */
} WatchRun;

static void begin_log(WatchRun *w) {
    memset(&w->curve, 0, sizeof w->curve);
    w->last.step = w->eval.step = -1;
    w->seen = w->at = 0;
}

static void read_log(WatchRun *w) {
    MetricsLine l;
    Path        path = path_of("%s/metrics.jsonl", w->dir);
    FILE       *f = io_open_stream(path.text, IO_READ);
    char        now[WATCH_TAIL];
    int64_t     bytes = w->at < WATCH_TAIL ? w->at : WATCH_TAIL;
    if (!f) io_expect_file(path.text, -errno);
    /* A resume or a rollback cuts the log. Then it no longer has the bytes that were read last. */
    int is_as_before = f && fseeko(f, w->at - bytes, SEEK_SET) == 0 &&
                       fread(now, 1, (size_t)bytes, f) == (size_t)bytes && memcmp(now, w->tail, (size_t)bytes) == 0;
    if (!is_as_before) begin_log(w);
    if (!f) return;
    fseeko(f, w->at, SEEK_SET);
    while (metrics_line_next(f, &l) != LINE_OTHER) {
        if (l.kind == LINE_EVAL) {
            w->eval = l;
            curve_eval(&w->curve, l.step, l.loss);
        /* in the log of a server (`train_gpt serve`) the lines are rounds (LINE_OUTER) */
        } else if ((l.kind == LINE_TRAIN || l.kind == LINE_OUTER) && l.step > w->last.step) {
            int64_t before = w->last.step > 0 ? w->last.step : 0;
            double  steps = l.kind == LINE_OUTER ? (double)(l.step - before) : 1;
            w->last = l;
            w->recent_ms[w->seen++ % WATCH_RECENT] = l.ms / steps;
            curve_train(&w->curve, (CurveStep){l.step, l.tokens, l.loss, l.lr, l.grad_norm});
        }
        w->at = ftello(f);
    }
    bytes = w->at < WATCH_TAIL ? w->at : WATCH_TAIL;
    if (fseeko(f, w->at - bytes, SEEK_SET) != 0 || fread(w->tail, 1, (size_t)bytes, f) != (size_t)bytes) begin_log(w);
    fclose(f);
}

/* Returns the median time of the recent steps in ms, or NaN if there are none. */
static double median_ms(const WatchRun *w) {
    double sorted[WATCH_RECENT];
    int    count = 0, most = w->seen < WATCH_RECENT ? (int)w->seen : WATCH_RECENT;
    for (int i = 0; i < most; i++)
        if (isfinite(w->recent_ms[i])) sorted[count++] = w->recent_ms[i];
    if (count == 0) return NAN;
    qsort(sorted, (size_t)count, sizeof *sorted, ascending_doubles);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* --- the lock ----------------------------------------------------------------------------------------------------- */

/* Returns 1 if the process that holds the lock of a run is alive: if another job could not take the folder over. For a
 * process of another host, the lock file must have changed since it was last read, or must be recent. */
static int holder_is_there(WatchRun *w, const LockHolder *h, const char *text, const char *path, double now) {
    struct stat st;
    char        host[256] = "";
    gethostname(host, sizeof host - 1);
    LockHolder self = holder_self(host);
    if (!w->lock[0]) {
        double age_s = stat(path, &st) == 0 ? fmax(0, now - (double)st.st_mtim.tv_sec) : 0;
        w->still_since_ms = clock_ms() - age_s * 1e3;
    } else if (strcmp(text, w->lock) != 0) w->still_since_ms = clock_ms();
    /* uses clock_ms(), because the wall clock may jump */
    LockSeen seen = {.lives = holder_lives(h), .still_ms = clock_ms() - w->still_since_ms};
    return holder_decide(text, &self, seen, LOCK_BEAT_MS) != LOCK_TAKE;
}

/* Stores the last message of log.txt as the reason for the end of a run. Does so only if nothing follows except its own
 * indented lines. */
static void read_message(WatchRun *w) {
    enum { END_BYTES = 8192 };
    static const char MARK[] = "train_gpt: ", WARNING[] = "train_gpt: warning:";
    char   text[END_BYTES + 1], *line = NULL;
    FILE  *f = io_open_stream(path_of("%s/log.txt", w->dir).text, IO_READ);
    w->message[0] = 0;
    if (!f) return;
    if (fseeko(f, -END_BYTES, SEEK_END) != 0) rewind(f); /* the file is shorter than END_BYTES */
    text[fread(text, 1, END_BYTES, f)] = 0;
    fclose(f);
    for (char *at = text; at && *at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
        if (*at != ' ' && *at != '\n') line = at;
    if (!line || strncmp(line, MARK, strlen(MARK)) != 0 || strncmp(line, WARNING, strlen(WARNING)) == 0) return;
    line += strlen(MARK);
    snprintf(w->message, sizeof w->message, "%.*s", (int)strcspn(line, "\n"), line);
}

/* Sets the state of a run. now: seconds since 1970. */
static void judge(WatchRun *w, double now) {
    LockHolder   holder;
    cJSON       *config = run_log_config(w->dir);
    const cJSON *steps = config_value(config, "run.steps");
    if (cJSON_IsNumber(steps)) w->steps = (int64_t)steps->valuedouble;
    cJSON_Delete(config);
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

/* --- the screen, in columns and rows ------------------------------------------------------------------------------ */

enum { LEAST_COLUMNS = 30, MOST_COLUMNS = 100, MOST_ROWS = 6, ROWS_ONCE = 4 };
enum { MARGIN = 8 }; /* width of the space left of the curve, which shows its greatest and least value */

static struct {
    int columns, rows, has_colour; /* rows: height of a curve in lines of text */
} screen;

static const char *colour(const char *code) { return screen.has_colour ? code : ""; }

/* --- words -------------------------------------------------------------------------------------------------------- */

#define CYAN "\033[36m"
static const struct { const char *word, *colour; } STATES[] = {
    [WATCH_EMPTY] = {"no step yet", DIM},     [WATCH_STARTING] = {"starting", GREEN},
    [WATCH_RUNNING] = {"running", GREEN},     [WATCH_STOPPED] = {"stopped", YELLOW},
    [WATCH_DONE] = {"done", DIM},             [WATCH_LOST] = {"ended without a word", "\033[31m"},
    [WATCH_FAILED] = {"ended with a message", "\033[31m"},
};

/* Writes as many characters of a text as fit into `columns`. */
static void put_fitting(FILE *out, const char *text, int columns) {
    for (; *text; text++) {
        int is_start = ((unsigned char)*text & 0xc0) != 0x80;
        if (is_start && columns-- == 0) return;
        fputc(*text, out);
    }
}

/* Writes state and step of a run. Shortens the text so that `least` columns are left for its name. */
static void describe(char out[160], const WatchRun *w, int least) {
    const char *state = STATES[w->state].word;
    long long   step = (long long)w->last.step, steps = (long long)w->steps;
    int         room = screen.columns - least - 2;
    snprintf(out, 160, "%s", state);
    if (step < 0) return;
    if (steps > 0)
        snprintf(out, 160, "%s · step %lld/%lld · %.0f %%", state, step, steps,
                 floor(100.0 * (double)step / (double)steps));
    if (steps > 0 && terminal_width(out) > room) snprintf(out, 160, "%s · step %lld/%lld", state, step, steps);
    if (steps == 0 || terminal_width(out) > room) snprintf(out, 160, "%s · step %lld", state, step);
    if (terminal_width(out) > room) snprintf(out, 160, "%s", state);
}

/* Writes the first line of a run's part of the screen: first-try            running · step 210/400 · 52 % */
static void put_head(FILE *out, const WatchRun *w) {
    enum { WANTED_NAME = 12 };
    char right[160], shown[4096];
    int  all = terminal_width(terminal_plain(shown, sizeof shown, w->name));
    describe(right, w, all < WANTED_NAME ? all : WANTED_NAME);
    int room = screen.columns - terminal_width(right) - 2, name = all < room ? all : room;
    fputs(colour(BOLD), out);
    put_fitting(out, shown, name);
    fprintf(out, "%s%*s", colour(RESET), screen.columns - name - terminal_width(right), "");
    fprintf(out, "%s%s%s\n", colour(STATES[w->state].colour), right, colour(RESET));
}

/* Writes the second line of a run's part of the screen: as many fields as fit, with blanks between them. */
static void put_numbers(FILE *out, const WatchRun *w, double now) {
    char   piece[6][64] = {{0}}, text[32];
    double ms = median_ms(w), quiet = now - w->last.time;
    if (w->last.step < 0 && w->eval.step < 0) return;
    if (w->last.step >= 0) snprintf(piece[0], 64, "loss %.4f", w->last.loss);
    if (w->eval.step >= 0) snprintf(piece[1], 64, "val %.4f", w->eval.loss);
    if (w->curve.evals && w->curve.best.step != w->eval.step)
        snprintf(piece[2], 64, "best %.4f at %lld", w->curve.best.loss, (long long)w->curve.best.step);
    else if (w->curve.evals > 1) snprintf(piece[2], 64, "best");
    if (w->last.step >= 0 && isfinite(ms)) {
        double      rate = w->last.tokens_per_s * w->last.ms / ms;
        const char *unit = rate >= 1e6 ? "M" : rate >= 1e4 ? "k" : "";
        snprintf(piece[3], 64, "%.3g%s tok/s", rate / (*unit == 'M' ? 1e6 : *unit ? 1e3 : 1), unit);
    }
    if (w->state == WATCH_RUNNING && isfinite(ms) && w->steps > 0) {
        duration_text(text, (double)(w->steps - w->last.step) * ms);
        snprintf(piece[4], 64, "ETA %s", text);
    } else if (w->state != WATCH_RUNNING && isfinite(w->last.hours)) {
        duration_text(text, w->last.hours * 3.6e6);
        snprintf(piece[4], 64, "trained %s", text);
    }
    if (isfinite(quiet) && quiet > 60 && quiet > 20e-3 * ms && w->state != WATCH_DONE) {
        duration_text(text, 1e3 * quiet);
        snprintf(piece[5], 64, "last step %s ago", text);
    }
    int used = 2;
    fputs("  ", out);
    for (int i = 0; i < 6; i++) {
        if (!piece[i][0]) continue;
        int gap = used > 2 ? 3 : 0;
        if (used + gap + terminal_width(piece[i]) > screen.columns) break;
        fprintf(out, "%*s%s", gap, "", piece[i]);
        used += gap + terminal_width(piece[i]);
    }
    fputc('\n', out);
}

/* --- the curve ---------------------------------------------------------------------------------------------------- */

/* Bits of the braille dots. A character has two columns of four dots. */
static const unsigned char DOTS[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

static void put_curve(FILE *out, const Curve *c) {
    enum { WIDEST = 2 * MOST_COLUMNS };
    double        value[WIDEST], low = INFINITY, high = -INFINITY; /* value: mean loss of a column, or NaN */
    unsigned char cell[MOST_ROWS][MOST_COLUMNS] = {{0}};
    int           cells = screen.columns - MARGIN - 2, n = 2 * cells, last = -1;
    if (screen.rows == 0 || c->slots < 2) return;
    for (int x = 0; x < n; x++) {
        int    first = (int)((int64_t)c->slots * x / n), end = (int)((int64_t)c->slots * (x + 1) / n);
        double sum = 0, count = 0;
        for (int i = first; i < (end > first ? end : first + 1) && i < c->slots; i++)
            sum += c->slot[i].sum, count += (double)c->slot[i].finite;
        value[x] = count > 0 ? sum / count : NAN;
    }
    /* The range of losses to show. It leaves out the first twentieth of the columns, in which the loss falls too fast
     * for few rows. */
    for (int x = n >= 20 ? n / 20 : 0; x < n; x++)
        if (isfinite(value[x])) low = fmin(low, value[x]), high = fmax(high, value[x]);
    if (!(low <= high)) return;
    if (high - low < 1e-6 * fmax(1, fabs(high))) high = low + 1e-6 * fmax(1, fabs(high));

    for (int x = 0; x < n; x++) {
        int y = isfinite(value[x]) ? (int)lround((4 * screen.rows - 1) * (high - value[x]) / (high - low)) : -1;
        int above = y < 0; /* 1 if there is no loss, or a loss above the picture */
        for (int at = last < 0 || above ? y
                      : last < y        ? last + 1
                      : last > y        ? last - 1
                                        : y;
             !above; at += at < y ? 1 : -1) {
            cell[at / 4][x / 2] |= DOTS[at % 4][x % 2]; /* draws dots from the height of the last column to this one */
            if (at == y) break;
        }
        last = above ? -1 : y;
    }
    for (int row = 0; row < screen.rows; row++) {
        char label[32] = "";
        if (row == 0) snprintf(label, sizeof label, fabs(high) < 1000 ? "%.3f" : "%.4g", high);
        else if (row == screen.rows - 1) snprintf(label, sizeof label, fabs(low) < 1000 ? "%.3f" : "%.4g", low);
        fprintf(out, "%s%*s %s%s", colour(DIM), MARGIN, label, colour(RESET), colour(CYAN));
        for (int x = 0; x < cells; x++) {
            unsigned code = 0x2800u + cell[row][x]; /* a braille character, written as UTF-8 */
            fputc(0xe0 | code >> 12, out), fputc(0x80 | (code >> 6 & 0x3f), out), fputc(0x80 | (code & 0x3f), out);
        }
        fprintf(out, "%s\n", colour(RESET));
    }
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

static void measure_screen(int runs, int is_once) {
    struct winsize size;
    int            is_sized = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    int            columns = terminal_columns(stdout), rows = ROWS_ONCE;
    if (!is_once && is_sized && size.ws_row > 0) rows = (size.ws_row - 1) / runs - 4;
    screen.has_colour = terminal_has_colour(stdout);
    screen.columns = columns < LEAST_COLUMNS ? LEAST_COLUMNS : columns > MOST_COLUMNS ? MOST_COLUMNS : columns;
    screen.rows = rows < 2 ? 0 : rows > MOST_ROWS ? MOST_ROWS : rows;
}

static void put_blocks(FILE *out, WatchRun *run, int runs) {
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    double now = (double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec;
    for (int i = 0; i < runs; i++) {
        read_log(&run[i]);
        judge(&run[i], now);
        if (i > 0) fputc('\n', out);
        put_head(out, &run[i]);
        put_numbers(out, &run[i], now);
        if (run[i].state == WATCH_FAILED) { /* prints the message that ended the run, as much as fits in a line */
            char shown[sizeof run[i].message];
            fputs("  ", out);
            put_fitting(out, terminal_plain(shown, sizeof shown, run[i].message), screen.columns - 2);
            fputc('\n', out);
        }
        put_curve(out, &run[i].curve);
    }
}

/* Redraws the runs on the alternate screen of the terminal until a signal ends it. */
static void keep_watching(WatchRun *run, int runs) {
    static const struct timespec PAUSE = {.tv_sec = PAUSE_S};
    sigset_t                     ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT), sigaddset(&ends, SIGTERM), sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    printf("\033[?1049h\033[?25l");
    do {
        char  *text = NULL;
        size_t bytes = 0;
        FILE  *frame = memory_file_open(&text, &bytes);
        measure_screen(runs, 0);
        put_blocks(frame, run, runs);
        fclose(frame);
        printf("\033[H");
        for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1)
            printf("%.*s\033[K%s", (int)(end - line), line, end[1] ? "\r\n" : "");
        printf("\033[J");
        fflush(stdout);
        free(text);
    } while (sigtimedwait(&ends, NULL, &PAUSE) < 0 && !ferror(stdout));
    printf("\033[?25h\033[?1049l");
    fflush(stdout);
}

static int verb_watch(int runs, char **dir) {
    const char *term = getenv("TERM");
    if (!isatty(STDOUT_FILENO) || (term && strcmp(term, "dumb") == 0)) once = 1;
    WatchRun *run = xcalloc((size_t)runs, sizeof *run, "the curves of the runs");
    for (int i = 0; i < runs; i++) {
        if (!io_is_folder(dir[i]))
            fail(EXIT_DATA, "watch: %s is not the folder of a run: give its run.dir, as in watch runs/demo", dir[i]);
        run[i].dir = dir[i];
        run_log_name(dir[i], run[i].name);
        begin_log(&run[i]);
    }
    if (!once) keep_watching(run, runs);
    measure_screen(runs, 1);
    put_blocks(stdout, run, runs); /* the last frame stays on the screen after the end */
    free(run);
    return EXIT_DONE;
}

const Verb WATCH_VERB = {
    "watch", "RUN... [once=true]", "runs in the terminal, redrawn every two seconds",
    "Shows where runs are, from their files, on any machine that sees the folders. Ctrl-C ends it.", WATCH_KEYS,
    "./train_gpt watch runs/demo", verb_watch, {1, MOST_RUNS, "the folder of a run"},
};
