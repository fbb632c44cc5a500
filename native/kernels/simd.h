// The vector operations that the kernels are written in, once for each instruction set.
//
// A vector holds LANES 32-bit values. Weights lie in panels of PANEL rows; a panel is worked on
// LANES rows at a time, one row in a lane. Every function does the same arithmetic in the same
// order whatever the number of tokens beside it: that is why all widths are equal to the last bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__) && defined(__AVX512VNNI__)
#    define EDGE_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#    define EDGE_AVX2 1
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD) && defined(__aarch64__)
#    define EDGE_NEON 1
#endif

#if defined(EDGE_AVX512) || defined(EDGE_AVX2)
#    if defined(__GNUC__) && !defined(__clang__)  // GCC 12 warns of its own _mm512_undefined_ps
#        pragma GCC diagnostic ignored "-Wuninitialized"
#        pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#    endif
#    include <immintrin.h>
#elif defined(EDGE_NEON)
#    include <arm_neon.h>
#endif

#if defined(EDGE_AVX512) || defined(EDGE_AVX2) || defined(EDGE_NEON)
#    define EDGE_KERNELS 1
#endif

#if defined(_MSC_VER)
#    define EDGE_INLINE static __forceinline
#    define EDGE_UNROLL
#else
#    define EDGE_INLINE static inline __attribute__((always_inline))
#    if defined(__clang__)
#        define EDGE_UNROLL _Pragma("unroll")
#    else
#        define EDGE_UNROLL _Pragma("GCC unroll 16")
#    endif
#endif

namespace edge {

constexpr int PANEL = 16;  // rows of weights that lie together

EDGE_INLINE void prefetch(const void * p) {
#    if defined(__GNUC__)
    __builtin_prefetch(p, 0, 3);
#    endif
}

#if defined(EDGE_AVX512) || defined(EDGE_AVX2)
EDGE_INLINE float    half_to_float(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
EDGE_INLINE uint16_t float_to_half(float x) { return (uint16_t) _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)); }
#endif

#if defined(EDGE_AVX512)

constexpr char ISA[] = "avx512vnni";
constexpr int  LANES = 16;
constexpr int  MAX_GROUP = 16;        // tokens that one pass over a panel serves
constexpr int  MAX_GROUP_K = 8;       // the same, K formats
constexpr bool SIGNED8 = false;       // 8-bit weights are kept unsigned, 128 added

typedef __m512i bytes;
typedef __m512i ints;
typedef __m512  floats;

EDGE_INLINE bytes  load_bytes(const void * p) { return _mm512_loadu_si512(p); }
EDGE_INLINE bytes  low4(bytes x)  { return _mm512_and_si512(x, _mm512_set1_epi8(0x0f)); }
EDGE_INLINE bytes  high4(bytes x) { return low4(_mm512_srli_epi16(x, 4)); }
// x | (shifted & mask); SHIFT > 0 is to the left
template <int SHIFT> EDGE_INLINE bytes or_bits(bytes x, bytes bits, uint8_t mask) {
    if constexpr (SHIFT > 0) bits = _mm512_slli_epi16(bits, SHIFT);
    if constexpr (SHIFT < 0) bits = _mm512_srli_epi16(bits, -SHIFT);
    return _mm512_ternarylogic_epi32(x, bits, _mm512_set1_epi8((char) mask), 0xf8);
}
EDGE_INLINE bytes  lookup16(const uint8_t * table, bytes x) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) table)), x);
}
EDGE_INLINE ints   set_int(int32_t x) { return _mm512_set1_epi32(x); }
EDGE_INLINE floats to_float(ints x) { return _mm512_cvtepi32_ps(x); }
EDGE_INLINE floats set(float x) { return _mm512_set1_ps(x); }
EDGE_INLINE floats zero() { return _mm512_setzero_ps(); }
EDGE_INLINE floats mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
EDGE_INLINE floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
EDGE_INLINE floats fma(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
EDGE_INLINE floats fnma(floats a, floats b, floats c) { return _mm512_fnmadd_ps(a, b, c); }
EDGE_INLINE floats max(floats a, floats b) { return _mm512_max_ps(a, b); }
EDGE_INLINE floats load(const float * p) { return _mm512_loadu_ps(p); }
EDGE_INLINE void   store(float * p, floats x) { _mm512_storeu_ps(p, x); }
EDGE_INLINE floats load_f16(const uint16_t * p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
}
EDGE_INLINE floats load_bf16(const uint16_t * p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16));
}
EDGE_INLINE floats load_u8(const uint8_t * p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p)));
}
EDGE_INLINE floats load_s8(const int8_t * p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p)));
}
EDGE_INLINE ints   load_u8_pairs(const uint8_t * p) {  // two 16-bit values in a lane
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *) p));
}
EDGE_INLINE ints   dot_pairs(ints sum, ints pairs, const int16_t * a) {
    int32_t pair;
    memcpy(&pair, a, 4);
    return _mm512_dpwssd_epi32(sum, pairs, _mm512_set1_epi32(pair));
}
// sum + the products of GROUPS x 4 unsigned weights of BITS bits with 4 * GROUPS activations
template <int BITS, int GROUPS> EDGE_INLINE ints dot(ints sum, const bytes * w, const int8_t * a) {
    for (int g = 0; g < GROUPS; g++) {
        int32_t four;
        memcpy(&four, a + 4 * g, 4);
        sum = _mm512_dpbusd_epi32(sum, w[g], _mm512_set1_epi32(four));
    }
    return sum;
}

