#include "backend.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attention.h"
#include "dense.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "quantized.h"
#include "traits.h"

namespace edge {

static_assert((int) F16 == GGML_TYPE_F16 && (int) Q4_0 == GGML_TYPE_Q4_0 && (int) Q5_1 == GGML_TYPE_Q5_1 &&
              (int) Q8_0 == GGML_TYPE_Q8_0 && (int) Q4_K == GGML_TYPE_Q4_K && (int) Q6_K == GGML_TYPE_Q6_K &&
              (int) IQ4_NL == GGML_TYPE_IQ4_NL && (int) BF16 == GGML_TYPE_BF16, "GGUF's numbers of types");

constexpr int64_t QUANTIZE_ALONE = 16 * 1024;  // up to so many activations each thread quantises all
constexpr int     TILE = 128;                  // tokens for which a panel stays in the cache
constexpr size_t  LINE = 64;

static size_t up(size_t n) { return (n + LINE - 1) / LINE * LINE; }

// The rows of activations of a product, counted through all batches (mostly one: no divisions then).
struct Activations {
    const ggml_tensor * x;
    ggml_tensor *       y;
    const float * in(int64_t i) const {
        if (i < x->ne[1]) return (const float *) ((const char *) x->data + i * x->nb[1]);
        const int64_t n1 = x->ne[1], n2 = x->ne[2];
        return (const float *) ((const char *) x->data + i % n1 * x->nb[1] + i / n1 % n2 * x->nb[2] + i / n1 / n2 * x->nb[3]);
    }
    float * out(int64_t i) const {
        if (i < y->ne[1]) return (float *) ((char *) y->data + i * y->nb[1]);
        const int64_t n1 = y->ne[1], n2 = y->ne[2];
        return (float *) ((char *) y->data + i % n1 * y->nb[1] + i / n1 % n2 * y->nb[2] + i / n1 / n2 * y->nb[3]);
    }
};

// Quantise part `part` of `parts` of the groups' activations.
template <class IN>
static void quantize_part(const Format * f, int64_t n, int64_t blocks, IN in, uint8_t * act, int part, int parts) {
    const int64_t total = group_count(f, n) * blocks;
    const int64_t first = total * part / parts, last = total * (part + 1) / parts;
    for (int64_t i = first; i < last;) {
        const int     g = (int) (i / blocks), size = group_size(f, n, g);
        const int64_t start = group_start(f, n, g), b = i % blocks;
        const int64_t end = std::min(blocks, b + last - i);
        const float * x[16];
        for (int t = 0; t < size; t++) x[t] = in(start + t);
        f->quantize(x, size, b, end, act + (size_t) (start * blocks) * f->activation_bytes);
        i += end - b;
    }
}

// Panels [first, last) times groups [g0, g1).
template <class OUT>
static void multiply(const Format * f, const uint8_t * w, int64_t rows, int64_t blocks, int64_t n, const uint8_t * act,
                     OUT out, int64_t first, int64_t last, int g0, int g1) {
    const size_t size = panel_bytes(f, blocks);
    for (int64_t p = first; p < last; p++) {
        for (int g = g0; g < g1; g++) {
            const int64_t start = group_start(f, n, g);
            const int     count = group_size(f, n, g);
            float *       y[16];
            for (int t = 0; t < count; t++) y[t] = out(start + t) + p * PANEL;
            f->product(w + p * size, blocks, act + (size_t) (start * blocks) * f->activation_bytes, count, y,
                       (int) std::min<int64_t>(PANEL, rows - p * PANEL));
        }
    }
}

class QuantizedWeights : public ggml::cpu::tensor_traits {
    static size_t activations_bytes(const Format * f, const ggml_tensor * x) {
        return up((size_t) (ggml_nrows(x) * (x->ne[0] / f->block)) * f->activation_bytes);
    }
    static bool alone(const ggml_tensor * x) { return ggml_nelements(x) <= QUANTIZE_ALONE; }

    // One product of an expert with the rows that are its own.
    struct Run { int expert; int64_t first, n; };

