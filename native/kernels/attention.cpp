#include "attention.h"

#include <cmath>

#include "dense.h"

namespace edge {

#if defined(EDGE_KERNELS)

struct Q8Block { uint16_t d; int8_t q[32]; };

static float half_to_float(uint16_t h) {
    alignas(64) uint16_t in[LANES] = {h};
    float out[LANES];
    store(out, load_f16(in));
    return out[0];
}

// One row of a cache as floats.
static void expand(int type, const char * row, int64_t n, float * out) {
    if (type == Q8_0) {
        for (int64_t b = 0; b < n / 32; b++) {
            Q8Block x;
            memcpy(&x, row + b * sizeof(Q8Block), sizeof(Q8Block));
            const floats d = set(half_to_float(x.d));
            for (int i = 0; i < 32; i += LANES) store(out + 32 * b + i, mul(d, load_s8(x.q + i)));
        }
        return;
    }
    for (int64_t i = 0; i < n; i += LANES) {
        if (type == F16) store(out + i, load_f16((const uint16_t *) row + i));
        if (type == BF16) store(out + i, load_bf16((const uint16_t *) row + i));
        if (type == F32) store(out + i, load((const float *) row + i));
    }
}

static int64_t chunk_count(const Attention & a) { return (a.n_cells + CHUNK - 1) / CHUNK; }
static int64_t partial_floats(const Attention & a) { return a.v.size + 2; }  // largest, sum, values
static int64_t shared_heads(const Attention & a) { return a.n_heads / a.n_kv_heads; }

static bool fits(const Cache & c) {
    if (c.size % LANES != 0) return false;
    return c.type == F16 || c.type == BF16 || c.type == F32 || (c.type == Q8_0 && c.size % 32 == 0);
}

bool has_attention(const Attention & a) {
    return fits(a.k) && fits(a.v) && a.n_heads % a.n_kv_heads == 0 && a.n_tokens <= 16 &&
           a.n_tokens * shared_heads(a) <= 1024 && (!a.mask || a.n_heads % a.mask_heads == 0);
}

size_t attention_scratch_bytes(const Attention & a) {
    const int64_t queries = a.n_tokens * shared_heads(a);
    const int64_t widest = a.k.size > a.v.size ? a.k.size : a.v.size;
    return (size_t) (queries * CHUNK + CHUNK * widest) * sizeof(float);
}

size_t attention_partial_bytes(const Attention & a) {
    return (size_t) (a.n_tokens * a.n_heads * chunk_count(a) * partial_floats(a)) * sizeof(float);
}

static float * partial(const Attention & a, char * partials, int64_t token, int64_t head, int64_t chunk) {
    return (float *) partials + ((token * a.n_heads + head) * chunk_count(a) + chunk) * partial_floats(a);
}

static const uint16_t * mask_row(const Attention & a, int64_t token, int64_t head, int64_t cell) {
    if (!a.mask) return nullptr;
    const char * row = a.mask + token * a.mask_token_bytes + (head % a.mask_heads) * a.mask_head_bytes;
    return (const uint16_t *) row + cell;
}

constexpr uint16_t HIDDEN = 0xfc00;  // -infinity

static bool any_visible(const Attention & a, int64_t first_head, int64_t cell, int64_t n) {
    if (!a.mask) return true;
    for (int64_t h = 0; h < (a.mask_heads > 1 ? shared_heads(a) : 1); h++) {
        for (int64_t t = 0; t < a.n_tokens; t++) {
            const uint16_t * m = mask_row(a, t, first_head + h, cell);
            for (int64_t i = 0; i < n; i++) {
                if (m[i] != HIDDEN) return true;
            }
        }
    }
    return false;
}

static float slope_of(const Attention & a, int64_t head) {
    if (a.max_bias <= 0) return 1.0f;
    const uint32_t power = 1u << (uint32_t) std::floor(std::log2((double) a.n_heads));
    const float m0 = std::pow(2.0f, -a.max_bias / power);
    const float m1 = std::pow(2.0f, -a.max_bias / 2.0f / power);
    return head < power ? std::pow(m0, (float) (head + 1)) : std::pow(m1, (float) (2 * (head - power) + 1));
}

// Scores of n <= CHUNK cells become weights; behind the last cell they are 0. The largest score and
// the sum of the weights go to `out`.
static void weigh(const Attention & a, float * s, int64_t n, const uint16_t * mask, float slope, float * out) {
    for (int64_t i = n; i < CHUNK; i++) s[i] = -INFINITY;
    if (a.softcap != 0) {
        for (int64_t i = 0; i < n; i++) s[i] = a.softcap * std::tanh(s[i] * (a.scale / a.softcap));
    }
    const floats scale = set(a.softcap != 0 ? 1.0f : a.scale);
    floats largest = set(-INFINITY);
    for (int64_t i = 0; i < CHUNK; i += LANES) {
        floats x = mul(load(s + i), scale);
        if (mask && i < n) {
            uint16_t last[LANES];
            const uint16_t * m = mask + i;
            if (i + LANES > n) {
                for (int64_t j = 0; j < LANES; j++) last[j] = i + j < n ? m[j] : HIDDEN;
                m = last;
            }
            x = fma(load_f16(m), set(slope), x);
        }
        store(s + i, x);
        largest = max(largest, x);
    }
    float all[LANES];
    store(all, largest);
    float top = all[0];
    for (int i = 1; i < LANES; i++) top = all[i] > top ? all[i] : top;
    out[0] = top;
    out[1] = 0;
    if (top == -INFINITY) return;
    floats sum = zero();
    for (int64_t i = 0; i < CHUNK; i += LANES) {
        const floats w = exp_negative(add(load(s + i), set(-top)));
        store(s + i, w);
        sum = add(sum, w);
    }
    out[1] = reduce(sum);
}

EDGE_INLINE floats value(int type, const char * p, int64_t i) {
    if (type == F16) return load_f16((const uint16_t *) p + i);
    if (type == BF16) return load_bf16((const uint16_t *) p + i);
    return load((const float *) p + i);
}

// out[q][0 .. V * LANES) = sum over cells of w[q][cell] * v[cell][...], for N queries.
template <int TYPE, int N, int V>
static void add_values(const char * v, size_t cell_bytes, int64_t n, const float * const * w, int64_t at, float * const * out) {
    floats sum[N * V];
    for (int i = 0; i < N * V; i++) sum[i] = zero();
    for (int64_t c = 0; c < n; c++) {
        floats x[V];
        for (int i = 0; i < V; i++) x[i] = value(TYPE, v + c * cell_bytes, at + i * LANES);
        for (int q = 0; q < N; q++) {
            const floats weight = set(w[q][c]);
            for (int i = 0; i < V; i++) sum[q * V + i] = fma(x[i], weight, sum[q * V + i]);
        }
    }
    for (int q = 0; q < N; q++) {
        for (int i = 0; i < V; i++) store(out[q] + at + i * LANES, sum[q * V + i]);
    }
}

template <int TYPE, int N>
static void values_n(const char * v, size_t cell_bytes, int64_t size, int64_t n, const float * const * w, float * const * out) {
#    if defined(EDGE_AVX2)
    constexpr int V = 2;
#    else
    constexpr int V = 4;
#    endif
    int64_t at = 0;
    for (; at + V * LANES <= size; at += V * LANES) add_values<TYPE, N, V>(v, cell_bytes, n, w, at, out);
    for (; at < size; at += LANES) add_values<TYPE, N, 1>(v, cell_bytes, n, w, at, out);
}

template <int TYPE>
static void values(const char * v, size_t cell_bytes, int64_t size, int64_t n, int64_t queries,
                   const float * const * w, float * const * out) {
    int64_t q = 0;
    for (; q + 4 <= queries; q += 4) values_n<TYPE, 4>(v, cell_bytes, size, n, w + q, out + q);
    switch (queries - q) {
        case 3: return values_n<TYPE, 3>(v, cell_bytes, size, n, w + q, out + q);
        case 2: return values_n<TYPE, 2>(v, cell_bytes, size, n, w + q, out + q);
        case 1: return values_n<TYPE, 1>(v, cell_bytes, size, n, w + q, out + q);
        default: return;
    }
}

// Cells of one head as rows of a type that the products read: Q8_0 is expanded into `room`.
struct Rows { int type; const char * data; size_t stride; };

static Rows rows_of(const Cache & c, int64_t head, int64_t cell, int64_t n, float * room) {
    const char * data = c.data + head * c.head_bytes + cell * c.cell_bytes;
    if (c.type != Q8_0) return {c.type, data, c.cell_bytes};
    for (int64_t i = 0; i < n; i++) expand(c.type, data + i * c.cell_bytes, c.size, room + i * c.size);
    return {F32, (const char *) room, (size_t) c.size * sizeof(float)};
}

static void one_chunk(const Attention & a, int64_t kv_head, int64_t chunk, char * scratch, char * partials) {
    const int64_t group = shared_heads(a), queries = a.n_tokens * group;
    const int64_t cell = chunk * CHUNK;
    const int64_t n = a.n_cells - cell < CHUNK ? a.n_cells - cell : CHUNK;
    const bool    visible = any_visible(a, kv_head * group, cell, n);
    float *       scores = (float *) scratch;
    float *       room = scores + queries * CHUNK;
    const float * x[1024];
    float *       s[1024];
    float *       out[1024];
    for (int64_t i = 0; i < queries; i++) {
        const int64_t head = kv_head * group + i / a.n_tokens, token = i % a.n_tokens;
        x[i] = (const float *) (a.q + head * a.q_head_bytes + token * a.q_token_bytes);
        s[i] = scores + i * CHUNK;
        out[i] = partial(a, partials, token, head, chunk);
        out[i][0] = -INFINITY;
    }
    if (!visible) return;
    const Rows k = rows_of(a.k, kv_head, cell, n, room);
    dense_product(k.type, k.data, k.stride, n, a.k.size, x, (int) queries, s);
    for (int64_t i = 0; i < queries; i++) {
        const int64_t head = kv_head * group + i / a.n_tokens, token = i % a.n_tokens;
        weigh(a, s[i], n, mask_row(a, token, head, cell), slope_of(a, head), out[i]);
        if (out[i][0] == -INFINITY) memset(s[i], 0, n * sizeof(float));
        out[i] += 2;
    }
    const Rows v = rows_of(a.v, kv_head, cell, n, room);
    switch (v.type) {
        case F16: return values<F16>(v.data, v.stride, a.v.size, n, queries, s, out);
        case BF16: return values<BF16>(v.data, v.stride, a.v.size, n, queries, s, out);
        default: return values<F32>(v.data, v.stride, a.v.size, n, queries, s, out);
    }
}

void attention_chunks(const Attention & a, int thread, int threads, char * scratch, char * partials) {
    const int64_t chunks = chunk_count(a), items = chunks * a.n_kv_heads;
    for (int64_t i = thread; i < items; i += threads) one_chunk(a, i / chunks, i % chunks, scratch, partials);
}

void attention_combine(const Attention & a, int thread, int threads, const char * partials) {
    const int64_t chunks = chunk_count(a), queries = a.n_tokens * a.n_heads;
    for (int64_t i = thread; i < queries; i += threads) {
        const int64_t head = i % a.n_heads;
        const float * p = (const float *) partials + i * chunks * partial_floats(a);
        float *       out = a.out + i * a.v.size;
        float         top = a.sinks ? a.sinks[head] : -INFINITY;
        for (int64_t c = 0; c < chunks; c++) {
            const float m = p[c * partial_floats(a)];
            top = m > top ? m : top;
        }
        float sum = a.sinks ? std::exp(a.sinks[head] - top) : 0.0f;
        for (int64_t d = 0; d < a.v.size; d += LANES) store(out + d, zero());
        for (int64_t c = 0; c < chunks; c++) {
            const float * part = p + c * partial_floats(a);
            if (part[0] == -INFINITY) continue;
            const float w = std::exp(part[0] - top);
            sum = std::fma(w, part[1], sum);
            for (int64_t d = 0; d < a.v.size; d += LANES) store(out + d, fma(load(part + 2 + d), set(w), load(out + d)));
        }
        const floats inverse = set(sum == 0 ? 0.0f : 1.0f / sum);
        for (int64_t d = 0; d < a.v.size; d += LANES) store(out + d, mul(load(out + d), inverse));
    }
}

#else

bool   has_attention(const Attention &) { return false; }
size_t attention_scratch_bytes(const Attention &) { return 0; }
size_t attention_partial_bytes(const Attention &) { return 0; }
void   attention_chunks(const Attention &, int, int, char *, char *) {}
void   attention_combine(const Attention &, int, int, const char *) {}

#endif

}  // namespace edge
