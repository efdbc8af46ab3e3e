/* terminal.h - what the program prints: colours and line breaks where a terminal shows it, and its copy in RUN/log.txt.
 *
 * Text carries the marks below. A terminal gets them as colours, and its lines broken between words; a file or a pipe
 * gets plain lines, whole. Each stream is judged alone. NO_COLOR or TERM=dumb: no colours; FORCE_COLOR: colours in
 * files and pipes, too. TERM=dumb: no line is rewritten.
 *
 * A line that will be rewritten is printed on a terminal only. The next print on either stream replaces it.
 */
#ifndef TRAIN_GPT_CORE_TERMINAL_H
#define TRAIN_GPT_CORE_TERMINAL_H

#include <stdint.h>
#include <stdio.h>

#include "core/error.h"

#define DIM    "\033[2m"
#define BOLD   "\033[1m"
#define GREEN  "\033[32m"
#define YELLOW "\033[33m"
#define RED    "\033[1;31m"
#define PLAIN  "\033[0m"
#define GLUE   "\037" /* a space at which no line is broken */

int terminal_is(FILE *stream);       /* someone looks, and lines can be rewritten; under mpirun: at its own output */
int terminal_has_colour(FILE *stream);
int terminal_columns(FILE *stream);  /* COLUMNS, else the terminal's, else 80 */
int terminal_width(const char *text); /* columns that marked text takes */

/* Control characters of names and files could steer a terminal. Everything below prints them, newline, tab and marks
 * apart, as \xNN, and bytes that are no UTF-8 as well. terminal_plain does the same to a text, marks included. It cuts
 * the text to the capacity and returns out. print_plain is fprintf with such a text of 8 KiB at most. */
char *terminal_plain(char *out, size_t capacity, const char *text);
void print_plain(FILE *out, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Prints whole lines: the text, which may have several, and an end. Broken lines go on at column `indent`. A call is
 * one write, unless it is long. Any thread. */
void say(FILE *stream, int indent, const char *fmt, ...) PRINTF_LIKE(3, 4);
void say_text(FILE *stream, int indent, const char *text); /* of any length */

/* Marked lines into a file of the caller's, broken at `columns`. */
void terminal_fold(FILE *out, const char *text, int columns, int indent);

/* On stdout, if it is a terminal: a line that will be rewritten, cut to the width. And a sign of life from work that
 * has taken two seconds: "validation 12/40", or where all = 0 "saving 5 s". The next line that is said ends it, and
 * so does say_no_more(), before what is printed otherwise. Of rank 0's main thread. */
void say_again(const char *text);
void say_part(const char *work, int64_t done, int64_t all);
void say_no_more(void);

/* Everything said from now on, and what was said since the start, is written to fd, a file open for appending, which is
 * then ours: without colours and rewritten lines, each line at once; before it comes `heading`. A line that cannot be
 * written is warned of once, and the next are tried. say_end_log: nothing more is written there. */
void say_keep_log(int fd, const char *path, const char *heading);
void say_end_log(void);

/* For a signal handler, after say_prepare(): a line with its end on stderr and in the log; in the log alone. */
void say_prepare(void);
void say_from_signal(const char *line);
void say_in_log(const char *line);

#endif
