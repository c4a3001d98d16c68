// Products with weights in blocks of 32 (block_codes.h), as GGUF files have them, and activations rounded to 8 bits
// (block_rows.h).
//
// Within a block, or half of one where scales are by 16 numbers, products are added as integers; these sums, times the
// scales, are added in fp32. What the least number of a block contributes is the sum of the row's block times it.
//
// The fp32 sums of a band of rows are in memory, in L1 while they are used, so that registers are left for the integers.

#pragma once

#include <algorithm>

#include "linear/block_codes.h"
#include "linear/linear.h"

namespace djl {
namespace {

constexpr int kPartBytes = 96 << 10;  // of a panel that several tiles multiply while it stays in L2

// Where the processor multiplies unsigned bytes by signed ones, what is added to signed codes.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kMultipliesQuads = true;
#else
constexpr bool kMultipliesQuads = false;
#endif
template <class Codes>
constexpr int kExcess = kMultipliesQuads && Codes::bits == 8 ? 128 : 0;

// Sums of products of codes with so many bits, one for each column. Without instructions for quads, these are sums of pairs,
// in 16 bits as long as they fit: all of a block of 4 bits, two quads of 6.
template <int Bits>
struct BlockSums {
    static constexpr bool in_shorts = !kMultipliesQuads && Bits <= 4;
    Ints sums = Ints{};

    // Adds the products of two quads of codes b with those of activations x.
    inline __attribute__((always_inline)) void add(Ints b, Ints x, Ints other_b, Ints other_x) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
        add_quads(sums, b, x);
        add_quads(sums, other_b, other_x);
#else
        if constexpr (Bits == 8) {
            sums = add_ints(sums, multiply_pairs(multiply_signed_bytes(b, x), shorts(1)));
            sums = add_ints(sums, multiply_pairs(multiply_signed_bytes(other_b, other_x), shorts(1)));
        } else {
            const Ints pairs = add_shorts(multiply_bytes(b, x), multiply_bytes(other_b, other_x));
            sums = in_shorts ? add_shorts(sums, pairs) : add_ints(sums, multiply_pairs(pairs, shorts(1)));
        }
#endif
    }

    Floats total() const { return to_floats(in_shorts ? multiply_pairs(sums, shorts(1)) : sums); }
};

// A panel, and the rows that it is multiplied with.
template <class C>
struct BlockPart {
    const C codes;
    const BlockScales scales;
    const char* at;
    const int before;  // bytes of a record's scales
    const int64_t record;
    void* rows;
    const int blocks;

    BlockPart(const LinearOp& op, int64_t panel)
        : codes(op.weight), scales(op.weight, block_count(op.k), panel), before(scale_bytes(op.weight.scaling, C::parts)),
          record(record_bytes(op)), rows(const_cast<void*>(op.in)), blocks(block_count(op.k)) {
        at = (const char*)op.weight.panels + panel * blocks * record;
    }

    static int64_t record_bytes(const LinearOp& op) { return scale_bytes(op.weight.scaling, C::parts) + 4 * C::lines * 64; }

