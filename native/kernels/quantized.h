// Products of quantised weights with a few rows of activations.
#pragma once

#include "formats.h"

namespace edge {

// What the product needs to know of one weight format. `blocks` are of 32 columns, of 256 in K formats.
struct Format {
    Type   type;
    int    max_group;                // tokens that one pass over a panel serves; at most 16
    int    block;                    // columns of a block
    size_t block_bytes;              // of one row, in the file
    size_t panel_block_bytes;        // of 16 rows, in a panel, scales and quants
    size_t scale_bytes;              // of these, the scales
    size_t activation_bytes;         // of one block of one token, quantised

    // Put one row of `blocks` blocks into its place in a zeroed panel.
    void (*pack_row)(const void * row, int64_t blocks, int row_of_panel, uint8_t * panel);
    // Quantise blocks [first, last) of n <= max_group tokens; x[t] is a row of floats.
    void (*quantize)(const float * const * x, int n, int64_t first, int64_t last, uint8_t * activations);
    // y[t][0 .. rows) of one panel for n <= max_group tokens; rows <= PANEL.
    void (*product)(const uint8_t * panel, int64_t blocks, const uint8_t * activations, int n,
                    float * const * y, int rows);
};

// NULL where this type, or this build's instruction sets, have no kernel.
const Format * format(int type);

inline size_t scales_bytes(const Format * f, int64_t blocks) {
    return ((size_t) blocks * f->scale_bytes + 63) / 64 * 64;
}
inline size_t panel_bytes(const Format * f, int64_t blocks) {
    return scales_bytes(f, blocks) + (size_t) blocks * (f->panel_block_bytes - f->scale_bytes);
}
inline size_t packed_bytes(const Format * f, int64_t rows, int64_t columns) {
    return (size_t) ((rows + PANEL - 1) / PANEL) * panel_bytes(f, columns / f->block);
}
// Put a whole matrix, as it lies in a GGUF file, into panels; rows beyond the last are zero.
void pack(const Format * f, int64_t rows, int64_t columns, const void * from, uint8_t * to);

// The groups in which n tokens are worked on: as equal as possible, none above the format's max_group.
int     group_count(const Format * f, int64_t n);
int64_t group_start(const Format * f, int64_t n, int group);  // first token of this group
int     group_size(const Format * f, int64_t n, int group);

}  // namespace edge
