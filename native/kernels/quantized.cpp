#include "quantized.h"

#include <utility>

namespace edge {

#if defined(EDGE_KERNELS)

constexpr int64_t AHEAD = 4096;  // bytes; quants are asked for this far before they are needed

#    if defined(EDGE_AVX512)
constexpr int ABREAST = 4, STEPS = 8;  // tokens whose products run side by side, in so many steps a block
#    else
constexpr int ABREAST = 1, STEPS = 1;  // too few registers, or sums of pairs that must stay together
#    endif

EDGE_INLINE float read_float(const uint8_t * p) {
    float x;
    memcpy(&x, p, 4);
    return x;
}
EDGE_INLINE int32_t read_int(const uint8_t * p) {
    int32_t x;
    memcpy(&x, p, 4);
    return x;
}

// Write LANES results of row `from` on, as many as belong to the matrix.
EDGE_INLINE void put(float * y, floats x, int from, int rows) {
    if (from + LANES <= rows) {
        store(y + from, x);
        return;
    }
    float all[LANES];
    store(all, x);
    for (int r = from; r < rows; r++) y[r] = all[r - from];
}

static float largest(const float * x, int n) {
    floats m = zero();
    for (int i = 0; i < n; i += LANES) m = max(m, abs(load(x + i)));
    return max_abs(m);
}

// 32 or 256 activations of one token as signed bytes with one scale. `sums16` gets the sum of each 16.
static float quantize_block(const float * x, int n, int8_t * q, int32_t * sums16) {
    const float m = largest(x, n);
    const floats id = set(m > 1e-36f ? 127.0f / m : 0.0f);  // below, 127 / m overflows
    for (int i = 0; i < n; i += 16) {
        int32_t sum = 0;
        for (int j = 0; j < 16; j += LANES) sum += quantize(x + i + j, id, q + i + j);
        sums16[i / 16] = sum;
    }
    return m / 127.0f;
}

// The same 32 activations of n <= MAX_GROUP tokens: their scales, and the sums of their quants.
static void quantize_tokens(const float * const * x, int64_t at, int n, int8_t * q, float * scales, int32_t * sums) {
#    if defined(EDGE_AVX512)
    if (n > 3) return quantize32(x, at, n, q, scales, sums);
#    endif
    for (int t = 0; t < n; t++) {
        int32_t halves[2];
        scales[t] = quantize_block(x[t] + at, 32, q + 32 * t, halves);
        sums[t] = halves[0] + halves[1];
    }
}

// Activations of a block for n tokens, simple formats: n * 32 quants, n scales, n corrections (an
// int that the sum of products starts at, or scale * sum of quants for formats with a minimum).
template <Type TYPE> struct SimpleKernel {
    using F = Simple<TYPE>;
    using Block = typename F::Block;
    static constexpr size_t SCALES = F::MIN ? 64 : 32;
    static constexpr size_t TOKEN = 32 + 4 + 4;

    static void pack_row(const void * row, int64_t blocks, int r, uint8_t * panel) {
        uint8_t * quants = panel + ((size_t) blocks * SCALES + 63) / 64 * 64;
        for (int64_t b = 0; b < blocks; b++) {
            Block x;
            memcpy(&x, (const char *) row + b * sizeof(Block), sizeof(Block));
            memcpy(panel + b * SCALES + 2 * r, &x.d, 2);
            if constexpr (F::MIN) memcpy(panel + b * SCALES + 32 + 2 * r, &x.m, 2);
            uint8_t q[32];
            F::decode(x, q);
            put_unit(F::STORED, quants + b * unit_bytes(F::STORED), r, q);
        }
    }

    static void quantize(const float * const * x, int n, int64_t first, int64_t last, uint8_t * out) {
        for (int64_t b = first; b < last; b++) {
            uint8_t * block = out + b * n * TOKEN;
            float     scales[MAX_GROUP];
            int32_t   totals[MAX_GROUP];
            quantize_tokens(x, 32 * b, n, (int8_t *) block, scales, totals);
            for (int t = 0; t < n; t++) {
                const float   d = scales[t];
                const int32_t sum = totals[t];
                memcpy(block + 32 * n + 4 * t, &d, 4);
                if constexpr (F::MIN) {
                    const float scaled = d * (float) sum;
                    memcpy(block + 36 * n + 4 * t, &scaled, 4);
                } else {
                    const int32_t start = -F::ZERO * sum;
                    memcpy(block + 36 * n + 4 * t, &start, 4);
                }
            }
        }
    }

    // Add a block's products to the sums of tokens FROM to N, some tokens at a time: their chains of
    // dependent products run side by side.
    template <int N, int FROM>
    EDGE_INLINE void add_block(const uint8_t * a, const bytes * w, floats d, floats m, floats * sum) {
        if constexpr (FROM < N) {
            constexpr int T = N - FROM < ABREAST * 3 / 2 ? N - FROM : ABREAST;
            ints dots[T];
            for (int t = 0; t < T; t++) {
                dots[t] = set_int(F::ZERO ? read_int(a + 36 * N + 4 * (FROM + t)) : 0);
            }
            EDGE_UNROLL
            for (int g = 0; g < 8; g += 8 / STEPS) {
                EDGE_UNROLL
                for (int t = 0; t < T; t++) {
                    dots[t] = dot<F::BITS, 8 / STEPS>(dots[t], w + g, (const int8_t *) a + 32 * (FROM + t) + 4 * g);
                }
            }
            EDGE_UNROLL
            for (int t = 0; t < T; t++) {
                const uint8_t * scale = a + 32 * N + 4 * (FROM + t);
                sum[FROM + t] = fma(to_float(dots[t]), mul(d, set(read_float(scale))), sum[FROM + t]);
                if constexpr (F::MIN) sum[FROM + t] = fma(m, set(read_float(scale + 4 * N)), sum[FROM + t]);
            }
            add_block<N, FROM + T>(a, w, d, m, sum);
        }
    }

    template <int N>
    static void product_n(const uint8_t * panel, int64_t blocks, const uint8_t * act, float * const * y, int rows) {
        const uint8_t * quants = panel + ((size_t) blocks * SCALES + 63) / 64 * 64;
        for (int from = 0; from < PANEL && from < rows; from += LANES) {
            const uint8_t * s = panel + 2 * from;
            const uint8_t * u = quants + 4 * from;
            const uint8_t * a = act;
            floats sum[N];
            for (int t = 0; t < N; t++) sum[t] = zero();
            for (int64_t b = 0; b < blocks; b++) {
                bytes w[8];
                get_unit<F::STORED>(u, w);
                for (size_t i = 0; i < unit_bytes(F::STORED); i += 64) prefetch(u + AHEAD + i);
                if constexpr (F::TABLE)
                    for (int g = 0; g < 8; g++) w[g] = lookup16(IQ4_NL_TABLE, w[g]);
                const floats d = load_f16((const uint16_t *) s);
                floats m = zero();
                if constexpr (F::MIN) m = load_f16((const uint16_t *) (s + 32));
                add_block<N, 0>(a, w, d, m, sum);
                s += SCALES;
                u += unit_bytes(F::STORED);
                a += N * TOKEN;
            }
            for (int t = 0; t < N; t++) put(y[t], sum[t], from, rows);
        }
    }
};

// Activations of a block for n tokens, K formats: n * 256 quants, n scales, then for each token the
// sums of each 32 quants as 16-bit values, or -32 times the sum of each 16 (Q6_K).
template <Type TYPE> struct SuperKernel {
    using F = Super<TYPE>;
    using Block = typename F::Block;
    static constexpr size_t SCALES = F::SCALES;
    static constexpr size_t SUMS = F::SIX ? 64 : 16;
    static constexpr size_t TOKEN = 256 + 4 + SUMS;

    static void pack_row(const void * row, int64_t blocks, int r, uint8_t * panel) {
        uint8_t * quants = panel + (size_t) blocks * SCALES;
        for (int64_t b = 0; b < blocks; b++) {
            Block x;
            memcpy(&x, (const char *) row + b * sizeof(Block), sizeof(Block));
            F::put_scales(x, r, panel + b * SCALES);
            uint8_t q[256];
            F::decode(x, q);
            for (int j = 0; j < 8; j++) put_unit(F::BITS, quants + (8 * b + j) * unit_bytes(F::BITS), r, q + 32 * j);
        }
    }

    static void quantize(const float * const * x, int n, int64_t first, int64_t last, uint8_t * out) {
        for (int64_t b = first; b < last; b++) {
            uint8_t * block = out + b * n * TOKEN;
            for (int t = 0; t < n; t++) {
                int32_t sums[16];
                const float d = quantize_block(x[t] + 256 * b, 256, (int8_t *) block + 256 * t, sums);
                memcpy(block + 256 * n + 4 * t, &d, 4);
                uint8_t * at = block + 260 * n + SUMS * t;
                for (int j = 0; j < 16; j++) {
                    if constexpr (F::SIX) {
                        const int32_t start = -32 * sums[j];
                        memcpy(at + 4 * j, &start, 4);
                    } else if (j % 2 == 0) {
                        const int16_t sum = (int16_t) (sums[j] + sums[j + 1]);
                        memcpy(at + j, &sum, 2);
                    }
                }
            }
        }
    }

    template <int N>
    static void product_n(const uint8_t * panel, int64_t blocks, const uint8_t * act, float * const * y, int rows) {
        const uint8_t * quants = panel + (size_t) blocks * SCALES;
        for (int from = 0; from < PANEL && from < rows; from += LANES) {
            const uint8_t * s = panel;
            const uint8_t * u = quants + 4 * from;
            const uint8_t * a = act;
            floats sum[N];
            for (int t = 0; t < N; t++) sum[t] = zero();
            for (int64_t b = 0; b < blocks; b++) {
                const floats d = load_f16((const uint16_t *) s + from);
                floats inner[N];
                for (int t = 0; t < N; t++) inner[t] = zero();
                for (int j = 0; j < 8; j++) {
                    bytes w[8];
                    get_unit<F::BITS>(u, w);
                    for (size_t i = 0; i < unit_bytes(F::BITS); i += 64) prefetch(u + AHEAD + i);
                    u += unit_bytes(F::BITS);
                    if constexpr (F::SIX) {
                        const floats s0 = mul(d, load_s8((const int8_t *) s + 64 + 32 * j + from));
                        const floats s1 = mul(d, load_s8((const int8_t *) s + 64 + 32 * j + 16 + from));
                        for (int t = 0; t < N; t++) {
                            const int8_t *  x = (const int8_t *) a + 256 * t + 32 * j;
                            const uint8_t * start = a + 260 * N + SUMS * t + 8 * j;
                            inner[t] = fma(to_float(dot<6, 4>(set_int(read_int(start)), w, x)), s0, inner[t]);
                            inner[t] = fma(to_float(dot<6, 4>(set_int(read_int(start + 4)), w + 4, x + 16)), s1, inner[t]);
                        }
                    } else {
                        const floats sc = mul(d, load_u8(s + 64 + 16 * j + from));
                        for (int t = 0; t < N; t++) {
                            const int8_t * x = (const int8_t *) a + 256 * t + 32 * j;
                            inner[t] = fma(to_float(dot<F::BITS, 8>(set_int(0), w, x)), sc, inner[t]);
                        }
                    }
                }
                for (int t = 0; t < N; t++) {
                    sum[t] = fma(inner[t], set(read_float(a + 256 * N + 4 * t)), sum[t]);
                }
                if constexpr (!F::SIX) {
                    const floats dmin = load_f16((const uint16_t *) s + 16 + from);
                    ints m[4];
                    for (int i = 0; i < 4; i++) m[i] = load_u8_pairs(s + 192 + 32 * i + 2 * from);
                    for (int t = 0; t < N; t++) {
                        ints mins = set_int(0);
                        for (int i = 0; i < 4; i++) {
                            mins = dot_pairs(mins, m[i], (const int16_t *) (a + 260 * N + SUMS * t) + 2 * i);
                        }
                        const floats scale = mul(dmin, set(read_float(a + 256 * N + 4 * t)));
                        sum[t] = fnma(to_float(mins), scale, sum[t]);
                    }
                }
                s += SCALES;
                a += N * TOKEN;
            }
            for (int t = 0; t < N; t++) put(y[t], sum[t], from, rows);
        }
    }
};

// The product for each number of tokens, 1 first.
template <class KERNEL, int... N> struct Products {
    static void run(const uint8_t * panel, int64_t blocks, const uint8_t * act, int n, float * const * y, int rows) {
        static constexpr decltype(&KERNEL::template product_n<1>) all[] = {KERNEL::template product_n<N + 1>...};
        all[n - 1](panel, blocks, act, y, rows);
    }
};
template <class KERNEL, int... N> static auto products(std::integer_sequence<int, N...>) {
    return Products<KERNEL, N...>::run;
}

template <Type TYPE> static Format simple() {
    using K = SimpleKernel<TYPE>;
    using F = Simple<TYPE>;
    return {TYPE, MAX_GROUP, 32, sizeof(typename F::Block), K::SCALES + unit_bytes(F::STORED), K::SCALES, K::TOKEN,
            K::pack_row, K::quantize, products<K>(std::make_integer_sequence<int, MAX_GROUP>())};
}
template <Type TYPE> static Format super() {
    using K = SuperKernel<TYPE>;
    using F = Super<TYPE>;
    return {TYPE, MAX_GROUP_K, 256, sizeof(typename F::Block), K::SCALES + 8 * unit_bytes(F::BITS), K::SCALES, K::TOKEN,
            K::pack_row, K::quantize, products<K>(std::make_integer_sequence<int, MAX_GROUP_K>())};
}

const Format * format(int type) {
    static const Format all[] = {simple<Q4_0>(), simple<Q4_1>(), simple<Q5_0>(), simple<Q5_1>(), simple<Q8_0>(),
                                 simple<IQ4_NL>(), super<Q4_K>(), super<Q5_K>(), super<Q6_K>()};
    for (const Format & f : all) {
        if (f.type == type) return &f;
    }
    return nullptr;
}

#else

const Format * format(int) { return nullptr; }

#endif

void pack(const Format * f, int64_t rows, int64_t columns, const void * from, uint8_t * to) {
    const int64_t blocks = columns / f->block;
    const size_t  row_bytes = (size_t) blocks * f->block_bytes;
    const size_t  size = panel_bytes(f, blocks);
    for (int64_t r = 0; r < rows; r++) {
        uint8_t * panel = to + (size_t) (r / PANEL) * size;
        if (r % PANEL == 0) memset(panel, 0, size);
        f->pack_row((const char *) from + (size_t) r * row_bytes, blocks, (int) (r % PANEL), panel);
    }
}

int     group_count(const Format * f, int64_t n) { return n <= f->max_group ? n > 0 : (int) ((n + f->max_group - 1) / f->max_group); }
int64_t group_start(const Format * f, int64_t n, int group) {
    return n <= f->max_group ? group * n : group * n / group_count(f, n);  // mostly no division
}
int     group_size(const Format * f, int64_t n, int group) {
    return (int) (group_start(f, n, group + 1) - group_start(f, n, group));
}

}  // namespace edge