EDGE_INLINE float  max_abs(floats x) {
    const __m512 a = _mm512_abs_ps(x);
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
EDGE_INLINE int32_t quantize(const float * x, floats scale, int8_t * q) {  // LANES values; their sum
    const __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), scale));
    const __m128i bytes16 = _mm512_cvtsepi32_epi8(i);
    _mm_storeu_si128((__m128i *) q, bytes16);
    const __m128i eights = _mm_sad_epu8(_mm_xor_si128(bytes16, _mm_set1_epi8((char) 0x80)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(eights) + _mm_extract_epi32(eights, 2) - 16 * 128;
}
EDGE_INLINE floats abs(floats x) { return _mm512_abs_ps(x); }
// Sum of all lanes: neighbours first (1, 2, 4, 8 apart). reduce16 does the same for 16 vectors.
EDGE_INLINE float reduce(floats x) {
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4e));
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    return _mm512_cvtss_f32(x);
}

// The sums of all lanes of 16 vectors, or what OP makes of them: that of v[i] in lane i.
template <int BIT, class OP> EDGE_INLINE floats fold(floats a, floats b, OP op) {
    constexpr __mmask16 UPPER = BIT == 1 ? 0xaaaa : BIT == 2 ? 0xcccc : BIT == 4 ? 0xf0f0 : 0xff00;
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i other = _mm512_xor_si512(lane, _mm512_set1_epi32(BIT));
    const __m512i source = _mm512_mask_or_epi32(other, UPPER, other, _mm512_set1_epi32(16));
    return op(_mm512_mask_blend_ps(UPPER, a, b), _mm512_permutex2var_ps(a, source, b));
}
template <class OP> EDGE_INLINE floats reduce16(const floats * v, OP op) {
    floats half[8], quarter[4];
    for (int i = 0; i < 8; i++) half[i] = fold<1>(v[2 * i], v[2 * i + 1], op);
    for (int i = 0; i < 4; i++) quarter[i] = fold<2>(half[2 * i], half[2 * i + 1], op);
    return fold<8>(fold<4>(quarter[0], quarter[1], op), fold<4>(quarter[2], quarter[3], op), op);
}
EDGE_INLINE floats reduce16(const floats * v) { return reduce16(v, add); }
// The same 32 activations of n <= 16 tokens: scales[t] of token t, sums[t] of its quants.
EDGE_INLINE void quantize32(const float * const * x, int64_t at, int n, int8_t * q, float * scales, int32_t * sums) {
    floats most[16], sum[16], inverse;
    for (int t = 0; t < 16; t++) most[t] = t < n ? max(abs(load(x[t] + at)), abs(load(x[t] + at + 16))) : zero();
    const floats m = reduce16(most, max);
    inverse = _mm512_maskz_div_ps(_mm512_cmp_ps_mask(m, set(1e-36f), _CMP_GT_OQ), set(127.0f), m);
    store(scales, _mm512_div_ps(m, set(127.0f)));
    float factor[16];
    store(factor, inverse);
    for (int t = 0; t < 16; t++) {
        sum[t] = zero();
        if (t >= n) continue;
        const __m512i low = _mm512_cvtps_epi32(mul(load(x[t] + at), set(factor[t])));
        const __m512i high = _mm512_cvtps_epi32(mul(load(x[t] + at + 16), set(factor[t])));
        _mm_storeu_si128((__m128i *) (q + 32 * t), _mm512_cvtsepi32_epi8(low));
        _mm_storeu_si128((__m128i *) (q + 32 * t + 16), _mm512_cvtsepi32_epi8(high));
        sum[t] = _mm512_castsi512_ps(_mm512_add_epi32(low, high));
    }
    const auto add_ints = [](floats a, floats b) {
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
    };
    store((float *) sums, reduce16(sum, add_ints));
}
// Vectors i and i + BIT of a square, both swapped across its diagonal's blocks of BIT lanes.
template <int BIT> EDGE_INLINE void cross(floats & a, floats & b) {
    constexpr __mmask16 UPPER = BIT == 1 ? 0xaaaa : BIT == 2 ? 0xcccc : BIT == 4 ? 0xf0f0 : 0xff00;
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i lower = _mm512_mask_add_epi32(lane, UPPER, lane, _mm512_set1_epi32(16 - BIT));
    const __m512i upper = _mm512_mask_add_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(BIT)), UPPER, lane, _mm512_set1_epi32(16));
    const __m512  both = _mm512_permutex2var_ps(a, lower, b);
    b = _mm512_permutex2var_ps(a, upper, b);
    a = both;
}
EDGE_INLINE floats round_int(floats x) { return _mm512_roundscale_ps(x, 8); }
EDGE_INLINE floats times_power(floats x, floats n) { return _mm512_scalef_ps(x, n); }
EDGE_INLINE floats zero_below(floats x, floats limit, floats y) {  // y, 0 where x < limit
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y);
}
EDGE_INLINE floats minus_zero_where_equal(floats x, floats to, floats y) {  // y, -0 where x == to
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, to, _CMP_EQ_OQ), _mm512_set1_ps(-0.0f));
}

