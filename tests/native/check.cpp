// Checks the kernels of one instruction set against naive twins in double precision, and that no
// width, padding or neighbour changes a bit. Prints what fails; `check SEED` repeats a run.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attention.h"
#include "dense.h"
#include "quantized.h"

namespace {

using edge::Attention;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

long failures = 0, checks = 0;

void check(bool right, const char * format, ...) {
    checks++;
    if (right || ++failures > 20) return;
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::printf("\n");
}

struct Random {  // splitmix64
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    int   below(int n) { return (int) (next() % (uint64_t) n); }
    float normal() {  // nearly: the sum of four
        double sum = 0;
        for (int i = 0; i < 4; i++) sum += (double) (next() >> 11) * 0x1p-53 - 0.5;
        return (float) (sum * 1.7320508);
    }
} rng = {0};

#if defined(EDGE_KERNELS)

// -- numbers --

double read_half(uint16_t h) {
    const int e = (h >> 10) & 31, m = h & 1023;
    const double x = e == 0 ? std::ldexp(m, -24) : e < 31 ? std::ldexp(1024 + m, e - 25) : m ? NAN : INFINITY;
    return h & 0x8000 ? -x : x;
}

double half(uint16_t h) {
    static const std::vector<double> all = [] {
        std::vector<double> values;
        for (int i = 0; i < 65536; i++) values.push_back(read_half((uint16_t) i));
        return values;
    }();
    return all[h];
}

uint16_t to_half(double x) {  // nearest below in size, enough to make numbers
    uint16_t low = 0;
    for (int bit = 14; bit >= 0; bit--) {
        const uint16_t with = (uint16_t) (low | (1 << bit));
        if (with < 0x7c00 && half(with) <= std::fabs(x)) low = with;
    }
    return (uint16_t) (low | (std::signbit(x) ? 0x8000 : 0));
}

uint16_t read16(const uint8_t * p) { return (uint16_t) (p[0] | p[1] << 8); }
void     write16(uint8_t * p, uint16_t x) { p[0] = (uint8_t) x, p[1] = (uint8_t) (x >> 8); }

bool same(float a, float b) {  // to the bit; one NaN is as good as another
    return (std::isnan(a) && std::isnan(b)) || memcmp(&a, &b, 4) == 0;
}

// -- weights: the blocks of the GGUF format, read one column at a time --

struct Kind {
    int type;
    const char * name;
    int columns, bytes;
    std::vector<int> scales;  // where its F16 numbers stand
};
const Kind KINDS[] = {
    {edge::Q4_0, "Q4_0", 32, 18, {0}},      {edge::Q4_1, "Q4_1", 32, 20, {0, 2}},  {edge::Q5_0, "Q5_0", 32, 22, {0}},
    {edge::Q5_1, "Q5_1", 32, 24, {0, 2}},   {edge::Q8_0, "Q8_0", 32, 34, {0}},     {edge::IQ4_NL, "IQ4_NL", 32, 18, {0}},
    {edge::Q4_K, "Q4_K", 256, 144, {0, 2}}, {edge::Q5_K, "Q5_K", 256, 176, {0, 2}}, {edge::Q6_K, "Q6_K", 256, 210, {208}},
};
const int IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct Weight { double product, offset; };  // the weight is their sum

Weight weight(const Kind & kind, const uint8_t * row, int64_t column) {
    const uint8_t * b = row + column / kind.columns * kind.bytes;
    const int       c = (int) (column % kind.columns), l = c % 32;
    const auto nibble = [&](const uint8_t * q) { return c < 16 ? q[c] & 15 : q[c - 16] >> 4; };
    const auto fifth = [&](const uint8_t * q) { return (q[c / 8] >> (c % 8) & 1) << 4; };
    const double d = half(read16(b + kind.scales[0]));
    const double m = kind.scales.size() > 1 ? half(read16(b + kind.scales[1])) : 0;
    switch (kind.type) {
        case edge::Q4_0: return {d * (nibble(b + 2) - 8), 0};
        case edge::Q4_1: return {d * nibble(b + 4), m};
        case edge::Q5_0: return {d * ((nibble(b + 6) | fifth(b + 2)) - 16), 0};
        case edge::Q5_1: return {d * (nibble(b + 8) | fifth(b + 4)), m};
        case edge::Q8_0: return {d * (int8_t) b[2 + c], 0};
        case edge::IQ4_NL: return {d * IQ4[nibble(b + 2)], 0};
        case edge::Q6_K: {
            const int h = c / 128, quarter = c % 128 / 32;
            const int low = b[64 * h + 32 * (quarter % 2) + l] >> (quarter / 2 * 4) & 15;
            const int high = b[128 + 32 * h + l] >> (2 * quarter) & 3;
            return {d * (int8_t) b[192 + c / 16] * ((low | high << 4) - 32), 0};
        }
        default: {  // Q4_K, Q5_K
            const uint8_t * s = b + 4;
            const int j = c / 32;
            const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
            const int least = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
            const uint8_t * q = b + (kind.type == edge::Q4_K ? 16 : 48);
            int value = q[32 * (c / 64) + l] >> (j % 2 * 4) & 15;
            if (kind.type == edge::Q5_K) value |= (b[16 + l] >> j & 1) << 4;
            return {d * scale * value, -m * least};
        }
    }
}

// Random blocks; their scales are of every size, zero, denormal and the largest among them.
Bytes random_rows(const Kind & kind, int64_t rows, int64_t blocks) {
    Bytes bytes((size_t) (rows * blocks * kind.bytes));
    for (uint8_t & byte : bytes) byte = (uint8_t) rng.next();
    for (int64_t i = 0; i < rows * blocks; i++) {
        uint8_t * b = bytes.data() + i * kind.bytes;
        if (rng.below(8) == 0) memset(b, rng.below(2) ? 0xff : 0x80, (size_t) kind.bytes);  // -1 or -128
        for (int at : kind.scales) {
            const uint16_t special[] = {0, 0x8000, 1, 0x83ff, 0x7bff, 0xfbff};
            const int pick = rng.below(40);
            write16(b + at, pick < 6 ? special[pick] : to_half(0.05 * rng.normal()));
        }
    }
    return bytes;
}

// -- quantised products --

Floats random_row(int64_t n, int what) {
    Floats x((size_t) n);
    for (float & v : x) {
        v = rng.normal();
        if (what == 1) v = 0;
        if (what == 2) v *= 1e30f;
        if (what == 3) v *= 1e-39f;             // denormal
        if (what == 4) v = v < 0 ? -3.0f : 3.0f;  // all quants are the largest
        if (what == 5 && rng.below(50) == 0) v *= 1e4f;
        if (what == 6) v *= (float) std::exp(4 * rng.normal());
    }
    return x;
}

struct Result { double value, size; };  // and the sum of the sizes of what was added

// The twin of a product: the activations as they are once quantised block by block ...
std::vector<double> rounded(const Kind & kind, const Floats & x) {
    std::vector<double> y;
    for (size_t from = 0; from < x.size(); from += (size_t) kind.columns) {
        float largest = 0;
        for (int c = 0; c < kind.columns; c++) largest = std::fmax(largest, std::fabs(x[from + (size_t) c]));
        const float inverse = largest < 1e-36f ? 0 : 127.0f / largest;
        for (int c = 0; c < kind.columns; c++) {
            y.push_back((double) largest / 127 * std::nearbyint(x[from + (size_t) c] * inverse));
        }
    }
    return y;
}

// ... times one row of weights.
Result twin(const Kind & kind, const uint8_t * row, const std::vector<double> & x) {
    Result sum = {0, 0};
    for (size_t c = 0; c < x.size(); c++) {
        const Weight w = weight(kind, row, (int64_t) c);
        sum.value += (w.product + w.offset) * x[c];
        sum.size += (std::fabs(w.product) + std::fabs(w.offset)) * std::fabs(x[c]);
    }
    return sum;
}

// All rows of the product for tokens [first, first + n), as the back end goes about it.
std::vector<Floats> product(const edge::Format * f, const Bytes & panels, int64_t rows, int64_t blocks,
                            const std::vector<Floats> & x, int first, int n) {
    constexpr float GUARD = 12345.0f;
    std::vector<Floats> y((size_t) n, Floats((size_t) rows + 3, GUARD));
    for (int g = 0; g < edge::group_count(f, n); g++) {
        const int start = (int) edge::group_start(f, n, g), count = edge::group_size(f, n, g);
        Bytes act((size_t) (count * blocks) * f->activation_bytes, 0xff);
        std::vector<const float *> in;
        for (int t = 0; t < count; t++) in.push_back(x[(size_t) (first + start + t)].data());
        const int64_t middle = rng.below((int) blocks + 1);
        f->quantize(in.data(), count, middle, blocks, act.data());
        f->quantize(in.data(), count, 0, middle, act.data());
        for (int64_t p = 0; p * edge::PANEL < rows; p++) {
            std::vector<float *> out;
            for (int t = 0; t < count; t++) out.push_back(y[(size_t) (start + t)].data() + p * edge::PANEL);
            const int64_t left = rows - p * edge::PANEL;
            f->product(panels.data() + (size_t) p * edge::panel_bytes(f, blocks), blocks, act.data(), count,
                       out.data(), (int) (left < edge::PANEL ? left : edge::PANEL));
        }
    }
    for (Floats & row : y) {
        for (int i = 0; i < 3; i++) check(row[(size_t) (rows + i)] == GUARD, "a product wrote behind its rows");
        row.resize((size_t) rows);
    }
    return y;
}

void check_groups(const edge::Format * f) {
    for (int64_t n = 1; n <= 70; n++) {
        int64_t at = 0;
        for (int g = 0; g < edge::group_count(f, n); g++) {
            check(edge::group_start(f, n, g) == at && edge::group_size(f, n, g) > 0, "group %d of %d", g, (int) n);
            at += edge::group_size(f, n, g);
        }
        check(at == n, "the groups of %d hold %d", (int) n, (int) at);
    }
}

void check_quantized(const Kind & kind, int64_t rows, int64_t blocks) {
    const edge::Format * f = edge::format(kind.type);
    check(f != nullptr, "%s: no kernel", kind.name);
    if (!f) return;
    check_groups(f);
    check(f->block == kind.columns && f->block_bytes == (size_t) kind.bytes, "%s: size of a block", kind.name);
    const int64_t columns = blocks * kind.columns;
    const Bytes weights = random_rows(kind, rows, blocks);
    Bytes panels(edge::packed_bytes(f, rows, columns), 0xff);
    edge::pack(f, rows, columns, weights.data(), panels.data());
    std::vector<Floats> x;
    for (int t = 0; t < 33; t++) x.push_back(random_row(columns, t < 7 ? t : rng.below(7)));
    std::vector<Floats> one;
    for (int t = 0; t < 33; t++) one.push_back(product(f, panels, rows, blocks, x, t, 1)[0]);
    for (int t = 0; t < 9; t++) {
        const std::vector<double> activations = rounded(kind, x[(size_t) t]);
        for (int64_t r = 0; r < rows; r++) {
            const Result want = twin(kind, weights.data() + r * blocks * kind.bytes, activations);
            const double slack = want.size * (2.0 * (double) blocks + 20) * 0x1p-24 + (double) blocks * 1e-34;
            const float got = one[(size_t) t][(size_t) r];
            check(want.size > 1e38 || std::fabs(got - want.value) <= slack,
                  "%s, %d x %d: row %d of token %d is %.9g, not %.9g", kind.name, (int) rows, (int) columns, (int) r, t,
                  (double) got, want.value);
        }
    }
    const auto compare = [&](int first, int n, int but, const char * why) {
        const std::vector<Floats> y = product(f, panels, rows, blocks, x, first, n);
        for (int t = 0; t < n; t++) {
            bool equal = true;
            for (int64_t r = 0; r < rows; r++) equal &= same(y[(size_t) t][(size_t) r], one[(size_t) (first + t)][(size_t) r]);
            check(equal || t == but, "%s, %d x %d: token %d of %d differs from the same alone%s", kind.name, (int) rows,
                  (int) columns, t, n, why);
        }
    };
    for (int n = 2; n <= 16; n++) compare(rng.below(33 - n), n, -1, "");
    compare(0, 33, -1, "");
    const int sick = rng.below(6);
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        x[(size_t) sick][(size_t) rng.below((int) columns)] = bad;
        compare(0, 6, sick, " beside a NaN or an infinity");
    }
}