    static size_t runs_bytes(const ggml_tensor * op) {
        const int64_t pairs = ggml_nelements(op->src[2]);
        return up(sizeof(int64_t)) + up((size_t) op->src[0]->ne[2] * sizeof(Run)) + up((size_t) pairs * sizeof(int32_t));
    }

  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const Format *      f = format(op->src[0]->type);
        const ggml_tensor * x = op->src[1];
        if (op->op == GGML_OP_MUL_MAT) {
            size = activations_bytes(f, x) * (alone(x) ? n_threads : 1) + LINE;
        } else {
            const int64_t pairs = ggml_nelements(op->src[2]);
            size = runs_bytes(op) + up((size_t) (pairs * (x->ne[0] / f->block)) * f->activation_bytes) + LINE;
        }
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->op == GGML_OP_MUL_MAT) product(params, op);
        if (op->op == GGML_OP_MUL_MAT_ID) experts(params, op);
        return true;
    }

  private:
    static uint8_t * work(const ggml_compute_params * params) {
        return (uint8_t *) (((uintptr_t) params->wdata + LINE - 1) / LINE * LINE);
    }

    static void product(const ggml_compute_params * params, ggml_tensor * op) {
        const ggml_tensor * w = op->src[0];
        const Activations   a = {op->src[1], op};
        const Format *      f = format(w->type);
        const int64_t       n = ggml_nrows(a.x), rows = w->ne[1], blocks = w->ne[0] / f->block;
        const int64_t       panels = (rows + PANEL - 1) / PANEL;
        const uint8_t *     data = (const uint8_t *) w->data;
        const auto          in = [&](int64_t i) { return a.in(i); };
        const auto          out = [&](int64_t i) { return a.out(i); };
        uint8_t *           act = work(params);
        const int           ith = params->ith, nth = params->nth, groups = group_count(f, n);
        if (alone(a.x)) {
            act += (size_t) ith * activations_bytes(f, a.x);
            quantize_part(f, n, blocks, in, act, 0, 1);
            multiply(f, data, rows, blocks, n, act, out, panels * ith / nth, panels * (ith + 1) / nth, 0, groups);
            return;
        }
        quantize_part(f, n, blocks, in, act, ith, nth);
        if (ith == 0) ggml_threadpool_chunk_set(params->threadpool, nth);
        ggml_barrier(params->threadpool);
        const int64_t chunks = std::min<int64_t>(panels, 16 * nth), step = TILE / f->max_group;
        const int64_t tiles = (groups + step - 1) / step;
        for (int64_t i = ith; i < chunks * tiles; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int64_t c = i % chunks, g = i / chunks * step;
            multiply(f, data, rows, blocks, n, act, out, panels * c / chunks, panels * (c + 1) / chunks, (int) g,
                     (int) std::min<int64_t>(g + step, groups));
        }
    }

    // Which rows each expert has, as runs of (slot, token) pairs.
    static void make_runs(const ggml_tensor * op, int64_t * n_runs, Run * runs, int32_t * pairs) {
        const ggml_tensor * ids = op->src[2];
        const int64_t       slots = ids->ne[0], tokens = ids->ne[1];
        int64_t             at = 0;
        *n_runs = 0;
        std::vector<std::vector<int32_t>> own((size_t) op->src[0]->ne[2]);
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t s = 0; s < slots; s++) {
                const int32_t e = *(const int32_t *) ((const char *) ids->data + t * ids->nb[1] + s * ids->nb[0]);
                GGML_ASSERT(e >= 0 && e < op->src[0]->ne[2]);
                own[(size_t) e].push_back((int32_t) (t * slots + s));
            }
        }
        for (size_t e = 0; e < own.size(); e++) {
            if (own[e].empty()) continue;
            runs[(*n_runs)++] = {(int) e, at, (int64_t) own[e].size()};
            std::copy(own[e].begin(), own[e].end(), pairs + at);
            at += (int64_t) own[e].size();
        }
    }

    static void experts(const ggml_compute_params * params, ggml_tensor * op) {
        const ggml_tensor * w = op->src[0];
        const ggml_tensor * x = op->src[1];
        const Format *      f = format(w->type);
        const int64_t       rows = w->ne[1], blocks = w->ne[0] / f->block, slots = op->src[2]->ne[0];
        const int64_t       panels = (rows + PANEL - 1) / PANEL;
        const size_t        expert_bytes = packed_bytes(f, rows, w->ne[0]);
        const int           ith = params->ith, nth = params->nth;
        uint8_t *           at = work(params);
        int64_t *           n_runs = (int64_t *) at;
        Run *               runs = (Run *) (at + up(sizeof(int64_t)));
        int32_t *           pairs = (int32_t *) ((uint8_t *) runs + up((size_t) w->ne[2] * sizeof(Run)));
        uint8_t *           act = at + runs_bytes(op);
        if (ith == 0) {
            make_runs(op, n_runs, runs, pairs);
            ggml_threadpool_chunk_set(params->threadpool, nth);
        }
        ggml_barrier(params->threadpool);
        const auto run_act = [&](const Run & r) { return act + (size_t) (r.first * blocks) * f->activation_bytes; };
        for (int64_t r = 0; r < *n_runs; r++) {
            const auto in = [&](int64_t i) {
                const int64_t pair = pairs[runs[r].first + i];
                return (const float *) ((const char *) x->data + pair % slots % x->ne[1] * x->nb[1] + pair / slots * x->nb[2]);
            };
            quantize_part(f, runs[r].n, blocks, in, run_act(runs[r]), ith, nth);
        }
        ggml_barrier(params->threadpool);
        const int64_t chunks = std::min<int64_t>(panels, 4 * nth);
        for (int64_t i = ith; i < chunks * *n_runs; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const Run &   r = runs[i / chunks];
            const int64_t c = i % chunks;
            const auto    out = [&](int64_t k) {
                const int64_t pair = pairs[r.first + k];
                return (float *) ((char *) op->data + pair % slots * op->nb[1] + pair / slots * op->nb[2]);
            };
            multiply(f, (const uint8_t *) w->data + (size_t) r.expert * expert_bytes, rows, blocks, r.n, run_act(r), out,
                     panels * c / chunks, panels * (c + 1) / chunks, 0, group_count(f, r.n));
        }
    }
};

