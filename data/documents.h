/* documents.h - the documents of a list of inputs, in order: each text file is one, each line of a JSON Lines file,
 * each row of a parquet file. Text and JSON Lines may be packed and in any encoding of data/text_file.h; a folder
 * stands for all files below it, by name.
 *
 * A file holds rows where the user says so (field=, format=), its name ends in .jsonl, .ndjson or .parquet (before
 * .gz, .zst, .xz), its content is parquet, or its first line that is not blank is a whole JSON object. Such a file
 * gives rows or is refused; it is never read as text. All other text is text, as is a file named .txt, .md or
 * .text. A file that is no text is refused where it was named, and left out of a folder. / */
#ifndef TRAIN_GPT_DATA_DOCUMENTS_H
#define TRAIN_GPT_DATA_DOCUMENTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "data/text_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Documents Documents;
enum { DOCUMENT_FAULT_CHARS = 2048, DOCUMENT_LONGEST_LINE = 1 << 28 /* bytes of a line of JSON */ };

typedef enum { FORMAT_FOUND, FORMAT_TEXT, FORMAT_JSONL, FORMAT_PARQUET } DocumentFormat;
extern const char
    *const DOCUMENT_FORMATS[]; /* "text", ...: the values of format=, from FORMAT_TEXT on; ends with NULL */

/* How inputs are read: what the user has said of them. */
typedef struct {
    const char     *field;    /* of JSON Lines and parquet; borrowed; NULL: not given, "text" */
    DocumentFormat  format;   /* FORMAT_FOUND: not given */
    TextEncoding    encoding; /* ENCODING_FOUND: not given */
    const char    **skip;     /* globs of files and folders that are left out of folders; owned by the caller */
    int             skips;
} DocumentOptions;

typedef struct {
    void (*begin)(void *with, int is_row); /* a line or a row; 0: a whole file */
    void (*text)(void *with, const char *text, size_t bytes);
    void (*end)(void *with);
    void  *with;
} DocumentSink;

/* names: files, folders, "-" for standard input. Finds the files and looks into each. Every function here returns
 * 0, or an exit code (64, 65, 71, 74) and in fault the whole sentence. */
int documents_find(Documents **found, char **names, int count, const DocumentOptions *options,
                   char fault[DOCUMENT_FAULT_CHARS]);
void documents_free(Documents *d);
const char *documents_input_name(const char *input); /* as messages call it: "-" is "standard input" */
int  documents_have_rows(const Documents *d); /* not all are whole files */
int  documents_are_empty(const Documents *d); /* all are files without a byte */
/* Copies inputs that can be read once only (pipes) into the folder, which exists. */
int documents_keep_pipes(Documents *d, const char *folder, char fault[DOCUMENT_FAULT_CHARS]);

/* Counts all documents and the bytes of their text. Reads what is packed or has rows, once, in constant memory. */
int documents_measure(Documents *d, int64_t *documents, int64_t *bytes, char fault[DOCUMENT_FAULT_CHARS]);
/* Passes all text on, in parts of any size. Empty rows are none; an empty file is none. A file that has changed since
 * documents_measure is a fault. */
int documents_read(Documents *d, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]);

/* Prints what documents_read has read, and what was left out and why. Over 20 files are a line for each kind, and the
 * names of the rarer kinds' files. */
void documents_print(const Documents *d, FILE *out);
/* Writes the same for each file as JSON objects: those read, or those left out, with `between` between two. Returns
 * how many. */
typedef enum { DOCUMENTS_READ, DOCUMENTS_LEFT_OUT } DocumentList;
int64_t documents_write_json(const Documents *d, DocumentList which, const char *between, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
