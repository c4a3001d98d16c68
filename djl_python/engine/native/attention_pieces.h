// What attention reads of the cache.

#pragma once

#include "processor.h"
#include "program.h"

namespace djl {
namespace {

constexpr int kChunkKeys = 512;  // keys that are scored before their values are looked at
constexpr int kChunkGroups = kChunkKeys / kKeys;

// What a chunk's walk reads, piece by piece: its groups' keys, then their values; and after them what the next one begins
// with. With each piece that is read for the first time another is fetched, some pieces further on.
//
// They go to the second cache: more lines can be on their way there than to the first, and scattered pieces come half again
// as fast.
struct Pieces {
    const char* at[3 * kChunkGroups];
    int ahead;

    const char* const* fetched(int piece) const { return at + piece + ahead; }
};

}  // namespace
}  // namespace djl