// Products of tensors that are not quantised, and so stay where they are.
class DenseProduct : public ggml::cpu::tensor_traits {
    static constexpr int64_t ROWS = 24;      // of a piece of work
    static constexpr int64_t MOST = 256;     // columns that are worked on together

  public:
    static bool takes(const ggml_tensor * op) {
        const ggml_tensor * w = op->src[0];
        const ggml_tensor * x = op->src[1];
        return has_dense(w->type) && x->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F32 &&
               x->ne[2] / w->ne[2] <= MOST && x->nb[0] == sizeof(float) &&
               w->nb[0] == ggml_type_size(w->type) && w->nb[1] >= w->nb[0] &&
               ggml_get_op_params_i32(op, 1) != GGML_HINT_SRC0_IS_HADAMARD;
    }

    bool work_size(int, const ggml_tensor *, size_t & size) override {
        size = 0;
        return true;
    }

    // Values weighted for one token that is on a branch (see Order); false: it is not.
    static bool branch(const ggml_tensor * op, const char * data, int64_t n_rows, const float * const * in, int n,
                       float * const * out) {
#if defined(EDGE_KERNELS)
        constexpr int       WIDEST = Order::MOST + 16, GROUP = 4;
        const ggml_tensor * w = op->src[0];
        const size_t        size = ggml_type_size(w->type);
        Order               order;
        order.find_in_weights(in[0], w->ne[0], LANES);
        if (order.n == 0) return false;
        alignas(64) char values[ROWS * WIDEST * 4];
        float            weights[GROUP][WIDEST];
        const int        columns = (order.n + LANES - 1) / LANES * LANES;
        const float *    x[GROUP];
        float *          y[GROUP];
        for (int64_t r0 = 0; r0 < n_rows; r0 += ROWS) {
            const int64_t m = std::min(ROWS, n_rows - r0);
            for (int64_t r = 0; r < m; r++) {
                char * to = values + r * WIDEST * size;
                for (int k = 0; k < order.n; k++) memcpy(to + k * size, data + (r0 + r) * w->nb[1] + order.cell[k] * size, size);
                memset(to + order.n * size, 0, (columns - order.n) * size);
            }
            for (int h = 0; h < n; h += GROUP) {
                const int g = std::min(GROUP, n - h);
                for (int j = 0; j < g; j++) {
                    for (int k = 0; k < columns; k++) weights[j][k] = k < order.n ? in[h + j][order.cell[k]] : 0.0f;
                    x[j] = weights[j];
                    y[j] = out[h + j] + r0;
                }
                const More more = {values, WIDEST * size, columns, x};
                dense_product(w->type, data + r0 * w->nb[1], w->nb[1], m, order.start, in + h, g, y, &more);
            }
        }
        return true;
#else
        (void) op, (void) data, (void) n_rows, (void) in, (void) n, (void) out;
        return false;
#endif
    }

