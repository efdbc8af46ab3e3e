/* config_load.h - a Config in the making: each option's state and place. Private to run/config/. */
#ifndef TRAIN_GPT_RUN_CONFIG_CONFIG_LOAD_H
#define TRAIN_GPT_RUN_CONFIG_CONFIG_LOAD_H

#include "run/config/config.h"
#include "run/config/faults.h"
#include "run/config/options.h"

typedef struct {
    int   given;    /* by the file or an override                                                         */
    int   faulty;   /* has no usable value: a fault about it is in the list, rules that need it are skipped */
    Where where;    /* of the value */
} Given;

typedef struct {
    Config *config;
    Given  *given;  /* owned [OPTION_COUNT], parallel to OPTIONS */
    Where   file;   /* of the config file as a whole             */
    Faults  faults;
    int     is_elsewhere; /* for another machine and build than these */
} ConfigLoad;

Given *config_given(ConfigLoad *load, const char *key);

/* --- config_walk.c: from a tree to options ------------------------------------------------------------------------ */

/* The walk's position in json_parse_all()'s two lists, both in file order; json NULL: no places are known. */
typedef struct {
    const Json *json;
    int         next; /* the entry of the next value; 0: at the root      */
    int         listed; /* soft faults that are in the list already */
} Places;

/* Sets every option of an object that stands under section ("" for the root); faults go to the list. */
void config_walk(ConfigLoad *load, const cJSON *object, const char *section, Where where, Places *places);
/* Adds the soft faults that the walk has not reached. */
void config_tell_rest(ConfigLoad *load, Where where, Places *places);
/* One override, "key=value". */
void config_override(ConfigLoad *load, const char *argument);

/* --- config_rules.c: rules between options ------------------------------------------------------------------------ */

/* Needs every option set. ranks 0: not known. */
void config_rules(ConfigLoad *load, int ranks);
/* Applies only the rules about the shape of the model. */
void config_rules_of_shape(ConfigLoad *load);

/* --- outer_rules.c: those of section "outer", and what all rules share --------------------------------------------- */

/* The keys of a rule, in the order in which rule_where prefers them. Ends with NULL. */
typedef const char *Keys[10];

void  rules_of_model(ConfigLoad *load); /* model_rules.c: of model.arch */
void  rules_of_outer(ConfigLoad *load);
void  rules_of_fp8(ConfigLoad *load);   /* fp8_rules.c: of precision = "fp8" */
void  rules_of_optimizer(ConfigLoad *load);  /* optimizer_rules.c: of optimizer.name */
const char *optimizer_fault(const Config *c); /* of a run that its update rule is not built for; NULL: none */
int   rule_usable(ConfigLoad *load, const Keys keys); /* none of them is faulty */
/* The place of the first key that an override gives, else of the first in the file, else the file. */
Where rule_where(ConfigLoad *load, const Keys keys);
/* "500 and 1000": the multiples of `of` around value, the one above if there is none below. Returns out. */
const char *nearest_multiples(char out[64], int64_t value, int64_t of);

#endif
