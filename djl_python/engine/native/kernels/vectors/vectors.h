// Vectors of sixteen numbers, in which the kernels are written.
//
// A `Floats` has sixteen numbers in fp32, an `Ints` 64 bytes that are used as integers of any size, a `Lanes` a bit for
// each of sixteen numbers. With AVX-512 a vector is one register (avx512.h), with AVX2 two halves (avx2.h), on ARM four
// quarters (neon.h). The latter two go through memory where they have no masks (masked_in_memory.h).
// All define the same functions; how many vectors of sums stay in registers (kSumRegisters); the shapes of tiles whose sums
// stay in registers together with their operands (k...Tile); how many vectors of weights are read before they are used
// (kReadTogether), so that registers are left for them; whether many rows should share weights that are unpacked once
// (kUnpacksOnce), and up to how many rows that does not pay (kMaxTiledRows). `+ - * /` work on fp32, `& |` on bits.

#pragma once

#include <cstdint>

namespace djl {
namespace {

using Lanes = uint16_t;

// The lanes of a vector that `left` numbers fill.
inline Lanes lanes_of(int64_t left) { return left >= 16 ? 0xffff : left <= 0 ? 0 : (Lanes)((1 << left) - 1); }

// Copies the numbers that `lanes` names, of sixteen, from memory to memory.
template <class T>
inline void copy_lanes(T* to, const T* from, Lanes lanes) {
    for (int i = 0; i < 16; ++i)
        if (lanes >> i & 1) to[i] = from[i];
}

// The shape of a tile of sums: its rows, and the vectors of each row.
struct Shape {
    int rows, vectors;
};

}  // namespace
}  // namespace djl

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "vectors/avx512.h"
#elif defined(__AVX2__)
#include "vectors/avx2.h"
#else
#include "vectors/neon.h"
#endif

namespace djl {
namespace {

// One number of each bf16 pair, as fp32: bf16 is the upper half of fp32.
inline Floats first_of_pairs(Ints x) { return as_floats(shift_left<16>(x)); }
inline Floats second_of_pairs(Ints x) { return as_floats(x & ints((int32_t)0xffff0000)); }

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kMultipliesPairs = true;
#else
constexpr bool kMultipliesPairs = false;

// The same as the instruction, in fp32.
inline Floats add_pairs(Floats sum, Ints b, Ints a) {
    return fma(second_of_pairs(b), second_of_pairs(a), fma(first_of_pairs(b), first_of_pairs(a), sum));
}
#endif

// The codes of a row's rounded activations: bytes, where the processor multiplies quads of bytes. Elsewhere shorts, of each
// quad the first and third and then the second and fourth: weights' quads are split into even and odd bytes, as shorts.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
using Code = int8_t;
inline void store_codes(Code* to, const Ints (&x)[4]) { store_bytes(to, x); }
inline int place_of_code(int i) { return i; }
#else
using Code = int16_t;
inline void store_codes(Code* to, const Ints (&x)[4]) {
    for (int i = 0; i < 4; ++i) store_shorts_of_quads(to + 16 * i, x[i]);
}
inline int place_of_code(int i) { return (i & ~3) | (i & 1) << 1 | (i >> 1 & 1); }
inline void add_quads(Ints& sum, Ints b, Ints first, Ints second) {
    const Ints even = multiply_pairs(b & shorts(255), first), odd = multiply_pairs(shift_shorts_right<8>(b), second);
    sum = add_ints(sum, add_ints(even, odd));
}
#endif

}  // namespace
}  // namespace djl