  public:
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * w = op->src[0];
        const ggml_tensor * x = op->src[1];
        const int64_t       rows = w->ne[1], pieces = (rows + ROWS - 1) / ROWS;
        const int64_t       share = x->ne[2] / w->ne[2], share3 = x->ne[3] / w->ne[3];
        const int64_t       planes = w->ne[2] * x->ne[3], total = planes * pieces;
        const int64_t       first = total * params->ith / params->nth, last = total * (params->ith + 1) / params->nth;
        // The mask itself may be overwritten by now: its last user was the softmax.
        const bool          are_weights = x->op == GGML_OP_SOFT_MAX && x->src[1] && x->src[1]->ne[2] == 1;
        for (int64_t i = first; i < last;) {
            const int64_t plane = i / pieces, i2 = plane % w->ne[2], i3 = plane / w->ne[2];
            const int64_t from = i % pieces, to = std::min(pieces, from + last - i);
            const char *  data = (const char *) w->data + i2 * w->nb[2] + i3 / share3 * w->nb[3] + from * ROWS * w->nb[1];
            const int64_t n_rows = std::min(rows, to * ROWS) - from * ROWS;
            const float * in[MOST];
            float *       out[MOST];
            int           n = 0;
            for (int64_t t = 0; t < x->ne[1]; t++) {
                if (n + share > MOST) {
                    dense_product(w->type, data, w->nb[1], n_rows, w->ne[0], in, n, out);
                    n = 0;
                }
                const int first_column = n;
                for (int64_t h = i2 * share; h < (i2 + 1) * share; h++, n++) {
                    in[n] = (const float *) ((const char *) x->data + t * x->nb[1] + h * x->nb[2] + i3 * x->nb[3]);
                    out[n] = (float *) ((char *) op->data + t * op->nb[1] + h * op->nb[2] + i3 * op->nb[3]) + from * ROWS;
                }
                if (are_weights && branch(op, data, n_rows, in + first_column, (int) share, out + first_column)) {
                    n = first_column;
                }
            }
            if (n > 0) dense_product(w->type, data, w->nb[1], n_rows, w->ne[0], in, n, out);
            i += to - from;
        }
        return true;
    }
};

class FlashAttention : public ggml::cpu::tensor_traits {
    static Attention describe(const ggml_tensor * op) {
        const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
        Attention a = {};
        a.k = {k->type, (const char *) k->data, k->nb[1], k->nb[2], k->ne[0]};
        a.v = {v->type, (const char *) v->data, v->nb[1], v->nb[2], v->ne[0]};
        a.n_cells = k->ne[1];
        a.n_tokens = q->ne[1];
        a.n_heads = q->ne[2];
        a.n_kv_heads = k->ne[2];
        a.q = (const char *) q->data;
        a.q_token_bytes = q->nb[1];
        a.q_head_bytes = q->nb[2];
        if (mask) {
            a.mask = (const char *) mask->data;
            a.mask_token_bytes = mask->nb[1];
            a.mask_head_bytes = mask->nb[2];
            a.mask_heads = mask->ne[2];
        }
        a.sinks = sinks ? (const float *) sinks->data : nullptr;
        a.scale = ggml_get_op_params_f32(op, 0);
        a.max_bias = ggml_get_op_params_f32(op, 1);
        a.softcap = ggml_get_op_params_f32(op, 2);
        a.out = (float *) op->data;
        return a;
    }

    static int64_t tokens_together(const Attention & a) {
        return std::min(a.n_tokens, std::max<int64_t>(1, std::min(MOST_TOKENS, MOST_QUERIES * a.n_kv_heads / a.n_heads)));
    }

