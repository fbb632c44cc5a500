// Attention over a cache of keys and values (what ggml calls flash attention).
//
// The cache is read in chunks of CHUNK cells, each once for all tokens and all heads that share it.
// A chunk gives, for each query, its largest score, the sum of its weights and the weighted sum of
// its values; the chunks are then put together in their order. A query's result does not depend on
// the number of tokens, of threads, or of cells that it does not see: hidden cells weigh nothing, and
// a cell counts by its place among those that are seen (see Order), not by where it lies.
#pragma once

#include "formats.h"

namespace edge {

constexpr int64_t CHUNK = 128;
constexpr int64_t MOST_TOKENS = 128, MOST_QUERIES = 512;  // of one Attention; queries: tokens times heads that share

// Where the cells lie that a token sees. Those of a text lie one behind the other. A branch of a tree
// sees the text, then, behind cells of other branches, its own: these count as if they lay directly
// behind the text, which is where they would lie if the branch alone had been decoded.
struct Order {
    static constexpr int MOST = 512;
    int64_t start;   // cells before this one count by their index; a multiple of `align`
    int     n;       // cells that count from `start` on; 0: all are in their places
    int32_t cell[MOST];

    // From a row of a mask, F16 or F32 with -infinity for hidden cells.
    void find(int mask_type, const void * mask, int64_t n_cells, int64_t align);
    // From a row that softmax() wrote, where hidden cells have the weight -0.
    void find_in_weights(const float * weights, int64_t n_cells, int64_t align);
};

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

// One row of attention weights out of scores, as ggml's soft_max with its mask, slope and sink:
// y[i] = e^(scale x[i] + slope mask[i]) over their sum, -0 where the mask hides. Zeros at the end of a row change nothing.
struct Softmax {
    int64_t n;
    float   scale, slope;
    int     mask_type;   // F16 or F32
    const char * mask;   // or NULL
    const float * sink;  // or NULL
};
void softmax(const Softmax & s, const float * x, float * y);

float alibi_slope(int64_t head, int64_t n_heads, float max_bias);

}  // namespace edge
