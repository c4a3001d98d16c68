// What differs between processors beside vectors: prefetch hints, and a hint for a thread that spins.

#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace djl {

#if defined(__x86_64__)
// Prefetch a line: to L1, to L2, or without leaving anything in the larger caches.
inline void prefetch_l1(const void* at) { _mm_prefetch((const char*)at, _MM_HINT_T0); }
inline void prefetch_l2(const void* at) { _mm_prefetch((const char*)at, _MM_HINT_T1); }
inline void prefetch_once(const void* at) { _mm_prefetch((const char*)at, _MM_HINT_NTA); }

inline void pause() { _mm_pause(); }
#else
inline void prefetch_l1(const void* at) { __builtin_prefetch(at, 0, 3); }
inline void prefetch_l2(const void* at) { __builtin_prefetch(at, 0, 2); }
inline void prefetch_once(const void* at) { __builtin_prefetch(at, 0, 0); }

inline void pause() { asm volatile("yield"); }
#endif

}  // namespace djl
