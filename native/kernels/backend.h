// What llama.cpp sees of these kernels: one more buffer type of its CPU back end, whose weights lie
// in panels, and products and attention on tensors that stay as they are.
#pragma once

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Parts that can be switched on and off, as bits.
#define EDGE_TR_WEIGHTS   1  // quantised weights; asked for when a model is opened
#define EDGE_TR_DENSE     2  // F16, BF16, F32 weights, and the cache without flash attention
#define EDGE_TR_ATTENTION 4  // flash attention

// Set the parts that are active and return those that were; -1 only asks. What the instruction sets
// of this build do not cover stays off. The environment variable EDGE_TR_KERNELS (0 to 7) sets the
// first value.
GGML_BACKEND_API int edge_tr_kernels(int parts);

// A JSON object: version, isa, and the names of the weight types.
GGML_BACKEND_API const char * edge_tr_kernels_info(void);

ggml_backend_buffer_type_t edge_tr_buffer_type(void);

#ifdef __cplusplus
}
#endif