// -- dense products --

double element(int type, const uint8_t * p, int64_t i) {
    if (type == edge::F16) return half(read16(p + 2 * i));
    float x;
    if (type == edge::F32) memcpy(&x, p + 4 * i, 4);
    const uint32_t bits = (uint32_t) read16(p + (type == edge::BF16 ? 2 * i : 0)) << 16;
    if (type == edge::BF16) memcpy(&x, &bits, 4);
    return x;
}

void set_element(int type, uint8_t * p, int64_t i, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (type == edge::F16) return write16(p + 2 * i, to_half(x));
    if (type == edge::BF16) return write16(p + 2 * i, (uint16_t) (bits >> 16));
    memcpy(p + 4 * i, &x, 4);
}

const char * name_of(int type) {
    return type == edge::F16 ? "F16" : type == edge::BF16 ? "BF16" : type == edge::F32 ? "F32" : "Q8_0";
}

std::vector<Floats> dense(int type, const Bytes & w, size_t stride, int64_t rows, int64_t columns,
                          const std::vector<Floats> & x, int first, int n) {
    std::vector<Floats> y((size_t) n, Floats((size_t) rows, NAN));
    std::vector<const float *> in;
    std::vector<float *> out;
    for (int t = 0; t < n; t++) in.push_back(x[(size_t) (first + t)].data()), out.push_back(y[(size_t) t].data());
    edge::dense_product(type, (const char *) w.data(), stride, rows, columns, in.data(), n, out.data());
    return y;
}