    // Multiplies R rows with blocks `from` to before `end`, and adds that to `sums`, rows of kPanel numbers, or to zero where
    // nothing has `begun`. If it `reads_ahead`, it prefetches what follows from memory.
    template <int R>
    __attribute__((noinline)) void tile(int64_t row, int from, int end, float* sums, bool begun, bool reads_ahead) const {
        constexpr int V = kQuadTile.vectors;
        const BlockRow first = block_row(rows, row, blocks);
        const int64_t stride = block_row_bytes(blocks);
        Rows<R> row_codes(first.codes + from * kBlock, stride);
        Rows<R> row_scales(first.scales + from, stride);
        Rows<R> row_sums(C::parts == 1 ? first.sums + from : first.halves + 2 * from, stride);
        const char* at_record = at + from * record;
        const int lines = (int)(record / 64);
        for (int block = from; block < end; ++block, at_record += record) {
            for (int vector = 0; vector < 4; vector += V) {
                if (reads_ahead)
                    for (int line = lines * vector / 4; line < lines * (vector + V) / 4; ++line)
                        prefetch_once(at_record + kPrefetchDistance + line * 64);
                multiply<R, V>(at_record, block, vector, row_codes, row_scales, row_sums, sums, begun || block > from);
            }
            row_codes.advance(kBlock);
            row_scales.advance();
            row_sums.advance(4 * C::parts);
        }
    }

private:
    template <int R, int V>
    inline __attribute__((always_inline)) void multiply(const char* at_record, int block, int vector, const Rows<R>& row_codes,
                                                        const Rows<R>& row_scales, const Rows<R>& row_sums, float* sums,
                                                        bool begun) const {
        const char* lines = at_record + before + vector * C::lines * 64;
        halves_of_block(std::make_integer_sequence<int, C::parts>{}, [&](auto part) __attribute__((always_inline)) {
            constexpr int pairs = kBlockQuads / C::parts / 2, begin = decltype(part)::value * 2 * pairs;
            BlockSums<C::bits> made[R][V];
            halves_of_block(std::make_integer_sequence<int, pairs>{}, [&](auto pair) __attribute__((always_inline)) {
                constexpr int q = begin + 2 * decltype(pair)::value;
                Ints b[V], other[V];
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) {
                    b[v] = loaded<q>(lines + v * C::lines * 64);
                    other[v] = loaded<q + 1>(lines + v * C::lines * 64);
                }
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) {
                    const Ints x = row_codes.broadcast(r, 4 * q), other_x = row_codes.broadcast(r, 4 * q + 4);
#pragma GCC unroll 4
                    for (int v = 0; v < V; ++v) made[r][v].add(b[v], x, other[v], other_x);
                }
            });
            constexpr int p = decltype(part)::value;
            Floats step[V], least[V];
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) {
                scales.load(at_record, block, p, vector + v, step[v], least[v]);
                if (kExcess<C>) least[v] = fma(step[v], floats(-(float)kExcess<C>), least[v]);
            }
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const Floats of_row = as_floats(row_scales.broadcast(r)), sum = as_floats(row_sums.broadcast(r, 4 * p));
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) {
                    float* to = sums + r * kPanel + (vector + v) * 16;
                    const Floats x = fma(sum, least[v], begun || p > 0 ? load_floats(to) : Floats{});
                    store_floats(to, fma(made[r][v].total(), step[v] * of_row, x));
                }
            }
        });
    }

    template <int Q>
    inline __attribute__((always_inline)) Ints loaded(const char* at_lines) const {
        const Ints b = codes.template load<Q>(at_lines);
        return kExcess<C> ? exclusive_or(b, bytes((int8_t)-128)) : b;
    }

    template <int... N, class Work>
    static inline __attribute__((always_inline)) void halves_of_block(std::integer_sequence<int, N...>, const Work& work) {
        (work(std::integral_constant<int, N>{}), ...);
    }
};

// How a product's work is cut.
template <class F, class C>
struct BlockPanel {
    using Format = F;
    using Codes = C;
    BlockPanel(const LinearOp& op, int64_t panel) : part(op, panel) {}

    static Cut cut(const LinearOp& op, const StepInputs& step) { return {op, step, block_count(op.k), block_count(op.k)}; }

    const char* at(int block) const { return part.at + block * part.record; }

    const BlockPart<C> part;
};

// out (rows, n) = in (rows, k) times a weight in blocks; see `Output`. A panel is multiplied with a band of rows, part by part.
template <class Panel>
void linear_of_blocks(Run& run, int index, const LinearOp& op, const StepInputs& step) {
    constexpr int height = kQuadTile.rows;
    alignas(64) float sums[kMaxBandRows * kPanel];
    for_each_band(run, index, op, step, Panel::cut(op, step), [&](int panel, int, int first, int last) {
        const auto part = Panel(op, panel).part;
        const int rows = last - first, tiles = (rows + height - 1) / height;
        const int length = tiles == 1 ? part.blocks : evenly(part.blocks, std::max(1, (int)(kPartBytes / part.record)));
        for (int from = 0; from < part.blocks; from += length) {
            const int end = std::min(from + length, part.blocks);
            for (int tile = 0, row = 0; tile < tiles; ++tile) {
                const int next = rows * (tile + 1) / tiles;
                with_height<1, height>(next - row, [&](auto R) {
                    part.template tile<R>(first + row, from, end, sums + row * kPanel, from > 0, tile == 0);
                });
                row = next;
            }
        }
        for (int row = 0; row < rows; ++row) {
            Floats sum[4];
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) sum[v] = load_floats(sums + row * kPanel + v * 16);
            if (op.low_rank.parts) add_low_rank<typename Panel::Format>(op.low_rank, step, first + row, panel, sum);
            finish_row<typename Panel::Format>(op, first + row, panel, sum);
        }
    });
}

}  // namespace
}  // namespace djl
