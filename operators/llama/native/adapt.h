// Products of some tokens with the ranks of adapters, written once for all instruction sets; tile.h says why.
//
// Included by kernels_*.cpp, each of which has a class `Line` of sixteen floats. A rank of a token is sixteen sums, joined
// in a tree at the end; an output is a chain over the ranks in their order.
#include <cstring>
#include "adapters.h"

namespace {

template <int TOKENS>
void lower_some(const float * rows, int64_t apart, const float * next, const float * const * inputs, int size,
                float * const * outputs) {
    Line sums[TOKENS][RANKS];
    for (auto & of_token : sums) for (auto & sum : of_token) sum = Line::all(0);
    const auto add = [&](const float * const * four, const float * const * tokens, int at) {
        Line row[RANKS];
        for (int r = 0; r < RANKS; r++) row[r] = Line::load(four[r] + at);
        for (int t = 0; t < TOKENS; t++) {
            const Line token = Line::load(tokens[t] + at);
            for (int r = 0; r < RANKS; r++) sums[t][r] = Line::add_product(row[r], token, sums[t][r]);
        }
    };
    const float * const four[RANKS] = {rows, rows + apart, rows + 2 * apart, rows + 3 * apart};
    int at = 0;
    for (; at + LINE <= size; at += LINE) {
        for (int r = 0; r < RANKS; r++) __builtin_prefetch(next + r * apart + at);
        add(four, inputs, at);
    }
    if (at < size) {  // the rest, and zeros
        float room[RANKS + TOKENS][LINE] = {};
        const float * ends[RANKS + TOKENS];
        for (int i = 0; i < RANKS + TOKENS; i++) {
            memcpy(room[i], (i < RANKS ? four[i] : inputs[i - RANKS]) + at, (size - at) * sizeof(float));
            ends[i] = room[i];
        }
        add(ends, ends + RANKS, 0);
    }
    for (int t = 0; t < TOKENS; t++) {
        const Wide halves[RANKS] = {sums[t][0].halves(), sums[t][1].halves(), sums[t][2].halves(), sums[t][3].halves()};
        Wide::store_totals(halves, outputs[t]);
    }
}

void lower(const float * rows, int64_t apart, const float * next, const float * const * inputs, int tokens, int size,
           float * const * outputs) {
    constexpr int MOST = Line::TOKENS;
    int t = 0;
    for (; t + MOST <= tokens; t += MOST) lower_some<MOST>(rows, apart, next, inputs + t, size, outputs + t);
    for (; t + 2 <= tokens; t += 2) lower_some<2>(rows, apart, next, inputs + t, size, outputs + t);
    for (; t < tokens; t++) lower_some<1>(rows, apart, next, inputs + t, size, outputs + t);
}

// What `raise` reads; its weights from some output on.
struct Ups {
    const float * rows;
    int64_t apart;
    const float * next;
    const Ranks * ranks;
    int count;
    bool adds;
};

template <int TOKENS, int LINES>
void raise_some(const Ups & ups, const float * const * inputs, int at, float * const * outputs) {
    Line sums[TOKENS][LINES];
    for (auto & of_token : sums) for (auto & sum : of_token) sum = Line::all(-0.0f);
    for (int i = 0; i < ups.count; i++) {
        for (int rank = ups.ranks[i].first; rank < ups.ranks[i].end; rank++) {
            const float * from = ups.rows + rank * ups.apart + at;
            Line row[LINES];
            for (int l = 0; l < LINES; l++) {
                row[l] = Line::load(from + l * LINE);
                __builtin_prefetch(ups.next + rank * ups.apart + at + l * LINE);
            }
            for (int t = 0; t < TOKENS; t++) {
                const Line factor = Line::all(inputs[t][rank]);
                for (int l = 0; l < LINES; l++) sums[t][l] = Line::add_product(factor, row[l], sums[t][l]);
            }
        }
    }
    for (int t = 0; t < TOKENS; t++) {
        for (int l = 0; l < LINES; l++) {
            float * to = outputs[t] + at + l * LINE;
            (ups.adds ? Line::add(Line::load(to), sums[t][l]) : sums[t][l]).store(to);
        }
    }
}

template <int TOKENS>
void raise_tokens(const Ups & ups, const float * const * inputs, int width, float * const * outputs) {
    constexpr int LINES = Line::LINES;
    int at = 0;
    for (; at + LINES * LINE <= width; at += LINES * LINE) raise_some<TOKENS, LINES>(ups, inputs, at, outputs);
    for (; at + LINE <= width; at += LINE) raise_some<TOKENS, 1>(ups, inputs, at, outputs);
    for (; at < width; at++) {
        for (int t = 0; t < TOKENS; t++) {
            float sum = -0.0f;
            for (int i = 0; i < ups.count; i++) {
                const Ranks of = ups.ranks[i];
                for (int r = of.first; r < of.end; r++) sum = __builtin_fmaf(inputs[t][r], ups.rows[r * ups.apart + at], sum);
            }
            outputs[t][at] = ups.adds ? outputs[t][at] + sum : sum;
        }
    }
}

void raise(const float * rows, int64_t apart, const float * next, const Ranks * ranks, int count, const float * const * inputs,
           int tokens, int width, bool adds, float * const * outputs) {
    constexpr int MOST = Line::TOKENS;
    const Ups ups = {rows, apart, next, ranks, count, adds};
    int t = 0;
    for (; t + MOST <= tokens; t += MOST) raise_tokens<MOST>(ups, inputs + t, width, outputs + t);
    for (; t + 2 <= tokens; t += 2) raise_tokens<2>(ups, inputs + t, width, outputs + t);
    for (; t < tokens; t++) raise_tokens<1>(ups, inputs + t, width, outputs + t);
}

}  // namespace

#define ADAPTERS {lower, raise}