void check_dense(int type, int64_t rows, int64_t columns) {
    const int64_t more = columns + 19;  // zeros of the activations, anything in the weights
    const size_t  size = type == edge::F32 ? 4 : 2, stride = (size_t) more * size;
    Bytes w((size_t) rows * stride);
    for (int64_t i = 0; i < rows * more; i++) {
        const float special[] = {0, -0.0f, 6e-8f, 65504, -65504};
        const int pick = rng.below(100);
        set_element(type, w.data(), i, pick < 5 ? special[pick] : rng.normal());
    }
    std::vector<Floats> x, longer;
    for (int t = 0; t < 21; t++) x.push_back(random_row(columns, t < 7 && t != 2 ? t : 0));
    for (Floats row : x) row.resize((size_t) more, 0.0f), longer.push_back(row);
    std::vector<Floats> one;
    for (int t = 0; t < 21; t++) one.push_back(dense(type, w, stride, rows, columns, x, t, 1)[0]);
    for (int t = 0; t < 21; t++) {
        for (int64_t r = 0; r < rows; r++) {
            double want = 0, size_of = 0;
            for (int64_t c = 0; c < columns; c++) {
                const double part = element(type, w.data() + (size_t) r * stride, c) * x[(size_t) t][(size_t) c];
                want += part, size_of += std::fabs(part);
            }
            const double got = one[(size_t) t][(size_t) r];
            check(std::fabs(got - want) <= size_of * (double) (columns + 4) * 0x1p-24 + (double) columns * 1e-45,
                  "%s, %d x %d: row %d of token %d is %.9g, not %.9g", name_of(type), (int) rows, (int) columns, (int) r, t,
                  got, want);
        }
    }
    const auto compare = [&](const std::vector<Floats> & from, int64_t length, int first, int n, int but, const char * why) {
        const std::vector<Floats> y = dense(type, w, stride, rows, length, from, first, n);
        for (int t = 0; t < n; t++) {
            bool equal = true;
            for (int64_t r = 0; r < rows; r++) equal &= same(y[(size_t) t][(size_t) r], one[(size_t) (first + t)][(size_t) r]);
            check(equal || t == but, "%s, %d x %d: token %d of %d differs from the same alone%s", name_of(type), (int) rows,
                  (int) columns, t, n, why);
        }
    };
    for (int n = 2; n <= 16; n++) compare(x, columns, rng.below(21 - n), n, -1, "");
    compare(x, columns, 0, 21, -1, "");
    for (int n : {1, 7}) compare(longer, more, 4, n, -1, " with zeros behind its end");
    x[3][(size_t) rng.below((int) columns)] = NAN;
    compare(x, columns, 0, 6, 3, " beside a NaN");
}

