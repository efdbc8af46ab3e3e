/* terminal.c - prints lines for terminals, files and the log (terminal.h). Its file-scope state is what this process
 * has printed and where, because a warning may be printed from anywhere, and a signal handler has no other access to
 * it. */
#include "core/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/format.h"
#include "core/thread.h"

enum { LINE_BYTES = 4096, PRINTED_BYTES = 8192, EARLY_BYTES = 16384, LEAST_COLUMNS = 20, DEFAULT_COLUMNS = 80 };
static const double PART_AFTER_MS = 2000.0, PART_EVERY_MS = 100.0;

static struct {
    _Atomic int         rewriting;     /* 1: the cursor is in a line that the next print will replace */
    const char *_Atomic part;          /* part: the work that say_part reports, NULL if none; the times when it began,
                                        * and when it was last shown */
    double              part_began_ms, part_shown_ms;
    _Atomic int         log_fd;        /* descriptor of RUN/log.txt; 0 if there is no log, because descriptors start at
                                        * 3 */
    _Atomic int         log_warned, log_torn; /* log_torn: 1 if the log ends in the middle of a line */
    _Atomic int         log_ended;
    char                log_path[LINE_BYTES];
    char                early[EARLY_BYTES]; /* lines printed before the log was opened */
    size_t              early_bytes;
    int                 errors_shown;  /* 1: stderr is a terminal; computed beforehand for the signal handler */
} self;

/* --- what a stream is --------------------------------------------------------------------------------------------- */

/* Under Open MPI rank 0's stdout is a pseudo-terminal and its stderr a pipe, both read by mpirun. So what counts is the
 * output of mpirun, the parent process. */
static int is_under_mpirun(void) { return getenv("OMPI_COMM_WORLD_RANK") != NULL; }

static void parents_stream(FILE *stream, char path[64]) {
    snprintf(path, 64, "/proc/%ld/fd/%d", (long)getppid(), fileno(stream));
}

static int is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

int terminal_is(FILE *stream) {
    const char *term = getenv("TERM");
    char        path[64], target[64];
    struct stat st;
    if (term && strcmp(term, "dumb") == 0) return 0;
    int own = isatty(fileno(stream));
    if (!is_under_mpirun()) return own;
    if (!own && !(stream == stderr && fstat(STDERR_FILENO, &st) == 0 && S_ISFIFO(st.st_mode))) return 0;
    parents_stream(stream, path);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    return strncmp(target, "/dev/pts/", 9) == 0 || strncmp(target, "/dev/tty", 8) == 0;
}

int terminal_has_colour(FILE *stream) { return !is_set("NO_COLOR") && (is_set("FORCE_COLOR") || terminal_is(stream)); }

int terminal_columns(FILE *stream) {
    struct winsize size = {0};
    char           path[64];
    const char    *columns = getenv("COLUMNS");
    int            asked = columns ? atoi(columns) : 0, fd = -1;
    if (asked >= LEAST_COLUMNS) return asked;
    if (is_under_mpirun()) {
        parents_stream(stream, path);
        fd = open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    }
    int known = ioctl(fd >= 0 ? fd : fileno(stream), TIOCGWINSZ, &size) == 0;
    if (fd >= 0) close(fd);
    return known && size.ws_col >= LEAST_COLUMNS ? size.ws_col : DEFAULT_COLUMNS;
}

/* --- marked text -------------------------------------------------------------------------------------------------- */

/* Returns the bytes of the colour mark that text begins with; 0 if it begins with none. */
static size_t mark_bytes(const char *text) {
    if (text[0] != '\033' || text[1] != '[') return 0;
    size_t n = 2 + strspn(text + 2, "0123456789;");
    return text[n] == 'm' ? n + 1 : 0;
}

/* Returns the bytes of the character that text begins with. Sets *steers to 1 if it is a control character or not
 * UTF-8, and so could steer a terminal. */
static size_t character_bytes(const char *text, int *steers) {
    size_t        n = (size_t)utf8_bytes(text, strnlen(text, 4));
    unsigned char c = (unsigned char)*text;
    *steers = n == 0 || (c < 32 && c != '\n' && c != '\t') || c == 127 || (c == 0xc2 && (unsigned char)text[1] < 0xa0);
    return n ? n : 1;
}

/* Writes a character of n bytes as \xNN for each byte. Returns the number of bytes written to out. */
static size_t escape_character(char out[17], const char *text, size_t n) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += (size_t)snprintf(out + used, 17 - used, "\\x%02x", (unsigned char)text[i]);
    return used;
}

char *terminal_plain(char *out, size_t capacity, const char *text) {
    size_t used = 0;
    for (size_t n; *text; text += n) {
        char escaped[17];
        int  steers;
        n = character_bytes(text, &steers);
        size_t length = steers ? escape_character(escaped, text, n) : n;
        if (used + length >= capacity) break;
        memcpy(out + used, steers ? escaped : text, length);
        used += length;
    }
    out[used] = '\0';
    return out;
}

