// Products of tiles, where processors have them (AMX).
//
// There are eight tile registers of up to sixteen rows of 64 bytes. Sums are 16 rows by 16 columns, in fp32 or integers; a
// tile of rows has 32 bits of each row for each step along k; a tile of weights has a row for each step, as packed panels
// have. A register's number is part of the instruction, hence the templates. Before a product the shapes of all tiles are
// set, which zeroes them.

#pragma once

#include <cstdint>
#include <cstring>

#include "vectors/vectors.h"

namespace djl {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileSteps = 16;

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define DJL_TILES
#endif

#if defined(DJL_TILES) || defined(DJL_TILES_IN_SOFTWARE)
constexpr bool kHasAmx = true;
#else
constexpr bool kHasAmx = false;
#endif

// Register numbers for two rows of tiles by two columns, or for one row by two.
constexpr int sums_register(int row, int column) { return row * 2 + column; }
constexpr int rows_register(int row) { return 4 + row; }
constexpr int weights_register(int column) { return 6 + column; }

// The shapes of all registers, as ldtilecfg reads them: palette 1.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};  // of each row
    uint8_t rows[16] = {};

    void set(int number, int height, int width) {
        rows[number] = (uint8_t)height;
        bytes[number] = (uint16_t)(height ? width : 0);
    }

    // For two rows of tiles, with `low` and `high` rows of sums (`high` may be 0), and so many steps.
    TileShapes(int low, int high, int steps) {
        for (int row = 0; row < 2; ++row) {
            const int height = row ? high : low;
            for (int column = 0; column < 2; ++column) set(sums_register(row, column), height, 64);
            set(rows_register(row), height, 4 * steps);
        }
        for (int column = 0; column < 2; ++column) set(weights_register(column), steps, 64);
    }
};

#ifdef DJL_TILES

inline void shape_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }

// To be called after the last product: what tiles hold has to be saved whenever another thread gets the core.
inline void release_tiles() { asm volatile("tilerelease"); }

template <int N>
inline void clear_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(N));
}

template <int N>
inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(N) : "memory");
}

template <int N>
inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(N) : "memory");
}

// sums += rows times weights: pairs of bf16, or quads of bytes, signed rows times unsigned weights.
template <int Sums, int Rows, int Weights>
inline void multiply_tiles_of_pairs() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Rows), "i"(Weights));
}

template <int Sums, int Rows, int Weights>
inline void multiply_tiles_of_quads() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Rows), "i"(Weights));
}

#else

// The same in software, to test kernels that multiply tiles on processors without them.
struct SoftwareTiles {
    TileShapes shapes{0, 0, 0};
    uint8_t at[8][kTileRows][64];

    template <class Number>
    Number* row(int tile, int row) {
        return (Number*)at[tile][row];
    }

    // For each step, sums[m][n] = product(sums[m][n], the step's 32 bits of row m, the step's 32 bits of column n).
    template <class Sum, class Product>
    void multiply(int sums, int rows, int weights, Product product) {
        for (int m = 0; m < shapes.rows[sums]; ++m)
            for (int step = 0; step < shapes.rows[weights]; ++step)
                for (int n = 0; n < shapes.bytes[sums] / 4; ++n)
                    row<Sum>(sums, m)[n] = product(row<Sum>(sums, m)[n], row<uint8_t>(rows, m) + 4 * step,
                                                   row<uint8_t>(weights, step) + 4 * n);
    }
};

inline SoftwareTiles& software_tiles() {
    thread_local SoftwareTiles tiles;
    return tiles;
}

inline void shape_tiles(const TileShapes& shapes) {
    software_tiles().shapes = shapes;
    memset(software_tiles().at, 0, sizeof software_tiles().at);
}

inline void release_tiles() { shape_tiles({0, 0, 0}); }

template <int N>
inline void clear_tile() {
    memset(software_tiles().at[N], 0, sizeof software_tiles().at[N]);
}

template <int N>
inline void load_tile(const void* from, int64_t stride) {
    auto& tiles = software_tiles();
    clear_tile<N>();
    for (int i = 0; i < tiles.shapes.rows[N]; ++i)
        memcpy(tiles.at[N][i], (const char*)from + i * stride, tiles.shapes.bytes[N]);
}