  public:
    static bool takes(const ggml_tensor * op) {
        const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
        return q->ne[3] == 1 && k->ne[3] == 1 && k->ne[2] == v->ne[2] &&
               q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && k->nb[0] == ggml_type_size(k->type) &&
               v->nb[0] == ggml_type_size(v->type) && ggml_is_contiguous(op) && (!mask || mask->type == GGML_TYPE_F16) &&
               has_attention(describe(op));
    }

    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        Attention a = describe(op);
        a.n_tokens = tokens_together(a);
        size = up(attention_partial_bytes(a)) + n_threads * up(attention_scratch_bytes(a)) + LINE;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        Attention     a = describe(op);
        const int64_t n_tokens = a.n_tokens, step = tokens_together(a);
        a.n_tokens = step;
        char * partials = (char *) (((uintptr_t) params->wdata + LINE - 1) / LINE * LINE);
        char * scratch = partials + up(attention_partial_bytes(a)) + params->ith * up(attention_scratch_bytes(a));
        for (int64_t t = 0; t < n_tokens; t += step) {
            if (t > 0) ggml_barrier(params->threadpool);  // all are done with the partials
            a.n_tokens = std::min(step, n_tokens - t);
            attention_chunks(a, params->ith, params->nth, scratch, partials);
            ggml_barrier(params->threadpool);
            attention_combine(a, params->ith, params->nth, partials);
            a.q += step * a.q_token_bytes;
            a.mask += a.mask ? step * a.mask_token_bytes : 0;
            a.out += step * a.n_heads * a.v.size;
        }
        return true;
    }
};

// The weights of attention where it is not done in one piece: all threads share all heads.
class AttentionWeights : public ggml::cpu::tensor_traits {
  public:
    static bool takes(const ggml_tensor * op) {
        const ggml_tensor *x = op->src[0], *mask = op->src[1];
        return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && ggml_is_contiguous(op) &&
               (!mask || ((mask->type == GGML_TYPE_F16 || mask->type == GGML_TYPE_F32) && mask->nb[0] == ggml_type_size(mask->type)));
    }

    bool work_size(int, const ggml_tensor *, size_t & size) override {
        size = 0;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor *x = op->src[0], *mask = op->src[1], *sinks = op->src[2];
        const int64_t      tokens = x->ne[1], heads = x->ne[2], total = ggml_nrows(x);
        for (int64_t i = total * params->ith / params->nth; i < total * (params->ith + 1) / params->nth; i++) {
            const int64_t t = i % tokens, h = i / tokens % heads, b = i / tokens / heads;
            Softmax s = {x->ne[0], ggml_get_op_params_f32(op, 0), alibi_slope(h, heads, ggml_get_op_params_f32(op, 1)), 0, nullptr, nullptr};
            if (mask) {
                s.mask_type = mask->type;
                s.mask = (const char *) mask->data + t * mask->nb[1] + h % mask->ne[2] * mask->nb[2] + b % mask->ne[3] * mask->nb[3];
            }
            if (sinks) s.sink = (const float *) sinks->data + h;
            softmax(s, (const float *) ((const char *) x->data + t * x->nb[1] + h * x->nb[2] + b * x->nb[3]),
                    (float *) ((char *) op->data + t * op->nb[1] + h * op->nb[2] + b * op->nb[3]));
        }
        return true;
    }
};

// Single values into a cache of values that lies transposed, as it does without flash attention.
class SetValues : public ggml::cpu::tensor_traits {
  public:
    static bool takes(const ggml_tensor * op) {
        const ggml_tensor *x = op->src[0], *rows = op->src[1];
        return x->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F16 && x->ne[0] == 1 && x->ne[2] == 1 && x->ne[3] == 1 &&
               rows->type == GGML_TYPE_I64;
    }

    bool work_size(int, const ggml_tensor *, size_t & size) override {
        size = 0;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
#if defined(EDGE_KERNELS)
        const ggml_tensor *x = op->src[0], *rows = op->src[1];
        for (int64_t i = x->ne[1] * params->ith / params->nth; i < x->ne[1] * (params->ith + 1) / params->nth; i++) {
            const int64_t row = *(const int64_t *) ((const char *) rows->data + i * rows->nb[0]);
            GGML_ASSERT(row >= 0 && row < op->ne[1]);
            const float value = *(const float *) ((const char *) x->data + i * x->nb[1]);
            *(uint16_t *) ((char *) op->data + row * op->nb[1]) = float_to_half(value);
        }
#endif
        (void) params, (void) op;
        return true;
    }
};

// -- switches --

// A processor with AMX tiles reads prompts faster with llama.cpp's own packing, so there the weights
// are ours only if asked for.
static int preferred() {
#if defined(__AMX_INT8__)
    return EDGE_TR_DENSE | EDGE_TR_ATTENTION;
#else
    return EDGE_TR_WEIGHTS | EDGE_TR_DENSE | EDGE_TR_ATTENTION;
#endif
}

