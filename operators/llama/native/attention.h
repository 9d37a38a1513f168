// Attention as an operation of llama.cpp's graphs, FLASH_ATTN_EXT: keys and values in F16, a mask, queries in F32.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr int LANES = 8;       // floats of a Wide; head sizes are a multiple of it
constexpr int CELLS = 16;      // of a block, which begins at a multiple of it
constexpr int SEGMENT = 512;   // cells after which a chain begins anew, and is merged with what came before
constexpr float NOTHING = -__builtin_inff();
constexpr int QUERIES = 32;    // at most that are computed together

// Cells of a block that all queries of a call see, in their order.
struct Cells {
    int count = 0;
    const void * keys[CELLS], * values[CELLS];
    float mask[CELLS];  // is added to scores
    int padded() const { return (count + LANES - 1) / LANES * LANES; }
};

struct Head {
    int size;
    float scale, cap;  // cap: 0 for none, else it is in the scale, too
    ptrdiff_t next_key, next_value;  // bytes from a key, or a value, to those that are needed next
};

// What a query has found so far: its largest score, and sums of the powers of e and of values times them.
struct State {
    float most;
    float sums[LANES];
    float * values;
};

// The attention of one instruction set. All give the same bits.
struct AttentionKernels {
    // `count` queries of a head see `cells`; `room`: 2 * CELLS * head.size floats.
    void (*attend)(Cells & cells, const Head & head, const float * const * queries, State * states, int count, float * room);
    void (*merge)(State & state, const State & later, int size);
    void (*finish)(State & state, const float * sink, int size, float * output);
    // outputs[q][0..3] = four rows times query q, in F32, by the chain of a score.
    void (*multiply)(const float * const * rows, const float * const * queries, int count, int size, float * const * outputs);
};
