// Products of F16, BF16 and F32 rows, as they lie in memory, with a few rows of floats: weights
// that are not quantised, and the cache of keys and values in attention.
#pragma once

#include "formats.h"

namespace edge {

bool has_dense(int type);

// A second part of the columns that lies elsewhere; its `columns` are a multiple of LANES.
struct More {
    const char *          w;
    size_t                stride;
    int64_t               columns;
    const float * const * x;
};

// y[t][r] = sum over c of w[r][c] * x[t][c], for `rows` rows that lie `stride` bytes apart and n
// tokens. The order of summation depends on `columns` alone; columns that are zero at the end of x
// change nothing. With `more`, `columns` is a multiple of LANES too.
void dense_product(int type, const char * w, size_t stride, int64_t rows, int64_t columns,
                   const float * const * x, int n, float * const * y, const More * more = nullptr);

}  // namespace edge
