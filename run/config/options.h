/* options.h - the option table: one row per key of the config. Parser, defaults, ranges, --help, the JSON Schema, the
 * resolved copy and the comparison at a resume all use these rows. A new option needs a field in Config and a row here.
 */
#ifndef TRAIN_GPT_RUN_CONFIG_OPTIONS_H
#define TRAIN_GPT_RUN_CONFIG_OPTIONS_H

#include "core/json.h"
#include "run/config/config.h"

typedef enum {
    OPTION_IGNORED, /* any string; it is not stored                     */
    OPTION_TEXT,    /* a string, stored as const char *; max: most bytes, min: fewest bytes */
    OPTION_WORD,    /* one of `words`, stored as const char *           */
    OPTION_CHOICE,  /* one of `words`, stored as its index in an int    */
    OPTION_FLAG,    /* true or false, stored as int 1 or 0              */
    OPTION_INTEGER, /* a whole number, stored as int64_t                */
    OPTION_REAL,    /* a number, stored as double                       */
    OPTION_LIST,    /* a string or a list of strings, stored as StringList; min: fewest strings */
    /* a string, a list of strings, or a blend: a list of data sources {"path", "weight", "until_tokens"} */
    OPTION_SOURCES
} OptionType;

typedef enum {
    NEED_NONE,     /* the default is `fallback`                                   */
    NEED_ALWAYS,   /* the key has no default and must be set                      */
    NEED_MODEL,    /* the key or a preset must be set                             */
    NEED_DERIVED   /* the default follows from other values; `shown` describes it */
} OptionNeed;

typedef struct {
    const char        *key;       /* name of the key, such as "run.steps" */
    OptionType         type;
    size_t             offset;    /* offset of the field in Config */
    const char        *fallback;  /* default as JSON; NULL: `need` says why there is none */
    OptionNeed         need;
    const char        *shown;     /* describes a default that follows from other values */
    double             min, max;
    int                half_open; /* 1: max itself is not allowed */
    const char *const *words;     /* allowed words; ends with NULL */
    int                fixed;     /* 1: the value must not change at a resume */
    const char        *optimizer; /* the only optimizer.name that reads the key; NULL: all */
    const char        *help;
    const char        *example;   /* a value to show in help, if there is no default */
} Option;

extern const Option OPTIONS[];
extern const int    OPTION_COUNT;

const Option *option_find(const char *key);       /* returns the option with this key, or NULL if there is none */
/* Returns the default, as JSON, of an option that the program no longer has, or NULL for any other key. Saved configs
 * contain this value, so it is accepted and does nothing. */
const char   *option_left(const char *key);
/* Returns the k-th section ("run", "model", ...), or NULL after the last. */
const char   *option_section(int k);
int           option_is_section(const char *name);
int           option_in_section(const Option *o, const char *section);
const char   *option_home(const Option *o);       /* section of the key, such as "run"; "" at the top level */
const char   *option_name(const Option *o);       /* the key without its section, such as "steps" */

enum { ALLOWED_BYTES = 480 };
typedef struct {
    char text[ALLOWED_BYTES + 2 * SHOWN_BYTES]; /* sentence that says what is wrong; it begins with the key */
    int  element;                               /* index of the faulty list element; -1: the whole value */
} OptionFault;
/* Sets the field of an option from a JSON value. Returns 1, or 0 with a fault. Strings are copied and live as long as
 * the config. */
int option_set(const Option *o, Config *config, const cJSON *value, OptionFault *fault);
/* Sets the field of an option to its default (`fallback`). Without a default, sets it to 0, "" or an empty list. */
void option_set_default(const Option *o, Config *config);
/* Returns the value of an option as JSON. The caller deletes it. Exit 71 if memory runs out. */
cJSON *option_to_json(const Option *o, const Config *config);

/* Returns the default of an option as text: "600", "none", "required". */
const char *option_default_text(const Option *o);
/* Writes the allowed values of an option, such as "an integer from 1 to 8" or "\"ring\" or \"mpi\"". Returns out. */
char *option_allowed(const Option *o, char out[ALLOWED_BYTES]);

/* The presets of models, by family and size. `make` embeds the files of configs/presets in the program. Each file is a
 * part of a config: sections, with the keys that the preset sets. */
extern const char *const PRESET_NAMES[]; /* names of the presets: "" first, for none; ends with NULL */
extern const char *const PRESET_TEXTS[]; /* text of the file of each preset, in the order of PRESET_NAMES */
const char *preset_text(const char *name);        /* returns the text of the preset's file, or NULL if there is no such
                                                   * preset */

/* Returns a copy of text that lives as long as the config. */
const char *config_keep(Config *config, const char *text);

/* Checks a blend, a list of data sources with weights. Stages must be in order, weights must sum to 1, no source may be
 * twice in a stage, and there are at most BLEND_SOURCES. Returns 1, or 0 with a fault. */
int sources_check(const char *key, const StringList *list, OptionFault *fault);

#endif
