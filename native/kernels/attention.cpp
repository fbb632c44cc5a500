#include "attention.h"

#include <algorithm>
#include <cmath>

#include "dense.h"

namespace edge {

float alibi_slope(int64_t head, int64_t n_heads, float max_bias) {
    if (max_bias <= 0) return 1.0f;
    const uint32_t power = 1u << (uint32_t) std::floor(std::log2((double) n_heads));
    const float m0 = std::pow(2.0f, -max_bias / power);
    const float m1 = std::pow(2.0f, -max_bias / 2.0f / power);
    return head < power ? std::pow(m0, (float) (head + 1)) : std::pow(m1, (float) (2 * (head - power) + 1));
}

#if defined(EDGE_KERNELS)

struct Q8Block { uint16_t d; int8_t q[32]; };

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

constexpr int64_t  OFTEN = 8;        // queries from which on values are expanded once for all
constexpr uint16_t HIDDEN = 0xfc00;  // -infinity

// The first cell from `from` on that is hidden, or seen; n where there is none.
template <class T> static int64_t first(const T * mask, T hidden, bool wanted, int64_t from, int64_t n) {
    int64_t i = from;
    for (; i + 64 <= n; i += 64) {
        int found = 0;
        for (int j = 0; j < 64; j++) found |= (mask[i + j] == hidden) == wanted;
        if (found) break;
    }
    for (; i < n; i++) {
        if ((mask[i] == hidden) == wanted) return i;
    }
    return n;
}

template <class T> static void find_order(Order & o, const T * mask, T hidden, int64_t n_cells, int64_t align) {
    const int64_t begin = first(mask, hidden, false, 0, n_cells);
    const int64_t end = first(mask, hidden, true, begin, n_cells);
    o.n = 0;
    o.start = end / align * align;
    int64_t next = first(mask, hidden, false, end, n_cells);
    if (next == n_cells) return;
    int n = 0;
    for (int64_t i = o.start; i < end; i++) o.cell[n++] = (int32_t) i;
    for (; next < n_cells; next = first(mask, hidden, false, next + 1, n_cells)) {
        if (n == Order::MOST) return;  // not a tree of ours
        o.cell[n++] = (int32_t) next;
    }
    o.n = n;
}

void Order::find_in_weights(const float * weights, int64_t n_cells, int64_t align) {
    find_order<uint32_t>(*this, (const uint32_t *) weights, 0x80000000u, n_cells, align);
}

void Order::find(int mask_type, const void * mask, int64_t n_cells, int64_t align) {
    if (mask_type == F16) {
        find_order<uint16_t>(*this, (const uint16_t *) mask, HIDDEN, n_cells, align);
    } else {
        find_order<float>(*this, (const float *) mask, -INFINITY, n_cells, align);
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
    return fits(a.k) && fits(a.v) && a.n_heads % a.n_kv_heads == 0 && shared_heads(a) <= MOST_QUERIES &&
           (!a.mask || a.n_heads % a.mask_heads == 0);
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

// How many of n cells from `cell` on are needed: up to the last that a token sees.
static int64_t seen_cells(const Attention & a, int64_t cell, int64_t n) {
    if (!a.mask || a.mask_heads > 1) return n;
    int64_t most = 0;
    for (int64_t t = 0; t < a.n_tokens && most < n; t++) {
        const uint16_t * m = mask_row(a, t, 0, cell);
        int64_t          i = n;
        while (i > most && m[i - 1] == HIDDEN) i--;
        most = i;
    }
    return most;
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

// Cells of one head as rows of a type that the products read. Those of an order, Q8_0, and those that
// are read many times are expanded into `room`.
struct Rows { int type; const char * data; size_t stride; };

static Rows rows_of(const Cache & c, int64_t head, int64_t cell, const int32_t * cells, int64_t n, bool often, float * room) {
    const char * data = c.data + head * c.head_bytes;
    if (c.type != Q8_0 && !cells && !(often && c.type != F32)) return {c.type, data + cell * c.cell_bytes, c.cell_bytes};
    for (int64_t i = 0; i < n; i++) expand(c.type, data + (cells ? cells[i] : cell + i) * c.cell_bytes, c.size, room + i * c.size);
    return {F32, (const char *) room, (size_t) c.size * sizeof(float)};
}

// Some cells for some tokens: `cells`, or n from `cell` on. The result is that of chunk `chunk`.
struct Part {
    int64_t         kv_head, chunk, cell, n;
    const int32_t * cells;
    const int32_t * tokens;
    int64_t         n_tokens;
};

// Queries [first, last) of a part; a head's tokens lie together.
static void attend(const Attention & a, const Part & p, int64_t first, int64_t last, char * scratch, char * partials) {
    const int64_t queries = last - first, group = shared_heads(a);
    float *       scores = (float *) scratch;
    float *       room = scores + a.n_tokens * group * CHUNK;
    uint16_t      seen[CHUNK];
    const float * x[MOST_QUERIES];
    float *       s[MOST_QUERIES];
    float *       out[MOST_QUERIES];
    const auto    head = [&](int64_t i) { return p.kv_head * group + (first + i) / p.n_tokens; };
    const auto    token = [&](int64_t i) { return p.tokens[(first + i) % p.n_tokens]; };
    for (int64_t i = 0; i < queries; i++) {
        x[i] = (const float *) (a.q + head(i) * a.q_head_bytes + token(i) * a.q_token_bytes);
        s[i] = scores + i * CHUNK;
        out[i] = partial(a, partials, token(i), head(i), p.chunk);
    }
    const bool often = queries >= OFTEN;
    const Rows k = rows_of(a.k, p.kv_head, p.cell, p.cells, p.n, false, room);
    dense_product(k.type, k.data, k.stride, p.n, a.k.size, x, (int) queries, s);
    for (int64_t i = 0; i < queries; i++) {
        const uint16_t * mask = mask_row(a, token(i), head(i), p.cells ? 0 : p.cell);
        if (p.cells && mask) {
            for (int64_t j = 0; j < p.n; j++) seen[j] = mask[p.cells[j]];
            mask = seen;
        }
        weigh(a, s[i], p.n, mask, alibi_slope(head(i), a.n_heads, a.max_bias), out[i]);
        if (out[i][0] == -INFINITY) memset(s[i], 0, p.n * sizeof(float));
        out[i] += 2;
    }
    const Rows v = rows_of(a.v, p.kv_head, p.cell, p.cells, p.n, often, room);
    switch (v.type) {
        case F16: return values<F16>(v.data, v.stride, a.v.size, p.n, queries, s, out);
        case BF16: return values<BF16>(v.data, v.stride, a.v.size, p.n, queries, s, out);
        default: return values<F32>(v.data, v.stride, a.v.size, p.n, queries, s, out);
    }
}

static void set_empty(const Attention & a, int64_t token, int64_t chunk, char * partials) {
    for (int64_t h = 0; h < a.n_heads; h++) partial(a, partials, token, h, chunk)[0] = -INFINITY;
}

// What a step has to do, part by part: each is done for every head of keys.
class Work {
    const Attention & a;
    int64_t           start[MOST_TOKENS];  // cells from which on a token's order is its own
    int32_t           all[MOST_TOKENS];    // tokens by `start`, the highest first
    Order             order;

    void find(int32_t t) { order.find(F16, mask_row(a, t, 0, 0), a.n_cells, CHUNK); }

  public:
    explicit Work(const Attention & attention) : a(attention) {
        for (int32_t t = 0; t < a.n_tokens; t++) {
            start[t] = chunk_count(a) * CHUNK;
            all[t] = t;
            if (!a.mask || a.mask_heads > 1) continue;
            find(t);
            if (order.n > 0) start[t] = order.start;
        }
        std::stable_sort(all, all + a.n_tokens, [&](int32_t s, int32_t t) { return start[s] > start[t]; });
    }

    // Calls use(part) for each part, empty(token, chunk) where a token sees nothing.
    template <class USE, class EMPTY> void parts(USE use, EMPTY empty) {
        const int64_t chunks = chunk_count(a);
        int64_t       n = a.n_tokens;
        for (int64_t c = 0; c < chunks; c++) {
            while (n > 0 && start[all[n - 1]] <= c * CHUNK) n--;
            const int64_t cells = seen_cells(a, c * CHUNK, std::min(CHUNK, a.n_cells - c * CHUNK));
            if (n > 0 && cells > 0) use(Part{0, c, c * CHUNK, cells, nullptr, all, n});
            for (int64_t i = 0; i < n && cells == 0; i++) empty(all[i], c);
        }
        for (int64_t i = n; i < a.n_tokens; i++) {
            find(all[i]);
            int64_t c = order.start / CHUNK;
            for (int at = 0; at < order.n; at += CHUNK, c++) {
                use(Part{0, c, 0, std::min<int64_t>(CHUNK, order.n - at), order.cell + at, all + i, 1});
            }
            for (; c < chunks; c++) empty(all[i], c);
        }
    }
};

// Each thread takes the same share of all products, by cells and queries.
void attention_chunks(const Attention & a, int thread, int threads, char * scratch, char * partials) {
    const int64_t group = shared_heads(a);
    Work          work(a);
    int64_t       total = 0;
    work.parts([&](const Part & p) { total += p.n * p.n_tokens * group * a.n_kv_heads; },
               [&](int32_t t, int64_t c) { if (thread == 0) set_empty(a, t, c, partials); });
    const int64_t begin = total * thread / threads, end = total * (thread + 1) / threads;
    int64_t       at = 0;
    work.parts(
        [&](Part p) {
            const int64_t queries = p.n_tokens * group;
            const auto    before = [&](int64_t bound) {
                return std::min(queries, std::max<int64_t>(0, (bound - at + p.n / 2) / p.n));
            };
            for (p.kv_head = 0; p.kv_head < a.n_kv_heads; p.kv_head++, at += p.n * queries) {
                if (before(begin) < before(end)) attend(a, p, before(begin), before(end), scratch, partials);
            }
        },
        [](int32_t, int64_t) {});
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

static floats tail(const float * x, int64_t n, float fill) {
    float all[LANES];
    for (int64_t i = 0; i < LANES; i++) all[i] = i < n ? x[i] : fill;
    return load(all);
}

static floats mask_of(const Softmax & s, int64_t i) {
    if (i + LANES > s.n) {
        float all[LANES] = {};
        for (int64_t j = i; j < s.n; j++) {
            all[j - i] = s.mask_type == F16 ? half_to_float(((const uint16_t *) s.mask)[j]) : ((const float *) s.mask)[j];
        }
        return load(all);
    }
    return s.mask_type == F16 ? load_f16((const uint16_t *) s.mask + i) : load((const float *) s.mask + i);
}

void softmax(const Softmax & s, const float * x, float * y) {
    const floats scale = set(s.scale), slope = set(s.slope);
    floats       largest = set(s.sink ? *s.sink : -INFINITY);
    const auto   keep = [&](int64_t i, floats v) {
        if (i + LANES <= s.n) {
            store(y + i, v);
            return;
        }
        float all[LANES];
        store(all, v);
        memcpy(y + i, all, (size_t) (s.n - i) * sizeof(float));
    };
    for (int64_t i = 0; i < s.n; i += LANES) {
        floats v = mul(i + LANES <= s.n ? load(x + i) : tail(x + i, s.n - i, -INFINITY), scale);
        if (s.mask) v = fma(mask_of(s, i), slope, v);
        keep(i, v);
        largest = max(largest, v);
    }
    float all[LANES];
    store(all, largest);
    float top = all[0];
    for (int i = 1; i < LANES; i++) top = all[i] > top ? all[i] : top;
    const floats shift = set(top == -INFINITY ? 0.0f : -top);
    Order        order;
    order.n = 0;
    if (s.mask) order.find(s.mask_type, s.mask, s.n, LANES);
    const int64_t in_place = order.n > 0 ? order.start : s.n;
    floats        sum = zero();
    for (int64_t i = 0; i < s.n; i += LANES) {
        const floats v = i + LANES <= s.n ? load(y + i) : tail(y + i, s.n - i, -INFINITY);
        const floats w = minus_zero_where_equal(v, set(-INFINITY), exp_negative(add(v, shift)));
        keep(i, w);
        if (i < in_place) sum = add(sum, w);
    }
    for (int i = 0; i < order.n; i += LANES) {
        for (int j = 0; j < LANES; j++) all[j] = i + j < order.n ? y[order.cell[i + j]] : 0.0f;
        sum = add(sum, load(all));
    }
    // -0 stays -0: what comes next finds the hidden cells by it
    const float  total = reduce(sum) + (s.sink ? std::exp(*s.sink - top) : 0.0f);
    const floats inverse = set(total == 0 ? 0.0f : 1.0f / total);
    for (int64_t i = 0; i < s.n; i += LANES) {
        keep(i, mul(i + LANES <= s.n ? load(y + i) : tail(y + i, s.n - i, 0), inverse));
    }
}

#else

void   softmax(const Softmax &, const float *, float *) {}
bool   has_attention(const Attention &) { return false; }
size_t attention_scratch_bytes(const Attention &) { return 0; }
size_t attention_partial_bytes(const Attention &) { return 0; }
void   attention_chunks(const Attention &, int, int, char *, char *) {}
void   attention_combine(const Attention &, int, int, const char *) {}

#endif

}  // namespace edge
