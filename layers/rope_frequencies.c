/* rope_frequencies.c - the table of rope's frequencies, made once on the host. */
#include <math.h>

#include "layers/layers.h"
#include "layers/rope_angle.h"

/* Returns a scaled frequency. Pairs of channels that make many rotations within the original context keep theirs; pairs
 * that make few slow down by the factor. Between the two bounds the frequency is a mean of both. */
static double scaled(double frequency, RopeScaling s) {
    double turns = (double)s.original_max_position * frequency / ROPE_TURN;
    if (turns < s.low_freq_factor) return frequency / s.factor;
    if (turns > s.high_freq_factor) return frequency;
    double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    return (1.0 - kept) * frequency / s.factor + kept * frequency;
}

void rope_frequencies(float *frequencies, int64_t D, double theta, RopeScaling scaling) {
    CHECK(D >= 2 && D % 2 == 0 && theta > 0, "%lld channels of a head turn in pairs, theta %g", (long long)D, theta);
    CHECK(scaling.factor == 0 || (scaling.factor > 0 && scaling.low_freq_factor < scaling.high_freq_factor),
          "frequencies by 1/%g from %g to %g turns", scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor);
    for (int64_t i = 0; i < D / 2; i++) {
        double frequency = pow(theta, -2.0 * (double)i / (double)D);
        frequencies[i] = (float)(scaling.factor == 0 ? frequency : scaled(frequency, scaling));
    }
}
