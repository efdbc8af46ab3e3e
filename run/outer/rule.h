/* rule.h - the weights that a server holds, the rule by which deltas of islands change them, and how they travel back.
 * Islands are separate jobs that train the same model. This file uses no sockets.
 *
 * d is a delta: the weights x that an island began a round with, minus its masters (fp32 weights) at the end. All rules
 * work element by element in double. A sum over islands has one order, so the bits do not depend on threads. In these
 * formulas d_k is the delta of island k, and N is the number of islands. eta is the learning rate, mu the momentum, and
 * v the momentum's state.
 *   wait = all   d = sum w_k d_k / sum w_k in the order of islands, w_k: tokens of island k; v = mu v + d;
 *                x -= eta (d + mu v) (DiLoCo, arXiv 2311.08105; with mu = 0, eta = 1 x becomes the mean of the islands'
 *                masters)
 *   wait = none  each d / N as it arrives, with weight w = 1 / (1 + staleness): x -= eta w d / N. staleness: number of
 *                full rounds (N arrivals each) since the island got the x from which d starts. The N-th arrival adds
 *                momentum, once for all: v = mu v + the sum of the last N w d / N; x -= eta mu v (delayed Nesterov,
 *                arXiv 2401.09135). If N deltas start from one x, they together change it as a round of wait = all
 *                with equal w_k does.
 */
#ifndef TRAIN_GPT_RUN_OUTER_RULE_H
#define TRAIN_GPT_RUN_OUTER_RULE_H

#include "model/optimizer.h"
#include "run/config/config.h"
#include "run/outer/messages.h"

/* --- arithmetic on arrays ----------------------------------------------------------------------------------------- */

typedef struct { double learning_rate, momentum; } OuterRule;

/* Computes the weighted mean of the deltas (weight changes) of all islands (training jobs). delta: [islands] arrays
 * [elems]. weight: [islands]. mean [elems] may be one of the deltas. */
void outer_mean(float *mean, const float *const *delta, const double *weight, int islands, int64_t elems);

/* outer.wait=all: applies d, the mean delta, with Nesterov momentum. Changes the momentum v and the weights x. */
void outer_step(OuterRule rule, float *x, float *v, const float *d, int64_t elems);

/* outer.wait=none: applies d, the delta of one island, when it arrives. share: 1 / ((1 + staleness) N), where N is the
 * number of islands. staleness: number of rounds since the island fetched the weights that it trained from. waiting:
 * sum of share * d since momentum was last applied, zero at first. */
void outer_arrival(OuterRule rule, float *x, float *waiting, const float *d, double share, int64_t elems);
/* outer.wait=none: applies momentum after the last delta of a round. waiting: weighted sum of the deltas applied in the
 * round; becomes zero. Changes the momentum v and the weights x. */
void outer_momentum(OuterRule rule, float *x, float *v, float *waiting, int64_t elems);

/* Adds the squares of the delta d (a weight change) to *sum. Each block of OUTER_BLOCK elements is added in one order,
 * and the block sums are added exactly. So any division of a delta at multiples of OUTER_BLOCK gives the same sum. The
 * sum is not finite if an element is not. */
enum { OUTER_BLOCK = 1024 };
void outer_squares(const float *d, int64_t elems, Exact *sum);

/* --- several servers ---------------------------------------------------------------------------------------------- */

/* Returns the first element of the model that server `part` of `parts` has: a multiple of OUTER_BLOCK. Returns elems
 * for part = parts. */
int64_t outer_part_begin(int64_t elems, int part, int parts);

/* Functions for outer.server, a list such as "a:4300,b:4300": one address for each part of the model, in order. */
enum { OUTER_ADDRESS_BYTES = 4096 };
int         outer_servers(const char *list); /* returns the number of addresses in the list; 1 for "" */
/* Writes address number `entry` of the list, from 0, to out [OUTER_ADDRESS_BYTES]. Returns out. */
const char *outer_server(const char *list, int entry, char *out);

/* --- the weights ---------------------------------------------------------------------------------------------------
 * A server holds the weights x and their momentum, as ranges of elements in the model's flat order (core/layout.h).
 * With one server they lie in the masters and states of an optimizer of one rank in host memory, as a checkpoint has
 * them: x in the masters, the momentum of the rule in m. v has zeros. With wait=none v has the sum of the deltas that
 * were applied since the last momentum. With send=gradients m and v are the moments of AdamW. With several servers each
 * has a part of the model. The part of a server other than the first lies in one block of memory. */

/* The tensors that a server holds: the weights, their momentum, and the weighted sum of the deltas that were applied
 * since momentum was last applied. The order is that of optimizer_tensor. */
typedef enum { WEIGHTS_X, WEIGHTS_MOMENTUM, WEIGHTS_WAITING, WEIGHTS_TENSORS } ServerTensor;

typedef struct {
    float  *at[WEIGHTS_TENSORS];   /* [elems] values of each of the server's tensors (ServerTensor); borrowed */
    int64_t offset, elems;         /* index of the first element in the model; number of elements */
    int     decays;                /* 1 if the weight decay of AdamW applies to these elements */
    float   rate;                  /* factor of AdamW's learning rate for these elements */
} WeightsRun;

typedef struct {
    int64_t     first, elems;      /* index of the first element in the model; number of elements */
    WeightsRun *run;               /* [runs] adjacent ranges of elements that together are the part of this server;
                                    * owned */
    int         runs;              /* number of ranges in `run` */
} ServerWeights;