// -- attention --

struct Plane {  // keys or values of all heads, each cell of a head apart by `cell` bytes
    int type;
    int64_t size;
    size_t  cell;
    Bytes   bytes;

    Plane(int kind, int64_t dimensions, int64_t heads, int64_t cells)
        : type(kind), size(dimensions), cell((size_t) (kind == edge::Q8_0 ? dimensions / 32 * 34 : dimensions * (kind == edge::F32 ? 4 : 2))),
          bytes((size_t) (heads * cells) * cell) {
        for (int64_t i = 0; i < heads * cells; i++) fill(bytes.data() + (size_t) i * cell, 1);
    }
    void fill(uint8_t * at, float spread) {
        for (int64_t i = 0; i < size; i++) {
            if (type != edge::Q8_0) set_element(type, at, i, spread * rng.normal());
            else if (i % 32 == 0) write16(at + i / 32 * 34, to_half(spread * 0.02 * rng.normal()));
            if (type == edge::Q8_0) at[i / 32 * 34 + 2 + i % 32] = (uint8_t) rng.next();
        }
    }
    // Heads lie in a cell beside each other, as in llama.cpp's cache.
    const uint8_t * row(int64_t heads, int64_t head, int64_t c) const { return bytes.data() + (size_t) (c * heads + head) * cell; }
    double get(const uint8_t * row, int64_t i) const {
        return type == edge::Q8_0 ? half(read16(row + i / 32 * 34)) * (int8_t) row[i / 32 * 34 + 2 + i % 32] : element(type, row, i);
    }
    edge::Cache cache(int64_t heads) const { return {type, (const char *) bytes.data(), cell * (size_t) heads, cell, size}; }
};