template <int N>
inline void store_tile(void* to, int64_t stride) {
    auto& tiles = software_tiles();
    for (int i = 0; i < tiles.shapes.rows[N]; ++i)
        memcpy((char*)to + i * stride, tiles.at[N][i], tiles.shapes.bytes[N]);
}

template <int Sums, int Rows, int Weights>
inline void multiply_tiles_of_pairs() {
    auto of = [](const uint8_t* at, int place) {
        const uint32_t bits = (uint32_t)(at[2 * place] | at[2 * place + 1] << 8) << 16;
        float x;
        memcpy(&x, &bits, 4);
        return x;
    };
    software_tiles().multiply<float>(Sums, Rows, Weights, [&](float sum, const uint8_t* x, const uint8_t* w) {
        return sum + of(x, 0) * of(w, 0) + of(x, 1) * of(w, 1);
    });
}

template <int Sums, int Rows, int Weights>
inline void multiply_tiles_of_quads() {
    software_tiles().multiply<int32_t>(Sums, Rows, Weights, [](int32_t sum, const uint8_t* x, const uint8_t* w) {
        for (int i = 0; i < 4; ++i) sum += (int8_t)x[i] * w[i];
        return sum;
    });
}

#endif

// What the 32 bits of a step hold: pairs of bf16, or quads of bytes.
struct Pairs {
    template <int Sums, int Rows, int Weights>
    static void multiply() {
        multiply_tiles_of_pairs<Sums, Rows, Weights>();
    }
};
struct Quads {
    template <int Sums, int Rows, int Weights>
    static void multiply() {
        multiply_tiles_of_quads<Sums, Rows, Weights>();
    }
};

// The sums of up to 32 rows, one row of tiles or two of nearly the same height, by two columns of tiles.
struct TileBlock {
    static constexpr int rows = 2 * kTileRows;
    const int low, high;

    explicit TileBlock(int height) : low(height > kTileRows ? (height + 1) / 2 : height), high(height - low) {}

    // Sets the registers' shapes for products of so many steps; all sums are zero then.
    void shape(int steps) const { shape_tiles({low, high, steps}); }

    void clear() const {
        clear_tile<sums_register(0, 0)>();
        clear_tile<sums_register(0, 1)>();
        if (!high) return;
        clear_tile<sums_register(1, 0)>();
        clear_tile<sums_register(1, 1)>();
    }

    void load(const void* from, int64_t pitch) const {
        auto at = (const char*)from, below = at + low * pitch;
        load_tile<sums_register(0, 0)>(at, pitch);
        load_tile<sums_register(0, 1)>(at + 64, pitch);
        if (!high) return;
        load_tile<sums_register(1, 0)>(below, pitch);
        load_tile<sums_register(1, 1)>(below + 64, pitch);
    }

    // Stores the second column only if `second`.
    void store(void* to, int64_t pitch, bool second = true) const {
        auto at = (char*)to, below = at + low * pitch;
        store_tile<sums_register(0, 0)>(at, pitch);
        if (second) store_tile<sums_register(0, 1)>(at + 64, pitch);
        if (!high) return;
        store_tile<sums_register(1, 0)>(below, pitch);
        if (second) store_tile<sums_register(1, 1)>(below + 64, pitch);
    }

    // sums += rows x, `stride` bytes apart, times the weights of each column of tiles, whose steps are `pitch` bytes apart.
    // `second` is null if there is one column only.
    template <class Numbers>
    void multiply(const void* x, int64_t stride, const void* first, const void* second, int64_t pitch) const {
        load_tile<rows_register(0)>(x, stride);
        load_tile<weights_register(0)>(first, pitch);
        Numbers::template multiply<sums_register(0, 0), rows_register(0), weights_register(0)>();
        if (second) {
            load_tile<weights_register(1)>(second, pitch);
            Numbers::template multiply<sums_register(0, 1), rows_register(0), weights_register(1)>();
        }
        if (!high) return;
        load_tile<rows_register(1)>((const char*)x + low * stride, stride);
        Numbers::template multiply<sums_register(1, 0), rows_register(1), weights_register(0)>();
        if (second) Numbers::template multiply<sums_register(1, 1), rows_register(1), weights_register(1)>();
    }
};

// While one exists, its thread may multiply tiles; its end releases them.
struct TilesGuard {
    ~TilesGuard() {
        if (kHasAmx) release_tiles();
    }
};

}  // namespace
}  // namespace djl