static int possible() {
#if defined(EDGE_KERNELS)
    return EDGE_TR_WEIGHTS | EDGE_TR_DENSE | EDGE_TR_ATTENTION;
#else
    return 0;
#endif
}

static std::atomic<int> & parts() {
    static std::atomic<int> value([] {
        const char * text = std::getenv("EDGE_TR_KERNELS");
        return (text && *text ? std::atoi(text) : preferred()) & possible();
    }());
    return value;
}

static bool active(int part) { return parts().load(std::memory_order_relaxed) & part; }

// -- the buffer type --

class BufferType : public ggml::cpu::extra_buffer_type {
    QuantizedWeights weights;
    DenseProduct     dense;
    FlashAttention   attention;
    AttentionWeights attention_weights;
    SetValues        set_values;

    static bool ours(const ggml_tensor * t) { return t->buffer && t->buffer->buft == edge_tr_buffer_type(); }

  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const bool plain = op->op == GGML_OP_MUL_MAT, by_id = op->op == GGML_OP_MUL_MAT_ID;
        if (!(plain || by_id) || !ours(op->src[0])) return false;
        if (!op->src[0]->data && !active(EDGE_TR_WEIGHTS)) return false;  // asked before weights are placed
        if (!format(op->src[0]->type) || ggml_n_dims(op->src[0]) != (plain ? 2 : 3)) return false;
        const ggml_tensor * x = op->src[1];
        return x->type == GGML_TYPE_F32 && (!x->buffer || ggml_backend_buft_is_host(x->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) {
            if (ours(op->src[0])) return &weights;
            if (op->op == GGML_OP_MUL_MAT && active(EDGE_TR_DENSE) && DenseProduct::takes(op)) return &dense;
        }
        if (op->op == GGML_OP_SOFT_MAX && active(EDGE_TR_DENSE) && AttentionWeights::takes(op)) return &attention_weights;
        if (op->op == GGML_OP_SET_ROWS && active(EDGE_TR_DENSE) && SetValues::takes(op)) return &set_values;
        if (op->op == GGML_OP_FLASH_ATTN_EXT && active(EDGE_TR_ATTENTION) && FlashAttention::takes(op)) return &attention;
        return nullptr;
    }
};

static void set_tensor(ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(t));
    const Format * f = format(t->type);
    const size_t   packed = packed_bytes(f, t->ne[1], t->ne[0]);
    for (int64_t e = 0; e < t->ne[2]; e++) {
        pack(f, t->ne[1], t->ne[0], (const char *) data + (size_t) e * t->nb[2], (uint8_t *) t->data + (size_t) e * packed);
    }
}

static const char * buffer_name(ggml_backend_buffer_type_t) { return "CPU_EDGE_TR"; }

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (!buffer) return nullptr;
    buffer->buft = type;
    buffer->iface.set_tensor = set_tensor;
    buffer->iface.get_tensor = nullptr;
    buffer->iface.cpy_tensor = nullptr;
    return buffer;
}

static size_t alignment(ggml_backend_buffer_type_t) { return LINE; }

static size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * t) {
    const Format * f = format(t->type);
    return f ? packed_bytes(f, t->ne[1], t->ne[0]) * (size_t) t->ne[2] + 2 * 1024 : ggml_nbytes(t);
}

}  // namespace edge

extern "C" {

int edge_tr_kernels(int wanted) {
    return wanted < 0 ? edge::parts().load() : edge::parts().exchange(wanted & edge::possible());
}

const char * edge_tr_kernels_info(void) {
    static const std::string text = [] {
        std::string types;
        for (int t = 0; t < GGML_TYPE_COUNT; t++) {
            if (edge::format(t) || edge::has_dense(t)) types += (types.empty() ? "\"" : ", \"") + std::string(ggml_type_name((ggml_type) t)) + "\"";
        }
#if defined(EDGE_KERNELS)
        const std::string isa = edge::ISA;
#else
        const std::string isa;
#endif
        return "{\"version\": 1, \"isa\": \"" + isa + "\", \"types\": [" + types + "]}";
    }();
    return text.c_str();
}

ggml_backend_buffer_type_t edge_tr_buffer_type(void) {
    static ggml_backend_buffer_type type = {
        /* .iface   = */ {edge::buffer_name, edge::alloc_buffer, edge::alignment, nullptr, edge::alloc_size, nullptr},
        /* .device  = */ ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        /* .context = */ new edge::BufferType(),
    };
    return &type;
}
}