struct Case {
    int k_type, v_type;
    int64_t k_size, v_size, heads, kv_heads, tokens, cells;
    int mask;  // 0 none, 1 causal, 2 with holes, 3 also whole chunks hidden, 4 nothing visible to some, 5 one for each head
    bool sinks;
    float softcap, max_bias;
};

struct Problem {
    Case c;
    Plane k, v;
    Floats q, sinks;                // [head][token][dimension]
    std::vector<uint16_t> mask;     // [mask head][token][cell]
    int64_t mask_heads;

    explicit Problem(const Case & x)
        : c(x), k(x.k_type, x.k_size, x.kv_heads, x.cells), v(x.v_type, x.v_size, x.kv_heads, x.cells),
          q((size_t) (x.heads * x.tokens * x.k_size)), mask_heads(x.mask == 5 ? x.heads : 1) {
        for (float & value : q) value = 2 * rng.normal();
        for (int64_t h = 0; h < x.heads && x.sinks; h++) sinks.push_back(rng.normal());
        if (x.mask == 0) return;
        for (int64_t h = 0; h < mask_heads; h++) {
            for (int64_t t = 0; t < x.tokens; t++) {
                for (int64_t i = 0; i < x.cells; i++) mask.push_back(one_mask(t, i));
            }
        }
    }
    uint16_t one_mask(int64_t t, int64_t i) const {
        const int64_t last = c.cells > c.tokens ? c.cells - c.tokens + t : c.cells - 1;
        bool hidden = i > last;
        if (c.mask >= 2) hidden |= rng.below(3) == 0;
        if (c.mask == 3) hidden |= i / edge::CHUNK % 2 == 1;
        if (c.mask == 4) hidden |= t % 2 == 1;
        return hidden ? 0xfc00 : c.max_bias > 0 ? to_half((double) (i - last)) : 0;
    }
    bool visible(int64_t h, int64_t t, int64_t i) const {
        return mask.empty() || mask[(size_t) ((h % mask_heads * c.tokens + t) * c.cells + i)] != 0xfc00;
    }
    // Where the cells that a token sees would lie without hidden ones between them.
    std::vector<int64_t> seen_by(int64_t t) const {
        std::vector<int64_t> places;
        for (int64_t i = 0; i < c.cells; i++) {
            if (visible(0, t, i)) places.push_back(places.empty() ? i : places.back() + 1);
        }
        return places.empty() ? std::vector<int64_t>{0} : places;
    }
    // One token of the problem, with its cells there.
    Problem gathered(int64_t t) const {
        Problem one = *this;
        one.c.tokens = 1;
        const std::vector<int64_t> places = seen_by(t);
        one.mask.assign((size_t) c.cells, 0xfc00);
        for (int64_t i = 0, n = 0; i < c.cells; i++) {
            if (!visible(0, t, i)) continue;
            const int64_t to = places[(size_t) n++];
            one.mask[(size_t) to] = mask[(size_t) (t * c.cells + i)];
            for (int64_t h = 0; h < c.kv_heads; h++) {
                memcpy((uint8_t *) one.k.row(c.kv_heads, h, to), k.row(c.kv_heads, h, i), k.cell);
                memcpy((uint8_t *) one.v.row(c.kv_heads, h, to), v.row(c.kv_heads, h, i), v.cell);
            }
        }
        for (int64_t h = 0; h < c.heads; h++) {
            const float * from = q.data() + (h * c.tokens + t) * c.k_size;
            std::copy(from, from + c.k_size, one.q.begin() + h * c.k_size);
        }
        return one;
    }
    // Attention of tokens [first, first + n) over the first `cells` cells.
    Floats run(int64_t first, int64_t n, int64_t cells, int threads) const {
        Attention a = {};
        a.k = k.cache(c.kv_heads), a.v = v.cache(c.kv_heads);
        a.n_cells = cells, a.n_tokens = n, a.n_heads = c.heads, a.n_kv_heads = c.kv_heads;
        a.q = (const char *) (q.data() + first * c.k_size);
        a.q_token_bytes = (size_t) c.k_size * 4, a.q_head_bytes = a.q_token_bytes * (size_t) c.tokens;
        if (!mask.empty()) {
            a.mask = (const char *) (mask.data() + first * c.cells);
            a.mask_token_bytes = (size_t) c.cells * 2, a.mask_head_bytes = a.mask_token_bytes * (size_t) c.tokens;
            a.mask_heads = mask_heads;
        }
        a.sinks = sinks.empty() ? nullptr : sinks.data();
        a.scale = 1 / std::sqrt((float) c.k_size), a.softcap = c.softcap, a.max_bias = c.max_bias;
        Floats out((size_t) (n * c.heads * c.v_size), NAN);
        a.out = out.data();
        check(edge::has_attention(a), "attention of this form is not taken");
        std::vector<char> partials(edge::attention_partial_bytes(a), (char) 0xff);
        for (int thread = 0; thread < threads; thread++) {
            std::vector<char> scratch(edge::attention_scratch_bytes(a), (char) 0xff);
            edge::attention_chunks(a, thread, threads, scratch.data(), partials.data());
        }
        for (int thread = 0; thread < threads; thread++) edge::attention_combine(a, thread, threads, partials.data());
        return out;
    }
    void twin(int64_t h, int64_t t, std::vector<double> & out, double & slack) const {
        const int64_t kv = h / (c.heads / c.kv_heads), size = c.k_size;
        const double power = std::exp2(std::floor(std::log2((double) c.heads)));
        const double slope = c.max_bias <= 0 ? 1 : (double) h < power
            ? std::exp2(-c.max_bias * (double) (h + 1) / power) : std::exp2(-c.max_bias / 2 * (2 * ((double) h - power) + 1) / power);
        std::vector<double> s((size_t) c.cells, -INFINITY);
        double top = sinks.empty() ? -INFINITY : sinks[(size_t) h], reach = 0, widest = 0;
        for (int64_t i = 0; i < c.cells; i++) {
            if (!visible(h, t, i)) continue;
            double dot = 0, sum = 0;
            for (int64_t j = 0; j < size; j++) {
                const double part = q[(size_t) ((h * c.tokens + t) * size + j)] * k.get(k.row(c.kv_heads, kv, i), j);
                dot += part, sum += std::fabs(part);
            }
            const double scale = 1 / std::sqrt((double) size);
            double x = dot * scale;
            if (c.softcap != 0) x = c.softcap * std::tanh(x / c.softcap);
            if (!mask.empty()) x += slope * half(mask[(size_t) ((h % mask_heads * c.tokens + t) * c.cells + i)]);
            s[(size_t) i] = x;
            top = std::fmax(top, x), reach = std::fmax(reach, sum * scale + std::fabs(x));
        }
        double sum = sinks.empty() ? 0 : std::exp(sinks[(size_t) h] - top);
        out.assign((size_t) c.v_size, 0);
        for (int64_t i = 0; i < c.cells; i++) {
            if (s[(size_t) i] == -INFINITY) continue;
            const double w = std::exp(s[(size_t) i] - top);
            sum += w;
            for (int64_t j = 0; j < c.v_size; j++) {
                const double value = v.get(v.row(c.kv_heads, kv, i), j);
                out[(size_t) j] += w * value, widest = std::fmax(widest, std::fabs(value));
            }
        }
        for (double & x : out) x = sum == 0 ? 0 : x / sum;
        slack = widest * (2 * reach * ((double) size / 16 + 8) + (double) c.cells / 8 + 32) * 0x1p-23;
    }
};

