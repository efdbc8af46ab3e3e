/* documents.h - reads the documents of a list of inputs, in order. A document is a text file, a line of a JSON Lines
 * file, or a row of a parquet file. Text and JSON Lines may be packed and in any encoding of data/text_file.h. A folder
 * means all files below it, sorted by name.
 *
 * A file is read as rows in four cases. The user says so (field=, format=). Its name ends in .jsonl, .ndjson or
 * .parquet (before .gz, .zst, .xz). Its content is parquet. Or its first line that is not blank is a whole JSON object,
 * unless its name ends in .txt, .md or .text. Such a file gives rows or is refused; it is never read as text. All other
 * text is read as text. A file that is not text is refused if the user named it, and skipped if it was found in a
 * folder. */
#ifndef TRAIN_GPT_DATA_DOCUMENTS_H
#define TRAIN_GPT_DATA_DOCUMENTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "data/text_file.h"

typedef struct Documents Documents;
enum { DOCUMENT_FAULT_CHARS = 2048, DOCUMENT_LONGEST_LINE = 1 << 28 /* most bytes of a line of JSON Lines */ };

typedef enum { FORMAT_FOUND, FORMAT_TEXT, FORMAT_JSONL, FORMAT_PARQUET } DocumentFormat;
extern const char
    /* names of DocumentFormat in the option format=, beginning with "text" for FORMAT_TEXT; ends with NULL */
    *const DOCUMENT_FORMATS[];

/* How the user wants inputs to be read. */
typedef struct {
    /* field of JSON Lines or column of parquet; NULL if not given, which means "text"; borrowed */
    const char     *field;
    DocumentFormat  format;   /* value of the option format=; FORMAT_FOUND if not given: the format is detected */
    TextEncoding    encoding; /* value of the option encoding=; ENCODING_FOUND if not given: the encoding is detected */
    const char    **skip;     /* globs of files and folders to leave out of folders; owned by the caller */
    int             skips;
    /* folder of the output, which is not read even inside an input folder; it may be missing; NULL: none; borrowed */
    const char     *out;
    /* returns 1 if a signal asks to stop; reading then ends with exit code 75; may be NULL */
    int           (*is_stopped)(void);
} DocumentOptions;

typedef struct {
    void (*begin)(void *with, int is_row); /* is_row: 1 for a JSON line or a parquet row, 0 for a whole file */
    void (*text)(void *with, const char *text, size_t bytes);
    void (*end)(void *with);
    void  *with;
} DocumentSink;

/* Finds the input files and detects how each is read. names are files, folders, or "-" for standard input. Functions
 * with a parameter fault return 0, or an exit code (64, 65, 71, 74, 75) with a sentence in fault. */
int documents_find(Documents **found, char **names, int count, const DocumentOptions *options,
                   char fault[DOCUMENT_FAULT_CHARS]);
void documents_free(Documents *d);
/* returns the name of an input for messages: "standard input" for "-" */
const char *documents_input_name(const char *input);
int  documents_have_rows(const Documents *d); /* returns 1 if any input is JSON Lines or parquet */
int  documents_are_empty(const Documents *d); /* returns 1 if all inputs are files of 0 bytes */
/* Copies inputs that can be read only once (pipes) into files of an existing folder. */
int documents_keep_pipes(Documents *d, const char *folder, char fault[DOCUMENT_FAULT_CHARS]);

/* Counts all documents and the bytes of their text. Reads packed files and files of rows once, in constant memory. */
int documents_measure(Documents *d, int64_t *documents, int64_t *bytes, char fault[DOCUMENT_FAULT_CHARS]);
/* Passes the text of all documents to the sink, in parts of any size. Empty rows and empty files are no documents. It
 * is a fault if a file has changed since documents_measure. */
int documents_read(Documents *d, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]);

/* Prints the files that documents_read has read, and those that were left out, with the reason. With over 20 files it
 * prints one line for each kind of files instead. */
void documents_print(const Documents *d, FILE *out);
/* Writes a JSON object for each file that was read, or for each that was left out, with the text `between` between
 * them. Returns the number of objects. */
typedef enum { DOCUMENTS_READ, DOCUMENTS_LEFT_OUT } DocumentList;
int64_t documents_write_json(const Documents *d, DocumentList which, const char *between, FILE *out);

#endif
