// Attention of a few tokens over a cache of keys and values (what ggml calls flash attention).
//
// The cache is read in chunks of CHUNK cells, each once for all tokens and all heads that share it.
// A chunk gives, for each query, its largest score, the sum of its weights and the weighted sum of
// its values; the chunks are then put together in their order. Where a chunk begins depends on the
// cell alone, and hidden cells weigh nothing, so a query's result does not depend on the number of
// tokens, of threads, or of cells behind the last visible one.
#pragma once

#include "formats.h"

namespace edge {

constexpr int64_t CHUNK = 128;

struct Cache {           // keys or values: [head][cell][dimension]
    int          type;   // F16, BF16, F32 or Q8_0
    const char * data;
    size_t       cell_bytes, head_bytes;  // distance of cells, of heads
    int64_t      size;   // dimensions
};

struct Attention {
    Cache   k, v;
    int64_t n_cells, n_tokens, n_heads, n_kv_heads;
    const char * q;                      // floats: [head][token][dimension]
    size_t       q_token_bytes, q_head_bytes;
    const char * mask;                   // F16, [token][cell]; NULL: all visible
    size_t       mask_token_bytes, mask_head_bytes;
    int64_t      mask_heads;
    const float * sinks;                 // one for each head, or NULL
    float        scale, softcap, max_bias;
    float *      out;                    // [token][head][dimension of v], contiguous
};

bool   has_attention(const Attention & a);
size_t attention_scratch_bytes(const Attention & a);   // of each thread
size_t attention_partial_bytes(const Attention & a);   // shared

// First for all threads, then, behind a barrier, the second.
void attention_chunks(const Attention & a, int thread, int threads, char * scratch, char * partials);
void attention_combine(const Attention & a, int thread, int threads, const char * partials);

}  // namespace edge