void check_attention(const Case & c) {
    Problem p(c);
    char text[160];
    std::snprintf(text, sizeof text, "attention %s/%s %d/%d, %d/%d heads, %d tokens, %d cells, mask %d%s, softcap %g, bias %g",
                  name_of(c.k_type), name_of(c.v_type), (int) c.k_size, (int) c.v_size, (int) c.heads, (int) c.kv_heads,
                  (int) c.tokens, (int) c.cells, c.mask, c.sinks ? ", sinks" : "", (double) c.softcap, (double) c.max_bias);
    const Floats all = p.run(0, c.tokens, c.cells, 1);
    const int64_t row = c.heads * c.v_size;
    for (int64_t t = 0; t < c.tokens; t += c.tokens > 4 ? 5 : 1) {
        for (int64_t h = 0; h < c.heads; h++) {
            std::vector<double> want;
            double slack;
            p.twin(h, t, want, slack);
            double most = 0;
            for (int64_t j = 0; j < c.v_size; j++) {
                const double off = std::fabs(all[(size_t) (t * row + h * c.v_size + j)] - want[(size_t) j]);
                most = off <= most ? most : off;
            }
            check(most <= slack, "%s: head %d of token %d is off by %g, allowed are %g", text, (int) h, (int) t, most, slack);
        }
    }
    const auto compare = [&](const Floats & got, int64_t first, int64_t n, int64_t but, const char * why) {
        for (int64_t t = 0; t < n; t++) {
            bool equal = true;
            for (int64_t i = 0; i < row; i++) equal &= same(got[(size_t) (t * row + i)], all[(size_t) ((first + t) * row + i)]);
            check(equal || first + t == but, "%s: token %d differs %s", text, (int) (first + t), why);
        }
    };
    for (int threads : {2, 3}) compare(p.run(0, c.tokens, c.cells, threads), 0, c.tokens, -1, "with more threads");
    for (int64_t t = 0; t < c.tokens; t++) compare(p.run(t, 1, c.cells, 1 + (int) t % 2), t, 1, -1, "alone");
    for (int64_t n = 2; n < c.tokens; n += n < 16 ? 1 : 9) {
        const int64_t first = rng.below((int) (c.tokens - n) + 1);
        compare(p.run(first, n, c.cells, 2), first, n, -1, "in another width");
    }
    int64_t seen = c.mask ? 0 : c.cells;  // as far as any token sees
    for (int64_t i = 0; i < c.cells && c.mask; i++) {
        bool hidden = true;
        for (int64_t h = 0; h < p.mask_heads; h++) {
            for (int64_t t = 0; t < c.tokens; t++) hidden &= !p.visible(h, t, i);
        }
        for (int64_t h = 0; h < c.kv_heads && hidden; h++) {
            p.k.fill((uint8_t *) p.k.row(c.kv_heads, h, i), 9000), p.v.fill((uint8_t *) p.v.row(c.kv_heads, h, i), 9000);
        }
        if (!hidden) seen = i + 1;
    }
    compare(p.run(0, c.tokens, c.cells, 2), 0, c.tokens, -1, "when hidden cells hold something else");
    if (seen > 0) compare(p.run(0, c.tokens, seen, 1), 0, c.tokens, -1, "without the cells behind the last visible one");
    for (int64_t t = 0; t < c.tokens && c.mask > 1 && c.mask < 4; t += 3) {
        compare(p.gathered(t).run(0, 1, p.seen_by(t).back() + 1, 1), t, 1, -1, "where hidden cells lie between those it sees");
    }
    const int64_t sick = rng.below((int) c.tokens);
    for (int64_t h = 0; h < c.heads; h++) p.q[(size_t) ((h * c.tokens + sick) * c.k_size)] = h % 2 ? NAN : INFINITY;
    compare(p.run(0, c.tokens, c.cells, 2), 0, c.tokens, sick, "beside a NaN");
}

