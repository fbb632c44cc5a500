#include "dense.h"

namespace edge {

#if defined(EDGE_KERNELS)

constexpr int64_t AHEAD = 512;  // bytes; each row is asked for this far before it is needed

template <Type TYPE> struct Element;
template <> struct Element<F32> {
    typedef float T;
    EDGE_INLINE floats get(const float * p) { return load(p); }
};
template <> struct Element<F16> {
    typedef uint16_t T;
    EDGE_INLINE floats get(const uint16_t * p) { return load_f16(p); }
};
template <> struct Element<BF16> {
    typedef uint16_t T;
    EDGE_INLINE floats get(const uint16_t * p) { return load_bf16(p); }
};

// Rows of a tile for N tokens: the sums fit the registers, and one chain of additions never waits
// for itself.
#    if defined(EDGE_AVX2)
constexpr int MOST = 4;     // tokens of a tile
constexpr int ABREAST = 2;  // tokens of turned rows
constexpr int tile_rows(int n) { return n == 1 ? 8 : n == 2 ? 4 : 2; }
#    else
constexpr int MOST = 6;
constexpr int ABREAST = 4;
constexpr int tile_rows(int n) { return n <= 2 ? 8 : 4; }
#    endif

template <Type TYPE, int R, int N>
static void tile(const char * w, size_t stride, int64_t columns, const float * const * x, float * const * y, int64_t row, const More * more, int t0) {
    using E = Element<TYPE>;
    using T = typename E::T;
    const T * p[R];
    for (int r = 0; r < R; r++) p[r] = (const T *) (w + (size_t) (row + r) * stride);
    floats sum[R * N];
    for (int i = 0; i < R * N; i++) sum[i] = zero();
    const int64_t whole = columns / LANES * LANES;
    for (int64_t c = 0; c < whole; c += LANES) {
        floats v[R];
        for (int r = 0; r < R; r++) {
            v[r] = E::get(p[r] + c);
            prefetch((const char *) (p[r] + c) + AHEAD);
        }
        for (int t = 0; t < N; t++) {
            const floats a = load(x[t] + c);
            for (int r = 0; r < R; r++) sum[t * R + r] = fma(v[r], a, sum[t * R + r]);
        }
    }
    if (more) {
        for (int64_t c = 0; c < more->columns; c += LANES) {
            floats v[R];
            for (int r = 0; r < R; r++) v[r] = E::get((const T *) (more->w + (size_t) (row + r) * more->stride) + c);
            for (int t = 0; t < N; t++) {
                const floats a = load(more->x[t0 + t] + c);
                for (int r = 0; r < R; r++) sum[t * R + r] = fma(v[r], a, sum[t * R + r]);
            }
        }
    } else if (whole < columns) {  // the last few, with zeros behind them
        const size_t left = (size_t) (columns - whole);
        floats v[R];
        for (int r = 0; r < R; r++) {
            T last[LANES] = {};
            memcpy(last, p[r] + whole, left * sizeof(T));
            v[r] = E::get(last);
        }
        for (int t = 0; t < N; t++) {
            float last[LANES] = {};
            memcpy(last, x[t] + whole, left * sizeof(float));
            const floats a = load(last);
            for (int r = 0; r < R; r++) sum[t * R + r] = fma(v[r], a, sum[t * R + r]);
        }
    }
#    if defined(EDGE_AVX512)
    if constexpr (R * N > 2) {
        float sums[(R * N + 15) / 16 * 16];
        for (int i = 0; i < R * N; i += 16) {
            floats all[16];
            for (int j = 0; j < 16; j++) all[j] = i + j < R * N ? sum[i + j] : zero();
            store(sums + i, reduce16(all));
        }
        for (int t = 0; t < N; t++) memcpy(y[t] + row, sums + t * R, R * sizeof(float));
        return;
    }
#    endif
    for (int t = 0; t < N; t++) {
        for (int r = 0; r < R; r++) y[t][row + r] = reduce(sum[t * R + r]);
    }
}

template <Type TYPE, int N>
static void rows_n(const char * w, size_t stride, int64_t first, int64_t last, int64_t columns,
                   const float * const * x, float * const * y, const More * more, int t0) {
    constexpr int R = tile_rows(N);
    int64_t row = first;
    for (; row + R <= last; row += R) tile<TYPE, R, N>(w, stride, columns, x, y, row, more, t0);
    for (; row < last; row++) tile<TYPE, 1, N>(w, stride, columns, x, y, row, more, t0);
}

// For many tokens, LANES rows are turned into columns first: a lane adds one row's products, in the
// order of tile() and reduce(), and no sum of lanes is left to do.
constexpr int64_t MANY = 8, SHORT = 512;  // tokens, columns

template <Type TYPE>
static void turn(const char * w, size_t stride, int rows, int64_t columns, float * out) {
    using E = Element<TYPE>;
    for (int64_t c = 0; c < columns; c += LANES) {
        floats v[LANES];
        for (int r = 0; r < LANES; r++) v[r] = r < rows ? E::get((const typename E::T *) (w + (size_t) r * stride) + c) : zero();
        transpose(v);
        for (int i = 0; i < LANES; i++) store(out + (c + i) * LANES, v[i]);
    }
}

// The sums of lanes FROM to FROM + COUNT of tile(), for N tokens.
template <int N, int FROM, int COUNT>
EDGE_INLINE void add_lanes(const float * w, int64_t columns, const float * const * x, floats * sum) {
    if constexpr (COUNT == 1) {
        for (int t = 0; t < N; t++) sum[t] = zero();
        for (int64_t c = FROM; c < columns; c += LANES) {
            const floats v = load(w + c * LANES);
            for (int t = 0; t < N; t++) sum[t] = fma(v, set(x[t][c]), sum[t]);
        }
    } else {
        floats upper[N];
        add_lanes<N, FROM, COUNT / 2>(w, columns, x, sum);
        add_lanes<N, FROM + COUNT / 2, COUNT / 2>(w, columns, x, upper);
        for (int t = 0; t < N; t++) sum[t] = add(sum[t], upper[t]);
    }
}

template <int N>
static void turned_n(const float * w, int64_t columns, const float * const * x, int64_t row, int rows, float * const * y) {
    floats sum[N];
    add_lanes<N, 0, LANES>(w, columns, x, sum);
    for (int t = 0; t < N; t++) {
        if (rows == LANES) {
            store(y[t] + row, sum[t]);
            continue;
        }
        float all[LANES];
        store(all, sum[t]);
        memcpy(y[t] + row, all, (size_t) rows * sizeof(float));
    }
}

template <Type TYPE>
static void turned_product(const char * w, size_t stride, int64_t rows, int64_t columns,
                           const float * const * x, int n, float * const * y) {
    alignas(64) float turned[SHORT * LANES];
    for (int64_t row = 0; row < rows; row += LANES) {
        const int count = (int) (rows - row < LANES ? rows - row : LANES);
        turn<TYPE>(w + (size_t) row * stride, stride, count, columns, turned);
        int t = 0;
        for (; t + ABREAST <= n; t += ABREAST) turned_n<ABREAST>(turned, columns, x + t, row, count, y + t);
        for (; t < n; t++) turned_n<1>(turned, columns, x + t, row, count, y + t);
    }
}

template <Type TYPE>
static void product(const char * w, size_t stride, int64_t rows, int64_t columns,
                    const float * const * x, int n, float * const * y, const More * more) {
    if (n >= MANY && columns <= SHORT && columns % LANES == 0 && !more) {
        return turned_product<TYPE>(w, stride, rows, columns, x, n, y);
    }
    const int     groups = (n + MOST - 1) / MOST;
    const int64_t step = groups == 1 ? rows : 12;  // these rows stay in the cache for all groups
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t last = first + step < rows ? first + step : rows;
        for (int g = 0; g < groups; g++) {
            const int t = g * n / groups;
            switch ((g + 1) * n / groups - t) {
                case 1: rows_n<TYPE, 1>(w, stride, first, last, columns, x + t, y + t, more, t); break;
                case 2: rows_n<TYPE, 2>(w, stride, first, last, columns, x + t, y + t, more, t); break;
                case 3: rows_n<TYPE, 3>(w, stride, first, last, columns, x + t, y + t, more, t); break;
                case 4: rows_n<TYPE, 4>(w, stride, first, last, columns, x + t, y + t, more, t); break;
#    if !defined(EDGE_AVX2)
                case 5: rows_n<TYPE, 5>(w, stride, first, last, columns, x + t, y + t, more, t); break;
                case 6: rows_n<TYPE, 6>(w, stride, first, last, columns, x + t, y + t, more, t); break;
#    endif
                default: break;
            }
        }
    }
}

bool has_dense(int type) { return type == F16 || type == BF16 || type == F32; }

void dense_product(int type, const char * w, size_t stride, int64_t rows, int64_t columns,
                   const float * const * x, int n, float * const * y, const More * more) {
    switch (type) {
        case F16: return product<F16>(w, stride, rows, columns, x, n, y, more);
        case BF16: return product<BF16>(w, stride, rows, columns, x, n, y, more);
        case F32: return product<F32>(w, stride, rows, columns, x, n, y, more);
        default: return;
    }
}

#else

bool has_dense(int) { return false; }
void dense_product(int, const char *, size_t, int64_t, int64_t, const float * const *, int, float * const *, const More *) {}

#endif

}  // namespace edge
