// The attention of some queries to a block of cells, written once for all instruction sets; tile.h says why.
//
// Included by kernels_*.cpp, each of which has a class `Wide` of eight floats. A query's chain of operations is one, whatever
// other queries are computed beside it: eight sums for a product of two rows, in a tree at the end; a block's largest
// score; powers and their eight sums; values in the order of cells. Cells that a query does not see are no part of its chain.
#include "attention.h"

namespace {

// e ** x to some 1e-7 of it; 0 below -87, not finite above 88; NaN stays NaN.
inline Wide power_of_e(Wide x) {
    constexpr float WHOLE = 12582912.0f;  // 1.5 * 2 ** 23: no fraction is left
    const Wide shifted = Wide::add_product(x, Wide::all(1.44269504f), Wide::all(WHOLE));
    const Wide whole = Wide::add(shifted, Wide::all(-WHOLE));
    Wide rest = Wide::add_product(whole, Wide::all(-0.693359375f), x);
    rest = Wide::add_product(whole, Wide::all(2.12194440e-4f), rest);
    Wide sum = Wide::all(1.9875691500e-4f);
    constexpr float MORE[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    for (float next : MORE) {
        sum = Wide::add_product(sum, rest, Wide::all(next));
    }
    sum = Wide::add(Wide::add_product(sum, Wide::multiply(rest, rest), rest), Wide::all(1));
    return Wide::zero_below(x, -87, Wide::multiply(sum, Wide::two_to(shifted)));
}

inline float power_of_e(float x) { return power_of_e(Wide::all(x)).first(); }

// cap * tanh(x / cap), where `scale` has the division.
inline Wide capped(Wide x, float cap) {
    const Wide power = power_of_e(Wide::smaller(Wide::all(88), Wide::add(x, x)));
    const Wide part = Wide::divide(Wide::all(-2), Wide::add(power, Wide::all(1)));
    return Wide::multiply(Wide::all(cap), Wide::add(Wide::all(1), part));
}

// The products of QUERIES queries with four cells each.
template <int QUERIES, class Number>
inline void products(const float * const * queries, const Number * const * keys, const Number * const * values, const Head & head,
                     float (*scores)[CELLS]) {
    Wide sums[QUERIES][4];
    for (auto & of_query : sums) {
        for (auto & sum : of_query) sum = Wide::all(0);
    }
    for (int at = 0; at < head.size; at += LANES) {
        Wide query[QUERIES];
        for (int q = 0; q < QUERIES; q++) query[q] = Wide::load(queries[q] + at).kept();
        for (int i = 0; i < 4; i++) {
            const Wide key = Wide::load(keys[i] + at).kept();
            for (int q = 0; q < QUERIES; q++) sums[q][i] = Wide::add_product(query[q], key, sums[q][i]);
            if (sizeof(Number) == 2 && at % 32 == 0) {  // a line
                __builtin_prefetch((const char *) (keys[i] + at) + head.next_key);
                __builtin_prefetch((const char *) (values[i] + at) + head.next_value);
            }
        }
    }
    for (int q = 0; q < QUERIES; q++) Wide::store_totals(sums[q], scores[q]);
}

// Adds the values of cells, each times the query's power for it, in the order of cells.
template <int QUERIES, int PARTS, class Number>
inline void add_values(const Cells & cells, const Number * const * values, const float (*powers)[CELLS], State * states, int at) {
    Wide sums[QUERIES][PARTS];
    for (int q = 0; q < QUERIES; q++) {
        for (int p = 0; p < PARTS; p++) sums[q][p] = Wide::load(states[q].values + at + p * LANES);
    }
    for (int c = 0; c < cells.count; c++) {
        Wide value[PARTS];
        for (int p = 0; p < PARTS; p++) value[p] = Wide::load(values[c] + at + p * LANES);
        for (int q = 0; q < QUERIES; q++) {
            const Wide power = Wide::all(powers[q][c]);
            for (int p = 0; p < PARTS; p++) sums[q][p] = Wide::add_product(power, value[p], sums[q][p]);
        }
    }
    for (int q = 0; q < QUERIES; q++) {
        for (int p = 0; p < PARTS; p++) sums[q][p].store(states[q].values + at + p * LANES);
    }
}

inline void scale_by(float factor, State & state, int size) {
    const Wide by = Wide::all(factor);
    Wide::multiply(Wide::load(state.sums), by).store(state.sums);
    for (int at = 0; at < size; at += LANES) Wide::multiply(Wide::load(state.values + at), by).store(state.values + at);
}

// Turns products into powers of e, and adds them to the sums of the query.
inline void soften(const Cells & cells, float scale, float cap, int size, float * scores, State & state) {
    Wide most = Wide::all(NOTHING);
    for (int c = 0; c < cells.padded(); c += LANES) {
        Wide score = Wide::multiply(Wide::load(scores + c), Wide::all(scale));
        if (cap != 0) score = capped(score, cap);
        score = Wide::add(score, Wide::load(cells.mask + c));
        score.store(scores + c);
        most = Wide::larger(most, score);
    }
    const float largest = most.largest();
    if (!(largest <= state.most)) {  // NaN, too
        if (state.most > NOTHING) scale_by(power_of_e(state.most - largest), state, size);
        state.most = largest;
    }
    Wide sums = Wide::load(state.sums);
    for (int c = 0; c < cells.padded(); c += LANES) {
        const Wide power = power_of_e(Wide::add(Wide::load(scores + c), Wide::all(-state.most)));
        power.store(scores + c);
        sums = Wide::add(sums, power);
    }
    sums.store(state.sums);
}

template <int QUERIES, class Number>
void attend_some(const Cells & cells, const Head & head, const float * const * queries, State * states) {
    const auto * const * keys = (const Number * const *) cells.keys;
    const auto * const * values = (const Number * const *) cells.values;
    float scores[QUERIES][CELLS];
    for (int c = 0; c < cells.padded(); c += 4) {
        float (*here)[CELLS] = (float (*)[CELLS]) (scores[0] + c);
        products<QUERIES>(queries, keys + c, values + c, head, here);
    }
    for (int q = 0; q < QUERIES; q++) soften(cells, head.scale, head.cap, head.size, scores[q], states[q]);
    int at = 0;
    for (; at + Wide::PARTS * LANES <= head.size; at += Wide::PARTS * LANES) {
        add_values<QUERIES, Wide::PARTS>(cells, values, scores, states, at);
    }
    for (; at < head.size; at += LANES) add_values<QUERIES, 1>(cells, values, scores, states, at);
}

template <class Number>
void attend_all(const Cells & cells, const Head & head, const float * const * queries, State * states, int count) {
    constexpr int MOST = Wide::QUERIES_AT_ONCE, HALF = (MOST + 1) / 2;
    int q = 0;
    for (; q + MOST <= count; q += MOST) attend_some<MOST, Number>(cells, head, queries + q, states + q);
    for (; q + HALF <= count; q += HALF) attend_some<HALF, Number>(cells, head, queries + q, states + q);
    for (; q < count; q++) attend_some<1, Number>(cells, head, queries + q, states + q);
}

// Queries that are more than a few share the cells as floats, in `room`.
void attend(Cells & cells, const Head & head, const float * const * queries, State * states, int count, float * room) {
    for (int c = cells.count; c < cells.padded(); c++) {  // read, and not seen
        cells.keys[c] = cells.keys[c - 1], cells.values[c] = cells.values[c - 1], cells.mask[c] = NOTHING;
    }
    if (count <= Wide::QUERIES_AT_ONCE) return attend_all<uint16_t>(cells, head, queries, states, count);
    Cells floats;
    floats.count = cells.count;
    for (int c = 0; c < CELLS; c++) floats.mask[c] = cells.mask[c];
    for (int c = 0; c < cells.padded(); c++, room += 2 * head.size) {
        const auto * key = (const uint16_t *) cells.keys[c], * value = (const uint16_t *) cells.values[c];
        for (int at = 0; at < head.size; at += LANES) {
            Wide::load(key + at).store(room + at);
            Wide::load(value + at).store(room + head.size + at);
            __builtin_prefetch((const char *) (key + at) + head.next_key);
            __builtin_prefetch((const char *) (value + at) + head.next_value);
        }
        floats.keys[c] = room, floats.values[c] = room + head.size;
    }
    attend_all<float>(floats, head, queries, states, count);
}

void multiply_rows(const float * const * rows, const float * const * queries, int count, int size, float * const * outputs) {
    constexpr int MOST = Wide::QUERIES_AT_ONCE;
    const Head head = {size, 1, 0, 0, 0};
    float made[MOST][CELLS];
    for (int q = 0; q < count;) {
        const int taken = count - q >= MOST ? MOST : 1;
        if (taken == MOST) products<MOST>(queries + q, rows, rows, head, made);
        else products<1>(queries + q, rows, rows, head, made);
        for (int i = 0; i < taken; i++, q++) {
            for (int row = 0; row < 4; row++) outputs[q][row] = made[i][row];
        }
    }
}

// Adds what a query found in later cells.
void merge(State & state, const State & later, int size) {
    if (later.most == NOTHING) return;
    const float most = later.most > state.most ? later.most : state.most;
    const float mine = power_of_e(state.most - most), other = power_of_e(later.most - most);
    const auto both = [mine, other](float * here, const float * there) {
        const Wide first = Wide::multiply(Wide::load(here), Wide::all(mine));
        Wide::add_product(Wide::load(there), Wide::all(other), first).store(here);
    };
    both(state.sums, later.sums);
    for (int at = 0; at < size; at += LANES) both(state.values + at, later.values + at);
    state.most = most;
}

// Writes the output of a query; `sink`: a score without a value, or nullptr.
void finish(State & state, const float * sink, int size, float * output) {
    float more = 0;
    if (sink) {
        const float most = *sink > state.most ? *sink : state.most;
        scale_by(power_of_e(state.most - most), state, size);
        more = power_of_e(*sink - most);
    }
    const float sum = Wide::load(state.sums).total() + more;
    const Wide by = Wide::all(sum == 0 ? 0 : 1 / sum);
    for (int at = 0; at < size; at += LANES) Wide::multiply(Wide::load(state.values + at), by).store(output + at);
}

}  // namespace

#define ATTENTION {attend, merge, finish, multiply_rows}
