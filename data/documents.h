/* documents.h - the documents of a list of inputs, in order: each text file is one, each line of a JSON Lines file, each row
 * of a parquet file. Text and JSON Lines may be packed by gzip, zstd or xz; a folder stands for all files below it, by name.
 *
 * The content of a file decides how it is read, with two exceptions by the end of its name (before .gz, .zst, .xz): .txt and
 * .md are always text; .jsonl, .ndjson and .json are JSON Lines.
 */
#ifndef TRAIN_GPT_DATA_DOCUMENTS_H
#define TRAIN_GPT_DATA_DOCUMENTS_H

#include <stdint.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Documents Documents;
enum { DOCUMENT_FAULT_CHARS = 1024, DOCUMENT_LONGEST_LINE = 1 << 28 /* bytes of a line of JSON */ };

typedef struct {
    void (*begin)(void *with, int is_row); /* a line or a row; 0: a whole file */
    void (*text)(void *with, const char *text, size_t bytes);
    void (*end)(void *with);
    void  *with;
} DocumentSink;

/* names: files, folders, "-" for standard input. field: of JSON Lines and parquet, NULL: "text". binary: files that are
 * neither text nor anything known are read as bytes, else refused. Finds the files and looks into each. Every function
 * here returns 0, or an exit code (64, 65, 74) and in fault the whole sentence. */
int  documents_find(Documents **found, char **names, int count, const char *field, int binary, char fault[DOCUMENT_FAULT_CHARS]);
void documents_free(Documents *d);
const char *documents_input_name(const char *input); /* as messages call it: "-" is "standard input" */
int  documents_have_rows(const Documents *d); /* not all are whole files */
int  documents_are_empty(const Documents *d); /* all are files without a byte */
/* Copies inputs that can be read once only (pipes) into the folder, which exists. */
int documents_keep_pipes(Documents *d, const char *folder, char fault[DOCUMENT_FAULT_CHARS]);

/* Counts all documents and the bytes of their text. Reads what is packed or has rows, once, in constant memory. */
int documents_measure(const Documents *d, int64_t *documents, int64_t *bytes, char fault[DOCUMENT_FAULT_CHARS]);
/* Passes all text on, in parts of any size. Empty rows are none; an empty file is none. */
int documents_read(const Documents *d, DocumentSink sink, char fault[DOCUMENT_FAULT_CHARS]);

#ifdef __cplusplus
}
#endif
#endif
