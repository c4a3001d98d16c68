// Vectors of sixteen numbers: what the kernels are written in.
//
// A `Floats` has sixteen numbers in fp32, an `Ints` 64 bytes that are taken for integers of any size, a `Lanes` a bit for
// each of sixteen numbers. Processors with AVX-512 have them as they are (avx512.h); others with AVX2 as pairs of half the
// size (avx2.h). Both files define the same functions, how many vectors of sums stay in registers (kSums), and the tiles of
// sums that do together with what they are made of. `+ - * /` are those of numbers in fp32, `& |` those of bits.

#pragma once

#include <cstdint>

namespace djl {
namespace {

using Lanes = uint16_t;

// The lanes of a vector that `left` numbers fill.
inline Lanes lanes_of(int64_t left) { return left >= 16 ? 0xffff : left <= 0 ? 0 : (Lanes)((1 << left) - 1); }

// Of a tile of sums: rows, and vectors of each.
struct Shape {
    int rows, vectors;
};

}  // namespace
}  // namespace djl

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "avx512.h"
#else
#include "avx2.h"
#endif

#ifndef __AVX512BF16__
namespace djl {
namespace {

// The same as the instruction in fp32, of which bf16 is the upper half.
inline Floats add_pairs(Floats sum, Ints b, Ints a) {
    const Ints upper = ints((int32_t)0xffff0000);
    auto first = [](Ints x) { return as_floats(shift_left<16>(x)); };
    auto second = [&](Ints x) { return as_floats(x & upper); };
    return fma(second(b), second(a), fma(first(b), first(a), sum));
}

}  // namespace
}  // namespace djl
#endif
