/* terminal.h - what the program prints: colours and line breaks where a terminal shows it, and its copy in RUN/log.txt.
 *
 * Text carries colour marks (DIM and so on). On a terminal they become colours, and lines are broken between words. A
 * file or a pipe gets plain lines, not broken. Each stream is judged separately. NO_COLOR or TERM=dumb: no colours.
 * FORCE_COLOR: colours in files and pipes, too. TERM=dumb: no line is rewritten.
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
#define RESET  "\033[0m"
#define GLUE   "\037" /* mark for a space at which no line is broken */

int terminal_is(FILE *stream);       /* returns 1 if lines can be rewritten on the stream, because it is a terminal;
                                      * under mpirun, if mpirun's own output is one */
int terminal_has_colour(FILE *stream);
int terminal_columns(FILE *stream);  /* returns COLUMNS if it is set, otherwise the terminal's width, otherwise 80 */
int terminal_width(const char *text); /* returns the number of columns that the text takes without its colour marks */

/* Control characters in names and files could steer a terminal. All printing functions of this file therefore write
 * them as \xNN, as well as bytes that are not UTF-8; newline, tab and colour marks stay. terminal_plain converts a text
 * in this way, colour marks included, cuts it to the capacity and returns out. print_plain is fprintf with such a text
 * of at most 8 KiB. */
char *terminal_plain(char *out, size_t capacity, const char *text);
void print_plain(FILE *out, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Prints a text of one or more lines, and a newline. Where a line is broken for the terminal's width, it continues at
 * column `indent`. A call is one write, unless the text is long. May be called by any thread. */
void say(FILE *stream, int indent, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Prints a line to stdout: a label, dim and padded to `columns`, and a plain text of at most 2 KiB. */
void say_labelled(int columns, const char *label, const char *fmt, ...) PRINTF_LIKE(3, 4);
void say_text(FILE *stream, int indent, const char *text); /* prints a text of any length and a newline; broken lines
                                                            * continue at column `indent` */

/* Writes lines with colour marks to `out`, broken between words at `columns`. */
void terminal_fold(FILE *out, const char *text, int columns, int indent);

/* Functions of rank 0's main thread that print to stdout, if it is a terminal. say_again prints a line that will be
 * rewritten, cut to the width. say_part reports progress of work once it has taken two seconds: "validation 12/40", or
 * "saving 5 s" if all = 0. The next call of say() replaces such a line. say_no_more() removes it before output that
 * does not go through say. */
void say_again(const char *text);
void say_part(const char *work, int64_t done, int64_t all);
void say_no_more(void);

/* Starts the log. Copies to fd everything that say() has printed since the start and will print, after the line
 * `heading`. fd is open for appending and owned by terminal.c afterwards. The copy has no colours and no rewritten
 * lines, and each line is written at once. The first line that cannot be written causes a warning, and later lines are
 * tried again. say_end_log ends the copy. */
void say_keep_log(int fd, const char *path, const char *heading);
void say_end_log(void);

/* Functions that a signal handler may call, after say_prepare(). say_from_signal prints a line and a newline to stderr
 * and the log, say_in_log to the log alone. */
void say_prepare(void);
void say_from_signal(const char *line);
void say_in_log(const char *line);

#endif
