/* rope_angle.h - the angles of rotary positions, for the CPU's and the CUDA side of rope.
 *
 * A position times a frequency may be many turns, of which f32 would keep a few digits: f64 takes the whole turns off,
 * and what is left, within half a turn, is f32. Its error is below 2e-7 at any position.
 */
#ifndef TRAIN_GPT_LAYERS_ROPE_ANGLE_H
#define TRAIN_GPT_LAYERS_ROPE_ANGLE_H

#define ROPE_TURN 6.283185307179586 /* 2 pi */

/* An expression, since a GPU's kernels and the host read it: radians of `turns` less the whole ones. */
#define ROPE_RADIANS(turns) ((float)(((turns) - rint(turns)) * ROPE_TURN))
#define ROPE_TURNS(position, frequency) ((double)(position) * (double)(frequency) * (1.0 / ROPE_TURN))

#endif