/* Returns a server's part of the model, elements [first, first + elems). The values lie in the memory of optimizer o.
 * If o is NULL, they lie in `memory` [WEIGHTS_TENSORS, elems]. The memory is borrowed. shards describes the whole model
 * on one rank; it need not have memory of its own. */
ServerWeights server_weights_create(const Shards *shards, const Optimizer *o, float *memory, int64_t first,
                                    int64_t elems);
void          server_weights_destroy(ServerWeights *w);

/* server_weights_read copies elements [offset, offset + elems) of a server's tensor to `to`. server_weights_write
 * copies them from `from` to the tensor. */
void server_weights_read(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, float *to);
void server_weights_write(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, const float *from);

/* Applies a rule to a server's part of the weights: a rule at the head of rule.h, or AdamW (layers.h). step: the rule
 * and its rates. d [elems] is the delta; NULL for STEP_MOMENTUM. Adds to *squares the squares of d (STEP_MEAN) or of
 * the sum of deltas that wait for momentum (STEP_MOMENTUM). Other rules do not read squares. */
void server_weights_step(const ServerWeights *w, const Step *step, float *d, Exact *squares);

/* --- the change of a round: outer.compress with wait=all -----------------------------------------------------------
 * The server sends the rounded change of x in a round to islands that hold the x before it. Server and islands hold the
 * same x, to the bit: each adds the same rounded change to it. The server keeps the rounding error and adds it to the
 * next change (error feedback, as in island_link.h). An island that lacks the x of the round before fetches all of x. A
 * checkpoint does not hold the rounding error. After a resume the error is zero.
 *
 * A change is stored in blocks of INT8_BLOCK elements, from the first element of the part on. A frame of it is whole
 * blocks, or ends at the end of the part. */

typedef struct {
    FrameType type;          /* type of the values; FRAME_F32 if no changes are kept, and the other fields are unused */
    int64_t   first, elems;  /* index of the first element of this server's part of the model; number of elements */
    int64_t   round;         /* number of the round that begins with the weights after the last change; -1 if there was
                              * no change */
    /* [elems] rounding errors that the next change adds. Between round_change_begin and round_change_end: the weights
     * before the step. Owned */
    float    *rest;
    char     *packed;        /* last change of the weights in the form in which it is sent: its blocks, one after
                              * another; owned */
} RoundChange;

/* Returns the type in which deltas (weight changes of training jobs) are sent. The server sends changes of its weights
 * in this type, too, if it keeps them. */
FrameType   round_change_type(const Config *c);
size_t      round_change_bytes(const Config *c, size_t elems); /* returns the bytes of host memory of a RoundChange
                                                                * of elems weights; 0 if the server sends whole weights
                                                                * instead of their changes */
RoundChange round_change_create(const Config *c, const ServerWeights *w);
void        round_change_destroy(RoundChange *c);

/* Call round_change_begin before the step that makes new weights x, and round_change_end after it. round_change_end
 * sets x to the old x plus the rounded change, which islands then fetch as the change of round `round`. */
void round_change_begin(RoundChange *c, const ServerWeights *w);
void round_change_end(RoundChange *c, const ServerWeights *w, int64_t round);

/* Returns the payload of a frame with elements [offset, offset + elems) of the last change of the weights. Returns NULL
 * if the server has no such elements, or if they are not whole blocks of INT8_BLOCK. */
const void *round_change_frame(const RoundChange *c, int64_t offset, int64_t elems);

/* Adds a change to the weights x. Server and islands both call it. It computes in fp32, so that all get the same
 * bits. */
void round_change_add(float *x, const float *change, int64_t elems);

/* --- the weights that one island holds: outer.compress with wait=none ----------------------------------------------
 * Each island's weights have a different age, so the server keeps what it has sent to each island. First it sends all
 * of x. After that it sends change = rounded(x - held) and computes held += change. The island adds the same change to
 * the same numbers, so both have the same bits. The error of a rounding stays in x - held, so the next change contains
 * it (error feedback). The server does not round x itself.
 *
 * The server allocates this memory at the first GET of an island, if the island's own config has outer.compress. */

typedef struct {
    FrameType type;          /* type of the values of a change: bf16 or int8 */
    int64_t   first, elems;  /* index of the first element in the model; number of elements */
    int64_t   fetched;       /* number of weights that were sent so far; a weight sent twice counts once */
    /* [elems] the weights as the island (training job) holds them; owned. NULL: the server does not know them, and the
     * other fields mean nothing */
    float    *x;
} HeldWeights;

/* Returns the type in which changes of the weights are sent, or FRAME_F32 if islands fetch all weights instead. */
FrameType held_type(const Config *c);
/* Returns the bytes in which a server records the weights that one island holds; 0 if it records none. */
size_t    held_bytes(const Config *c, size_t elems);

/* Allocates an empty record of the weights [first, first + elems) that one island holds. Returns 0 if memory is not
 * enough. */
int  held_begin(HeldWeights *h, FrameType type, int64_t first, int64_t elems);
void held_forget(HeldWeights *h);

/* Records that the server has sent the island elements of the weights x, from `offset` on. It has sent them as they
 * are, in fp32 and not as a compressed change. */
void held_fetch(HeldWeights *h, int64_t offset, const float *x, int64_t elems);
int  held_is_whole(const HeldWeights *h);
/* Replaces weights x [elems] by their change since they were sent to the island. Writes the change to payload
 * [frame_value_bytes], and records it as sent. */
void held_change(HeldWeights *h, int64_t offset, float *x, int64_t elems, void *payload);

#endif