void print_plain(FILE *out, const char *fmt, ...) {
    char    text[PRINTED_BYTES], plain[PRINTED_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fputs(terminal_plain(plain, sizeof plain, text), out);
}

/* Returns the number of terminal columns of the character that text begins with, and its bytes in *bytes. Chinese,
 * Japanese, Korean and emoji take two columns, a tab at most eight, a colour mark none. */
static int character(const char *text, size_t *bytes) {
    static const struct { uint32_t first, last; } wide[] = {{0x1100, 0x115f}, {0x2e80, 0xa4cf}, {0xac00, 0xd7a3},
                                                            {0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60},
                                                            {0x1f300, 0x1faff}, {0x20000, 0x3fffd}};
    *bytes = mark_bytes(text);
    if (*bytes) return 0;
    const unsigned char *byte = (const unsigned char *)text;
    unsigned char        lead = *byte;
    uint32_t code = lead < 0xc0 ? lead : lead < 0xe0 ? lead & 0x1f : lead < 0xf0 ? lead & 0x0f : lead & 0x07;
    int                  steers;
    size_t               n = character_bytes(text, &steers);
    for (size_t i = 1; i < n; i++) code = code << 6 | (byte[i] & 0x3f);
    *bytes = n;
    if (lead == '\t') return 8;
    if (steers && lead != *GLUE) return 4 * (int)n; /* control characters and bytes that are not UTF-8 are printed as
                                                     * \xNN, four columns for each byte */
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (code >= wide[i].first && code <= wide[i].last) return 2;
    return 1;
}

/* Returns the number of terminal columns that text takes up to `end`. */
static int width_to(const char *text, const char *end) {
    int columns = 0;
    for (size_t n; text < end; text += n) columns += character(text, &n);
    return columns;
}

int terminal_width(const char *text) { return width_to(text, text + strlen(text)); }

/* Destination of printed text: a stream or a descriptor. The text is buffered and written in few writes. */
typedef struct {
    FILE  *stream; /* NULL if the destination is fd */
    int    fd, colour, error;
    size_t used;
    char   bytes[LINE_BYTES];
} Out;

static void flush_out(Out *o) {
    if (o->stream) {
        fwrite(o->bytes, 1, o->used, o->stream);
        fflush(o->stream);
    }
    for (size_t at = 0; !o->stream && !o->error && at < o->used;) {
        ssize_t n = write(o->fd, o->bytes + at, o->used - at);
        if (n < 0 && errno != EINTR) o->error = errno;
        if (n > 0) at += (size_t)n;
    }
    o->used = 0;
}

static void put(Out *o, const char *text, size_t bytes) {
    for (size_t n; bytes > 0; text += n, bytes -= n) {
        if (o->used == sizeof o->bytes) flush_out(o);
        n = sizeof o->bytes - o->used < bytes ? sizeof o->bytes - o->used : bytes;
        memcpy(o->bytes + o->used, text, n);
        o->used += n;
    }
}

/* Writes text with colour marks up to `end`, without the marks if the destination has no colours. */
static void put_marked(Out *o, const char *text, const char *end) {
    char escaped[17];
    int  steers;
    for (size_t n; text < end; text += n) {
        size_t mark = mark_bytes(text);
        n = mark ? mark : character_bytes(text, &steers);
        if (mark)                 put(o, text, o->colour ? n : 0);
        else if (*text == *GLUE)  put(o, " ", 1);
        else if (steers)          put(o, escaped, escape_character(escaped, text, n));
        else                      put(o, text, n);
    }
}

static int break_line(Out *o, int indent) {
    put(o, "\n", 1);
    for (int at = 0; at < indent; at++) put(o, " ", 1);
    return indent;
}

/* Writes one line of text up to `end`, broken between words so that it takes at most `columns`. With columns = 0 no
 * line is broken. */
static void put_line(Out *o, const char *text, const char *end, int columns, int indent) {
    int at = 0;
    while (text < end) {
        const char *word = text + strspn(text, " "), *next = word;
        while (next < end && *next != ' ') next++;
        int width = width_to(word, next);
        int gap = (int)(word - text);
        if (columns && at > indent && at + gap + width > columns) at = break_line(o, indent), text = word, gap = 0;
        put_marked(o, text, word);
        at += gap;
        text = next;
        if (!columns || at + width <= columns) {
            put_marked(o, word, next);
            at += width;
            continue;
        }
        for (size_t n; word < next; word += n) { /* breaks a word that is longer than a line where `columns` are full */
            width = character(word, &n);
            if (at + width > columns) at = break_line(o, indent);
            put_marked(o, word, word + n);
            at += width;
        }
    }
    put(o, "\n", 1);
}

static void put_lines(Out *o, const char *text, int columns, int indent) {
    for (const char *end;; text = end + 1) {
        end = text + strcspn(text, "\n");
        put_line(o, text, end, columns, indent);
        if (!*end || !end[1]) break;
    }
    flush_out(o);
}

/* --- saying ------------------------------------------------------------------------------------------------------- */

void terminal_fold(FILE *out, const char *text, int columns, int indent) {
    Out o = {.stream = out, .colour = 1};
    put_lines(&o, text, columns, indent);
}

static void clear_rewritten(FILE *stream) {
    if (!self.rewriting || (stream != stdout && !terminal_is(stream))) return;
    self.rewriting = 0;
    fputs("\r\033[K", stdout);
    fflush(stdout);
}

static void keep(const char *text) {
    if (self.log_ended) return;
    if (!self.log_fd) { /* before there is a log, keeps the first lines in memory, as far as they fit */
        for (size_t n; *text && self.early_bytes < EARLY_BYTES - 2; text += n) {
            n = mark_bytes(text);
            if (n == 0) self.early[self.early_bytes++] = *text, n = 1;
        }
        if (self.early_bytes && self.early[self.early_bytes - 1] != '\n') self.early[self.early_bytes++] = '\n';
        return;
    }
    Out o = {.fd = self.log_fd};
    if (self.log_torn) put(&o, "\n", 1);
    put_lines(&o, text, 0, 0);
    self.log_torn = o.error != 0;
    if (o.error && !self.log_warned++)
        warn("cannot write the log file %s: %s; the run continues, and tries to write its next lines",
             self.log_path, strerror(o.error));
}

void say_text(FILE *stream, int indent, const char *text) {
    Out o = {.stream = stream, .colour = terminal_has_colour(stream)};
    self.part = NULL;
    clear_rewritten(stream);
    if (stream == stderr) fflush(stdout);
    put_lines(&o, text, terminal_is(stream) ? terminal_columns(stream) : 0, indent);
    keep(text);
}

void say(FILE *stream, int indent, const char *fmt, ...) {
    char    text[LINE_BYTES + 64]; /* size of a message of LINE_BYTES and its colour marks */
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    say_text(stream, indent, text);
}

void say_labelled(int columns, const char *label, const char *fmt, ...) {
    char    text[2048], plain[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    say(stdout, columns, DIM "%-*s" RESET "%s", columns, label, terminal_plain(plain, sizeof plain, text));
}

void say_again(const char *text) {
    if (!terminal_is(stdout)) return;
    const char *end = text;
    Out         o = {.stream = stdout, .colour = terminal_has_colour(stdout)};
    for (int left = terminal_columns(stdout) - 1; *end;) { /* cuts the text to the terminal's width, because a wrapped
                                                            * line could not be rewritten */
        size_t n;
        left -= character(end, &n);
        if (left < 0) break;
        end += n;
    }
    clear_rewritten(stdout);
    put_marked(&o, text, end);
    if (o.colour) put(&o, RESET, strlen(RESET));
    flush_out(&o);
    self.rewriting = 1;
}

void say_part(const char *work, int64_t done, int64_t all) {
    double now = clock_ms();
    char   text[128];
    if (work != self.part) self.part_began_ms = now;
    self.part = work;
    if (now - self.part_began_ms < PART_AFTER_MS || now - self.part_shown_ms < PART_EVERY_MS) return;
    self.part_shown_ms = now;
    if (all > 0) snprintf(text, sizeof text, DIM "%s" RESET " %lld/%lld", work, (long long)done, (long long)all);
    else         snprintf(text, sizeof text, DIM "%s" RESET " %.0f s", work, (now - self.part_began_ms) * 1e-3);
    say_again(text);
}

void say_no_more(void) {
    self.part = NULL;
    clear_rewritten(stdout);
}

/* --- the log ------------------------------------------------------------------------------------------------------ */

void say_keep_log(int fd, const char *path, const char *heading) {
    snprintf(self.log_path, sizeof self.log_path, "%s", path);
    self.log_torn = lseek(fd, 0, SEEK_END) > 0; /* log_torn makes the next line begin with a newline; it separates two
                                                 * starts and ends a line that was cut off */
    self.log_fd = fd;
    keep(heading);
    if (self.early_bytes) keep(self.early);
    self.early_bytes = 0;
}

void say_end_log(void) {
    int fd = self.log_fd;
    self.log_ended = 1;
    self.log_fd = 0;
    if (fd) close(fd);
}

/* --- a signal's handler ------------------------------------------------------------------------------------------- */

void say_prepare(void) { self.errors_shown = terminal_is(stderr); }

void say_in_log(const char *line) {
    int log = self.log_fd;
    if (log && write(log, line, strlen(line)) < 0) self.log_torn = 1;
}

void say_from_signal(const char *line) {
    int error = errno, is_clear = !self.errors_shown || write(STDERR_FILENO, "\r\033[K", 4) > 0;
    /* if the write fails, nobody reads stderr any more */
    if (is_clear && write(STDERR_FILENO, line, strlen(line)) < 0) self.errors_shown = 0;
    say_in_log(line);
    errno = error;
}