#elif defined(EDGE_AVX2)

#    if defined(__AVXVNNI__)
constexpr char ISA[] = "avx2 avxvnni";
constexpr bool SIGNED8 = false;
#    else
constexpr char ISA[] = "avx2";
constexpr bool SIGNED8 = true;
#    endif
constexpr int  LANES = 8;
constexpr int  MAX_GROUP = 4;
constexpr int  MAX_GROUP_K = 4;

typedef __m256i bytes;
typedef __m256i ints;
typedef __m256  floats;

EDGE_INLINE bytes  load_bytes(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
EDGE_INLINE bytes  low4(bytes x)  { return _mm256_and_si256(x, _mm256_set1_epi8(0x0f)); }
EDGE_INLINE bytes  high4(bytes x) { return low4(_mm256_srli_epi16(x, 4)); }
template <int SHIFT> EDGE_INLINE bytes or_bits(bytes x, bytes bits, uint8_t mask) {
    if constexpr (SHIFT > 0) bits = _mm256_slli_epi16(bits, SHIFT);
    if constexpr (SHIFT < 0) bits = _mm256_srli_epi16(bits, -SHIFT);
    return _mm256_or_si256(x, _mm256_and_si256(bits, _mm256_set1_epi8((char) mask)));
}
EDGE_INLINE bytes  lookup16(const uint8_t * table, bytes x) {
    const __m128i t = _mm_loadu_si128((const __m128i *) table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), x);
}
EDGE_INLINE ints   set_int(int32_t x) { return _mm256_set1_epi32(x); }
EDGE_INLINE floats to_float(ints x) { return _mm256_cvtepi32_ps(x); }
EDGE_INLINE floats set(float x) { return _mm256_set1_ps(x); }
EDGE_INLINE floats zero() { return _mm256_setzero_ps(); }
EDGE_INLINE floats mul(floats a, floats b) { return _mm256_mul_ps(a, b); }
EDGE_INLINE floats add(floats a, floats b) { return _mm256_add_ps(a, b); }
EDGE_INLINE floats fma(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
EDGE_INLINE floats fnma(floats a, floats b, floats c) { return _mm256_fnmadd_ps(a, b, c); }
EDGE_INLINE floats max(floats a, floats b) { return _mm256_max_ps(a, b); }
EDGE_INLINE floats abs(floats x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
EDGE_INLINE floats load(const float * p) { return _mm256_loadu_ps(p); }
EDGE_INLINE void   store(float * p, floats x) { _mm256_storeu_ps(p, x); }
EDGE_INLINE floats load_f16(const uint16_t * p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
}
EDGE_INLINE floats load_bf16(const uint16_t * p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16));
}
EDGE_INLINE floats load_u8(const uint8_t * p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p)));
}
EDGE_INLINE floats load_s8(const int8_t * p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) p)));
}
EDGE_INLINE ints   load_u8_pairs(const uint8_t * p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *) p));
}
EDGE_INLINE ints   dot_pairs(ints sum, ints pairs, const int16_t * a) {
    int32_t pair;
    memcpy(&pair, a, 4);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi32(pair)));
}
template <int BITS, int GROUPS> EDGE_INLINE ints dot(ints sum, const bytes * w, const int8_t * a) {
#    if defined(__AVXVNNI__)
    for (int g = 0; g < GROUPS; g++) {
        int32_t four;
        memcpy(&four, a + 4 * g, 4);
        sum = _mm256_dpbusd_avx_epi32(sum, w[g], _mm256_set1_epi32(four));
    }
#    else
    // pairs of products stay in 16 bits while they fit: 8 of 4 bits, 4 of 5, 2 of 6, 1 of 8
    constexpr int CHUNK = BITS <= 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;
    constexpr int STEP = CHUNK < GROUPS ? CHUNK : GROUPS;
    for (int g0 = 0; g0 < GROUPS; g0 += STEP) {
        __m256i pairs = _mm256_setzero_si256();
        for (int g = g0; g < g0 + STEP; g++) {
            int32_t four;
            memcpy(&four, a + 4 * g, 4);
            const __m256i x = _mm256_set1_epi32(four);
            const __m256i p = BITS < 8 ? _mm256_maddubs_epi16(w[g], x)
                                       : _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(x, w[g]));
            pairs = g == g0 ? p : _mm256_add_epi16(pairs, p);
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
#    endif
    return sum;
}
EDGE_INLINE float max_abs(floats x) {
    x = abs(x);
    x = _mm256_max_ps(x, _mm256_permute2f128_ps(x, x, 1));
    x = _mm256_max_ps(x, _mm256_permute_ps(x, 0x4e));
    x = _mm256_max_ps(x, _mm256_permute_ps(x, 0xb1));
    return _mm256_cvtss_f32(x);
}
EDGE_INLINE int32_t quantize(const float * x, floats scale, int8_t * q) {
    const __m256i i = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
    const __m128i s = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64((__m128i *) q, _mm_packs_epi16(s, s));
    const __m128i four = _mm_madd_epi16(s, _mm_set1_epi16(1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
EDGE_INLINE float reduce(floats x) {
    x = _mm256_add_ps(x, _mm256_permute_ps(x, 0xb1));
    x = _mm256_add_ps(x, _mm256_permute_ps(x, 0x4e));
    x = _mm256_add_ps(x, _mm256_permute2f128_ps(x, x, 1));
    return _mm256_cvtss_f32(x);
}
template <int BIT> EDGE_INLINE void cross(floats & a, floats & b) {
    const __m256 x = a, y = b;
    if constexpr (BIT == 1) {
        a = _mm256_blend_ps(x, _mm256_permute_ps(y, 0xb1), 0xaa);
        b = _mm256_blend_ps(_mm256_permute_ps(x, 0xb1), y, 0xaa);
    } else if constexpr (BIT == 2) {
        a = _mm256_shuffle_ps(x, y, 0x44);
        b = _mm256_shuffle_ps(x, y, 0xee);
    } else {
        a = _mm256_permute2f128_ps(x, y, 0x20);
        b = _mm256_permute2f128_ps(x, y, 0x31);
    }
}
EDGE_INLINE floats round_int(floats x) { return _mm256_round_ps(x, 8); }
EDGE_INLINE floats times_power(floats x, floats n) {  // -126 <= n <= 127
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(bits));
}
EDGE_INLINE floats zero_below(floats x, floats limit, floats y) {
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), y);
}
EDGE_INLINE floats minus_zero_where_equal(floats x, floats to, floats y) {
    return _mm256_blendv_ps(y, _mm256_set1_ps(-0.0f), _mm256_cmp_ps(x, to, _CMP_EQ_OQ));
}

#elif defined(EDGE_NEON)

constexpr char ISA[] = "neon dotprod";
constexpr int  LANES = 4;
constexpr int  MAX_GROUP = 8;
constexpr int  MAX_GROUP_K = 8;
constexpr bool SIGNED8 = true;

typedef uint8x16_t  bytes;
typedef int32x4_t   ints;
typedef float32x4_t floats;

EDGE_INLINE bytes  load_bytes(const void * p) { return vld1q_u8((const uint8_t *) p); }
EDGE_INLINE bytes  low4(bytes x)  { return vandq_u8(x, vdupq_n_u8(0x0f)); }
EDGE_INLINE bytes  high4(bytes x) { return vshrq_n_u8(x, 4); }
template <int SHIFT> EDGE_INLINE bytes or_bits(bytes x, bytes bits, uint8_t mask) {
    if constexpr (SHIFT > 0) bits = vshlq_n_u8(bits, SHIFT);
    if constexpr (SHIFT < 0) bits = vshrq_n_u8(bits, -SHIFT);
    return vorrq_u8(x, vandq_u8(bits, vdupq_n_u8(mask)));
}
EDGE_INLINE bytes  lookup16(const uint8_t * table, bytes x) { return vqtbl1q_u8(vld1q_u8(table), x); }
EDGE_INLINE ints   set_int(int32_t x) { return vdupq_n_s32(x); }
EDGE_INLINE floats to_float(ints x) { return vcvtq_f32_s32(x); }
EDGE_INLINE floats set(float x) { return vdupq_n_f32(x); }
EDGE_INLINE floats zero() { return vdupq_n_f32(0); }
EDGE_INLINE floats mul(floats a, floats b) { return vmulq_f32(a, b); }
EDGE_INLINE floats add(floats a, floats b) { return vaddq_f32(a, b); }
EDGE_INLINE floats fma(floats a, floats b, floats c) { return vfmaq_f32(c, a, b); }
EDGE_INLINE floats fnma(floats a, floats b, floats c) { return vfmsq_f32(c, a, b); }
EDGE_INLINE floats max(floats a, floats b) { return vmaxq_f32(a, b); }
EDGE_INLINE floats abs(floats x) { return vabsq_f32(x); }
EDGE_INLINE floats load(const float * p) { return vld1q_f32(p); }
EDGE_INLINE void   store(float * p, floats x) { vst1q_f32(p, x); }
EDGE_INLINE floats load_f16(const uint16_t * p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
EDGE_INLINE floats load_bf16(const uint16_t * p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
EDGE_INLINE floats load_u8(const uint8_t * p) {
    uint32_t four;
    memcpy(&four, p, 4);
    const uint16x8_t wide = vmovl_u8(vcreate_u8(four));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}
EDGE_INLINE floats load_s8(const int8_t * p) {
    uint32_t four;
    memcpy(&four, p, 4);
    const int16x8_t wide = vmovl_s8(vcreate_s8(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
EDGE_INLINE ints   load_u8_pairs(const uint8_t * p) {
    return vreinterpretq_s32_u16(vmovl_u8(vld1_u8(p)));
}
EDGE_INLINE ints   dot_pairs(ints sum, ints pairs, const int16_t * a) {
    int32_t pair;
    memcpy(&pair, a, 4);
    const int16x8_t x = vreinterpretq_s16_s32(vdupq_n_s32(pair));
    const int16x8_t w = vreinterpretq_s16_s32(pairs);
    const int32x4_t lo = vmull_s16(vget_low_s16(w), vget_low_s16(x));
    const int32x4_t hi = vmull_high_s16(w, x);
    return vaddq_s32(sum, vpaddq_s32(lo, hi));
}
template <int BITS, int GROUPS> EDGE_INLINE ints dot(ints sum, const bytes * w, const int8_t * a) {
    for (int g = 0; g < GROUPS; g += 4) {
        const int8x16_t x = vld1q_s8(a + 4 * g);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[g + 0]), x, 0);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[g + 1]), x, 1);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[g + 2]), x, 2);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[g + 3]), x, 3);
    }
    return sum;
}
EDGE_INLINE float half_to_float(uint16_t h) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}
EDGE_INLINE uint16_t float_to_half(float x) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}
EDGE_INLINE float max_abs(floats x) { return vmaxvq_f32(vabsq_f32(x)); }
EDGE_INLINE int32_t quantize(const float * x, floats scale, int8_t * q) {
    const int32x4_t i = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x), scale));
    const int16x4_t s = vqmovn_s32(i);
    const int8x8_t  b = vqmovn_s16(vcombine_s16(s, s));
    vst1_lane_s32((int32_t *) q, vreinterpret_s32_s8(b), 0);
    return vaddvq_s32(i);
}
EDGE_INLINE float reduce(floats x) {
    x = vaddq_f32(x, vrev64q_f32(x));
    x = vaddq_f32(x, vextq_f32(x, x, 2));
    return vgetq_lane_f32(x, 0);
}
template <int BIT> EDGE_INLINE void cross(floats & a, floats & b) {
    const floats x = a, y = b;
    a = BIT == 1 ? vtrn1q_f32(x, y) : vcombine_f32(vget_low_f32(x), vget_low_f32(y));
    b = BIT == 1 ? vtrn2q_f32(x, y) : vcombine_f32(vget_high_f32(x), vget_high_f32(y));
}
EDGE_INLINE floats round_int(floats x) { return vrndnq_f32(x); }
EDGE_INLINE floats times_power(floats x, floats n) {
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
}
EDGE_INLINE floats zero_below(floats x, floats limit, floats y) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, limit)));
}
EDGE_INLINE floats minus_zero_where_equal(floats x, floats to, floats y) {
    return vbslq_f32(vceqq_f32(x, to), vdupq_n_f32(-0.0f), y);
}

