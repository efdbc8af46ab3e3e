/* queue.h - shared by the runtime's memory and its streams. */
#pragma once
#include <functional>

#include "engine.h"

namespace emu {

cudaError_t remember(cudaError_t error); /* for cudaGetLastError; returns it */
/* Does the operation now, or records it where the stream is being captured. */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation);
/* For calls that the host waits in, or that the default stream takes part in: an error, and the end of the capture,
 * while there is one. */
cudaError_t refuse_while_capturing();

}  // namespace emu
