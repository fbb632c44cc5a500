// What this machine can do at most, on the thread that calls: reading memory and multiply-adds.
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512i  ints;
typedef __m512   floats;
#define LOAD(p)         _mm512_loadu_si512(p)
#define XOR(a, b)       _mm512_xor_si512(a, b)
#define FMA(a, b, c)    _mm512_fmadd_ps(a, b, c)
#define FLOATS(x)       _mm512_set1_ps(x)
#define INTS(x)         _mm512_set1_epi8(x)
#if defined(__AVX512VNNI__)
#define DOT(a, b, c)    _mm512_dpbusd_epi32(c, a, b)
#else
#define DOT(a, b, c)    _mm512_add_epi32(c, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)))
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
typedef __m256i  ints;
typedef __m256   floats;
#define LOAD(p)         _mm256_loadu_si256((const __m256i *) (p))
#define XOR(a, b)       _mm256_xor_si256(a, b)
#define FMA(a, b, c)    _mm256_fmadd_ps(a, b, c)
#define FLOATS(x)       _mm256_set1_ps(x)
#define INTS(x)         _mm256_set1_epi8(x)
#if defined(__AVXVNNI__)
#define DOT(a, b, c)    _mm256_dpbusd_avx_epi32(c, a, b)
#else
#define DOT(a, b, c)    _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
typedef int8x16_t   ints;
typedef float32x4_t floats;
#define LOAD(p)         vld1q_s8((const int8_t *) (p))
#define XOR(a, b)       veorq_s8(a, b)
#define FMA(a, b, c)    vfmaq_f32(c, a, b)
#define FLOATS(x)       vdupq_n_f32(x)
#define INTS(x)         vdupq_n_s8(x)
#define DOT(a, b, c)    vreinterpretq_s8_s32(vdotq_s32(vreinterpretq_s32_s8(c), a, b))
#else
#error "no peak is known for these instruction sets"
#endif

// Twelve chains, to hide the latency of two units, each a variable so that it stays in a register.
enum { CHAINS = 12 };
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#if defined(__ARM_FEATURE_DOTPROD)
#define KEEP(i) __asm__ volatile("" : "+w"(sum##i));
#else
#define KEEP(i) __asm__ volatile("" : "+v"(sum##i));
#endif
#define ZERO_INTS(i)   ints sum##i = INTS(0);
#define ZERO_FLOATS(i) floats sum##i = FLOATS(0);
#define ADD_DOT(i)     sum##i = DOT(x, y, sum##i);
#define ADD_FMA(i)     sum##i = FMA(x, y, sum##i);

// Read `bytes` (a multiple of 256) once; what comes back keeps the compiler from leaving it out.
int64_t peak_read(const char * p, int64_t bytes) {
    ints a = INTS(0), b = a, c = a, d = a;
    for (int64_t i = 0; i < bytes; i += 4 * (int64_t) sizeof(ints)) {
        __builtin_prefetch(p + i + 16384, 0, 1);
        __builtin_prefetch(p + i + 16384 + 2 * sizeof(ints), 0, 1);
        a = XOR(a, LOAD(p + i));
        b = XOR(b, LOAD(p + i + sizeof(ints)));
        c = XOR(c, LOAD(p + i + 2 * sizeof(ints)));
        d = XOR(d, LOAD(p + i + 3 * sizeof(ints)));
    }
    int64_t found;
    a = XOR(XOR(a, b), XOR(c, d));
    memcpy(&found, &a, sizeof(found));
    return found;
}

// Multiply-adds of 8-bit integers: how many were made.
int64_t peak_int8(int64_t rounds) {
    const ints x = INTS(3), y = INTS(5);
    EACH(ZERO_INTS)
    for (int64_t r = 0; r < rounds; r++) {
        EACH(ADD_DOT)
        EACH(KEEP)
    }
    return rounds * CHAINS * (int64_t) sizeof(ints);
}

// The same of 32-bit floats.
int64_t peak_float(int64_t rounds) {
    const floats x = FLOATS(0.5f), y = FLOATS(0.5f);
    EACH(ZERO_FLOATS)
    for (int64_t r = 0; r < rounds; r++) {
        EACH(ADD_FMA)
        EACH(KEEP)
    }
    return rounds * CHAINS * (int64_t) (sizeof(floats) / sizeof(float));
}
