// The pieces of the KV cache that attention reads.

#pragma once

#include "program.h"
#include "vectors/processor.h"

namespace djl {
namespace {

constexpr int kChunkKeys = 512;  // keys that are scored before their values are read
constexpr int kChunkGroups = kChunkKeys / kKeysPerGroup;

// What a chunk's walk reads, piece by piece: its groups' keys, then their values, and then the first keys of the next chunk.
// When a piece is read for the first time, the piece `distance` places further on is prefetched.
//
// Prefetches go to L2: more lines can be on their way to L2 than to L1, and scattered pieces arrive half again as fast.
struct Pieces {
    const char* at[3 * kChunkGroups];
    int distance;

    const char* const* prefetched(int piece) const { return at + piece + distance; }
};

}  // namespace
}  // namespace djl
