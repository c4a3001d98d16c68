// Masked operations by way of memory, for avx2.h and neon.h, whose functions for whole vectors it needs.

#pragma once

#include <cstdint>

namespace djl {
namespace {

inline Ints keep_bytes(uint64_t which, Ints x) {
    if (which == UINT64_MAX) return x;
    uint8_t all[64];
    store_ints(all, x);
    for (int i = 0; i < 64; ++i)
        if (!(which >> i & 1)) all[i] = 0;
    return load_ints(all);
}

inline Floats load_bf16(const uint16_t* from, Lanes lanes) {
    if (lanes == 0xffff) return load_bf16(from);
    uint16_t some[16] = {};
    copy_lanes(some, from, lanes);
    return load_bf16(some);
}
inline void store_bf16(uint16_t* to, Floats x, Lanes lanes) {
    if (lanes == 0xffff) return store_bf16(to, x);
    uint16_t all[16];
    store_bf16(all, x);
    copy_lanes(to, all, lanes);
}
inline void store_bf16_in_pairs(uint16_t* to, Floats x, int place) {
    uint16_t all[16];
    store_bf16(all, x);
    for (int i = 0; i < 16; ++i) to[2 * i + place] = all[i];
}

}  // namespace
}  // namespace djl
