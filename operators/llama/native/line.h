// Sixteen floats, of two `Wide`.
#include "adapters.h"

namespace {
struct Line {
    static constexpr int TOKENS = 2, LINES = 1;  // what 16 registers hold
    Wide low, high;

    static Line load(const float * from) { return {Wide::load(from), Wide::load(from + LANES)}; }
    static Line all(float value) { return {Wide::all(value), Wide::all(value)}; }
    static Line add_product(Line a, Line b, Line c) {
        return {Wide::add_product(a.low, b.low, c.low), Wide::add_product(a.high, b.high, c.high)};
    }
    static Line add(Line a, Line b) { return {Wide::add(a.low, b.low), Wide::add(a.high, b.high)}; }
    void store(float * to) const { low.store(to), high.store(to + LANES); }
    Wide halves() const { return Wide::add(low, high); }
};
}  // namespace