// -- softmax --

void check_softmax(int64_t n, int mask_type, bool sink) {  // mask_type < 0: none
    Floats x = random_row(n + 40, 0);
    for (float & v : x) v *= 10;
    Bytes mask((size_t) ((n + 40) * (mask_type == edge::F32 ? 4 : 2)));
    for (int64_t i = 0; i < n + 40 && mask_type >= 0; i++) {
        const bool hidden = i >= n || rng.below(3) == 0;
        const float value = -(float) rng.below(20);
        if (mask_type == edge::F32) set_element(mask_type, mask.data(), i, hidden ? -INFINITY : value);
        else write16(mask.data() + 2 * i, hidden ? 0xfc00 : to_half(value));
    }
    const float sinks = rng.normal();
    edge::Softmax s = {n, 0.3f, 0.5f, mask_type, mask_type < 0 ? nullptr : (const char *) mask.data(), sink ? &sinks : nullptr};
    Floats y((size_t) n + 3, 7.0f);
    edge::softmax(s, x.data(), y.data());
    std::vector<double> want;
    double top = sink ? sinks : -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        want.push_back(0.3 * x[(size_t) i] + (mask_type < 0 ? 0 : 0.5 * element(mask_type, mask.data(), i)));
        top = std::fmax(top, want.back());
    }
    double sum = sink ? std::exp(sinks - top) : 0, off = 0;
    for (double & w : want) sum += w = std::isinf(top) ? 0 : std::exp(w - top);
    for (int64_t i = 0; i < n; i++) {
        off = std::fmax(off, std::fabs(y[(size_t) i] - (sum == 0 ? 0 : want[(size_t) i] / sum)));
        check(std::isfinite(y[(size_t) i]), "softmax of %d: not finite", (int) n);
    }
    check(off < 4e-6, "softmax of %d, mask %d%s: off by %g", (int) n, mask_type, sink ? ", sink" : "", off);
    for (int i = 0; i < 3; i++) check(y[(size_t) (n + i)] == 7.0f, "softmax of %d wrote behind its end", (int) n);
    if (mask_type < 0) return;
    s.n = n + 40;
    Floats longer((size_t) s.n, NAN);
    edge::softmax(s, x.data(), longer.data());
    bool equal = true;
    for (int64_t i = 0; i < s.n; i++) equal &= same(longer[(size_t) i], i < n ? y[(size_t) i] : -0.0f);
    check(equal, "softmax of %d differs with hidden cells behind", (int) n);
}

