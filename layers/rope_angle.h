/* rope_angle.h - the angles of rotary positions, for the CPU's and the CUDA side of rope.
 *
 * A position times a frequency may be many full rotations, and f32 would keep few digits of the angle. So f64 removes
 * the full rotations, and the rest, within half a rotation, is f32. Its error is below 2e-7 at any position.
 */
#ifndef TRAIN_GPT_LAYERS_ROPE_ANGLE_H
#define TRAIN_GPT_LAYERS_ROPE_ANGLE_H

#define ROPE_TURN 6.283185307179586 /* 2 pi */

/* The angle in radians of `turns` rotations, without the full ones. A macro, because kernels of a GPU and the host use
 * it. */
#define ROPE_RADIANS(turns) ((float)(((turns) - rint(turns)) * ROPE_TURN))
#define ROPE_TURNS(position, frequency) ((double)(position) * (double)(frequency) * (1.0 / ROPE_TURN))

#endif
