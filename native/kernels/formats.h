// The weight formats: how a row of a GGUF tensor is put into a panel, and how a kernel reads it back.
//
// A panel holds PANEL (16) rows. It begins with their scales, block by block, and goes on with their
// quants, unit by unit: a unit is 32 columns of the 16 rows. In a line of 64 bytes, row r has bytes
// 4r to 4r + 3, which are 4 neighbouring columns; so one broadcast of 4 activations meets 16 rows.
//
//   4 bits      4 lines; the low nibbles are columns 0 to 15 of the unit, the high ones 16 to 31
//   5 bits      and 1 line with the fifth bits: bit g of a byte is that of columns 4g to 4g + 3
//   6 bits      and 2 lines with bits 4 and 5: line h, bits 2i and 2i + 1 are columns 16h + 4i ...
//   8 bits      8 lines
#pragma once

#include "simd.h"

namespace edge {

// The numbers of the GGUF file format.
enum Type { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8,
            Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, BF16 = 30 };

constexpr int UNIT = 32;    // columns of a unit
constexpr int SUPER = 256;  // columns of a block of the K formats

constexpr size_t unit_bytes(int bits) { return 16 * UNIT * bits / 8; }

inline void put_unit(int bits, uint8_t * unit, int r, const uint8_t * q) {
    for (int g = 0; g < 8; g++) {
        for (int b = 0; b < 4; b++) {
            const int at = 4 * r + b;
            const uint8_t v = q[4 * g + b];
            if (bits == 8) {
                unit[64 * g + at] = v;
                continue;
            }
            unit[64 * (g % 4) + at] |= (uint8_t) ((v & 15) << (g < 4 ? 0 : 4));
            if (bits == 5) unit[256 + at] |= (uint8_t) (((v >> 4) & 1) << g);
            if (bits == 6) unit[256 + 64 * (g / 4) + at] |= (uint8_t) (((v >> 4) & 3) << (2 * (g % 4)));
        }
    }
}

#if defined(EDGE_KERNELS)
// Bits of w[g]: columns 4g to 4g + 3 of LANES rows. `unit` points at the first of these rows.
template <int BITS> EDGE_INLINE void get_unit(const uint8_t * unit, bytes * w) {
    if constexpr (BITS == 8) {
        for (int g = 0; g < 8; g++) w[g] = load_bytes(unit + 64 * g);
        return;
    }
    for (int g = 0; g < 4; g++) {
        const bytes both = load_bytes(unit + 64 * g);
        w[g] = low4(both);
        w[g + 4] = high4(both);
    }
    if constexpr (BITS == 5) {
        const bytes high = load_bytes(unit + 256);
        w[0] = or_bits<4>(w[0], high, 0x10);
        w[1] = or_bits<3>(w[1], high, 0x10);
        w[2] = or_bits<2>(w[2], high, 0x10);
        w[3] = or_bits<1>(w[3], high, 0x10);
        w[4] = or_bits<0>(w[4], high, 0x10);
        w[5] = or_bits<-1>(w[5], high, 0x10);
        w[6] = or_bits<-2>(w[6], high, 0x10);
        w[7] = or_bits<-3>(w[7], high, 0x10);
    }
    if constexpr (BITS == 6) {
        for (int h = 0; h < 2; h++) {
            const bytes high = load_bytes(unit + 256 + 64 * h);
            w[4 * h + 0] = or_bits<4>(w[4 * h + 0], high, 0x30);
            w[4 * h + 1] = or_bits<2>(w[4 * h + 1], high, 0x30);
            w[4 * h + 2] = or_bits<0>(w[4 * h + 2], high, 0x30);
            w[4 * h + 3] = or_bits<-2>(w[4 * h + 3], high, 0x30);
        }
    }
}
#endif

inline void nibbles16(const uint8_t * qs, uint8_t * q) {
    for (int i = 0; i < 16; i++) {
        q[i] = qs[i] & 15;
        q[i + 16] = qs[i] >> 4;
    }
}

inline void fifth_bits(const uint8_t * qh, uint8_t * q) {
    uint32_t bits;
    memcpy(&bits, qh, 4);
    for (int i = 0; i < 32; i++) q[i] |= (uint8_t) (((bits >> i) & 1) << 4);
}

#if defined(EDGE_KERNELS)
constexpr uint8_t FLIP8 = SIGNED8 ? 0x00 : 0x80;  // signed byte to what dot<8> wants
constexpr int     ZERO8 = SIGNED8 ? 0 : 128;
#else
constexpr uint8_t FLIP8 = 0;
constexpr int     ZERO8 = 0;
#endif

// Formats with blocks of 32: weight = d * (q - ZERO), or d * q + m.
template <Type TYPE> struct Simple;

template <> struct Simple<Q4_0> {
    struct Block { uint16_t d; uint8_t qs[16]; };
    static constexpr int  STORED = 4, BITS = 4, ZERO = 8;
    static constexpr bool MIN = false, TABLE = false;
    static void decode(const Block & x, uint8_t * q) { nibbles16(x.qs, q); }
};
template <> struct Simple<IQ4_NL> {
    struct Block { uint16_t d; uint8_t qs[16]; };
    static constexpr int  STORED = 4, BITS = 8, ZERO = ZERO8;
    static constexpr bool MIN = false, TABLE = true;
    static void decode(const Block & x, uint8_t * q) { nibbles16(x.qs, q); }
};
template <> struct Simple<Q4_1> {
    struct Block { uint16_t d, m; uint8_t qs[16]; };
    static constexpr int  STORED = 4, BITS = 4, ZERO = 0;
    static constexpr bool MIN = true, TABLE = false;
    static void decode(const Block & x, uint8_t * q) { nibbles16(x.qs, q); }
};
template <> struct Simple<Q5_0> {
    struct Block { uint16_t d; uint8_t qh[4]; uint8_t qs[16]; };
    static constexpr int  STORED = 5, BITS = 5, ZERO = 16;
    static constexpr bool MIN = false, TABLE = false;
    static void decode(const Block & x, uint8_t * q) { nibbles16(x.qs, q); fifth_bits(x.qh, q); }
};
template <> struct Simple<Q5_1> {
    struct Block { uint16_t d, m; uint8_t qh[4]; uint8_t qs[16]; };
    static constexpr int  STORED = 5, BITS = 5, ZERO = 0;
    static constexpr bool MIN = true, TABLE = false;
    static void decode(const Block & x, uint8_t * q) { nibbles16(x.qs, q); fifth_bits(x.qh, q); }
};
template <> struct Simple<Q8_0> {
    struct Block { uint16_t d; int8_t qs[32]; };
    static constexpr int  STORED = 8, BITS = 8, ZERO = ZERO8;
    static constexpr bool MIN = false, TABLE = false;
    static void decode(const Block & x, uint8_t * q) {
        for (int i = 0; i < 32; i++) q[i] = (uint8_t) x.qs[i] ^ FLIP8;
    }
};

// The 16 values of IQ4_NL, as dot<8> wants them.
constexpr uint8_t iq4nl(int value) { return (uint8_t) ((uint8_t) (int8_t) value ^ FLIP8); }
alignas(16) constexpr uint8_t IQ4_NL_TABLE[16] = {
    iq4nl(-127), iq4nl(-104), iq4nl(-83), iq4nl(-65), iq4nl(-49), iq4nl(-35), iq4nl(-22), iq4nl(-10),
    iq4nl(1), iq4nl(13), iq4nl(25), iq4nl(38), iq4nl(53), iq4nl(69), iq4nl(89), iq4nl(113)};

// Formats with blocks of 256. Q4_K, Q5_K: weight = d * sc * q - dmin * m for each 32 columns, Q6_K:
// d * sc * (q - 32) for each 16. Scales of a panel's block: d and dmin of 16 rows as F16, then sc by
// rows of 16 (8 or 16 of them, one for each row of weights), then m as pairs of neighbouring blocks.
template <Type TYPE> struct Super;

template <int STORED_BITS> struct K45 {
    static constexpr int    BITS = STORED_BITS;
    static constexpr bool   SIX = false;
    static constexpr size_t SCALES = 64 + 128 + 128;
    static void scale(const uint8_t * packed, int j, uint8_t * sc, uint8_t * m) {
        if (j < 4) {
            *sc = packed[j] & 63;
            *m = packed[j + 4] & 63;
        } else {
            *sc = (uint8_t) ((packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4));
            *m = (uint8_t) ((packed[j + 4] >> 4) | ((packed[j] >> 6) << 4));
        }
    }
    static void put_scales(uint16_t d, uint16_t dmin, const uint8_t * packed, int r, uint8_t * out) {
        memcpy(out + 2 * r, &d, 2);
        memcpy(out + 32 + 2 * r, &dmin, 2);
        for (int j = 0; j < 8; j++) {
            uint8_t sc, m;
            scale(packed, j, &sc, &m);
            out[64 + 16 * j + r] = sc;
            out[192 + 32 * (j / 2) + 2 * r + j % 2] = m;
        }
    }
};
template <> struct Super<Q4_K> : K45<4> {
    struct Block { uint16_t d, dmin; uint8_t scales[12]; uint8_t qs[128]; };
    static void decode(const Block & x, uint8_t * q) {
        for (int i = 0; i < 256; i++) {
            const uint8_t both = x.qs[32 * (i / 64) + i % 32];
            q[i] = i % 64 < 32 ? both & 15 : both >> 4;
        }
    }
    static void put_scales(const Block & x, int r, uint8_t * out) { K45::put_scales(x.d, x.dmin, x.scales, r, out); }
};
template <> struct Super<Q5_K> : K45<5> {
    struct Block { uint16_t d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; };
    static void decode(const Block & x, uint8_t * q) {
        for (int i = 0; i < 256; i++) {
            const uint8_t both = x.qs[32 * (i / 64) + i % 32];
            q[i] = (uint8_t) ((i % 64 < 32 ? both & 15 : both >> 4) | (((x.qh[i % 32] >> (i / 32)) & 1) << 4));
        }
    }
    static void put_scales(const Block & x, int r, uint8_t * out) { K45::put_scales(x.d, x.dmin, x.scales, r, out); }
};
template <> struct Super<Q6_K> {
    struct Block { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; uint16_t d; };
    static constexpr int    BITS = 6;
    static constexpr bool   SIX = true;
    static constexpr size_t SCALES = 64 + 256;
    static void decode(const Block & x, uint8_t * q) {
        for (int i = 0; i < 256; i++) {
            const int h = i / 128, j = i % 128, part = j / 32, l = j % 32;
            const uint8_t low = x.ql[64 * h + 32 * (part % 2) + l];
            q[i] = (uint8_t) ((part < 2 ? low & 15 : low >> 4) | (((x.qh[32 * h + l] >> (2 * part)) & 3) << 4));
        }
    }
    static void put_scales(const Block & x, int r, uint8_t * out) {
        memcpy(out + 2 * r, &x.d, 2);
        for (int j = 0; j < 16; j++) out[64 + 16 * j + r] = (uint8_t) x.scales[j];
    }
};

}  // namespace edge