void check_attentions() {
    const int types[] = {edge::F16, edge::Q8_0, edge::BF16, edge::F32}, sizes[] = {64, 80, 96, 128, 256};
    const int cells[] = {1, 37, 128, 200, 300, 400};
    for (int i = 0; i < 48; i++) {
        Case c = {};
        c.k_type = types[i % 4];
        c.v_type = i % 3 ? c.k_type : types[rng.below(4)];
        c.k_size = sizes[i % 5];
        c.v_size = i % 7 ? c.k_size : 64;
        if (c.k_type == edge::Q8_0) c.k_size = (c.k_size + 31) / 32 * 32;
        if (c.v_type == edge::Q8_0) c.v_size = (c.v_size + 31) / 32 * 32;
        c.kv_heads = 1 + i % 2;
        c.heads = c.kv_heads * (1 + rng.below(4));
        c.tokens = i == 7 ? 37 : i % 6 == 0 ? 16 : 1 + rng.below(8);
        c.cells = cells[rng.below(6)];
        c.mask = i % 6;
        c.sinks = rng.below(3) == 0;
        c.softcap = rng.below(3) == 0 ? 5.0f : 0.0f;
        c.max_bias = rng.below(3) == 0 ? 8.0f : 0.0f;
        check_attention(c);
    }
}

#endif

}  // namespace

int main(int argc, char ** argv) {
    rng.state = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
#if defined(EDGE_KERNELS)
    for (const Kind & kind : KINDS) {
        const int super = kind.columns == 256;
        const int rows[] = {1, 5, 16, 17, 43}, blocks[] = {1, 2, 3, 5, super ? 4 : 9};
        for (int i = 0; i < 5; i++) check_quantized(kind, rows[(i + rng.below(5)) % 5], blocks[i]);
    }
    for (int type : {edge::F16, edge::BF16, edge::F32}) {
        const int rows[] = {1, 3, 8, 9, 16, 37}, columns[] = {1, 5, 16, 17, 64, 83, 259};
        for (int c : columns) check_dense(type, rows[rng.below(6)], c);
    }
    for (int n : {1, 7, 16, 33, 64, 100, 257}) {
        for (int type : {-1, (int) edge::F16, (int) edge::F32}) check_softmax(n, type, rng.below(2));
    }
    check_attentions();
    const char * isa = edge::ISA;
#else
    for (int type = 0; type < 64; type++) {
        check(!edge::format(type) && !edge::has_dense(type), "type %d has a kernel in a build without kernels", type);
    }
    check(!edge::has_attention(Attention()), "attention in a build without kernels");
    const char * isa = "no kernels";
#endif
    std::printf("%s: %ld checks, %ld failures\n", isa, checks, failures);
    return failures ? 1 : 0;
}