#endif

#if defined(EDGE_KERNELS)
// LANES vectors become their columns.
template <int BIT = 1> EDGE_INLINE void transpose(floats * v) {
    if constexpr (BIT < LANES) {
        EDGE_UNROLL
        for (int i = 0; i < LANES; i++) {
            if (!(i & BIT)) cross<BIT>(v[i], v[i + BIT]);
        }
        transpose<2 * BIT>(v);
    }
}

// e^x for x <= 0; 0 below -87, as of -infinity; a NaN stays one. Error below 2 units in the last place.
EDGE_INLINE floats exp_negative(floats x) {
    const floats low = set(-87.0f);
    const floats y = max(low, x);  // a NaN in the second place is kept
    const floats n = round_int(mul(y, set(1.44269504f)));
    const floats r = fnma(n, set(-2.12194440e-4f), fnma(n, set(0.693359375f), y));
    floats p = set(1.9875691500e-4f);
    p = fma(p, r, set(1.3981999507e-3f));
    p = fma(p, r, set(8.3334519073e-3f));
    p = fma(p, r, set(4.1665795894e-2f));
    p = fma(p, r, set(1.6666665459e-1f));
    p = fma(p, r, set(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, set(1.0f)));
    return zero_below(x, low, times_power(p, n));
}
#endif

}  // namespace edge
