#include "self_test.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "product.h"

namespace {

constexpr int COLUMNS = 19, VALUES = 512, OUTPUTS = 2 * ROWS;  // 19: 16 and 3
constexpr double MOST_ERROR = 1e-5;                             // of the sum of the sizes of the products
constexpr ggml_type TESTED[] = {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4,
                                GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};

struct Random {  // xorshift
    uint64_t state = 0x9e3779b97f4a7c15;
    float next() {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return (float) (int64_t) state * 0x1p-63f;
    }
    std::vector<float> many(size_t count) {
        std::vector<float> out(count);
        for (float & value : out) value = next();
        return out;
    }
};

std::vector<float> product(const Kernels & kernels, const Format & format, const void * packed, const std::vector<Block> & blocks) {
    constexpr int A_ROW = VALUES / UNIT;
    std::vector<float> out(COLUMNS * OUTPUTS);
    multiply(kernels.tiles[format.type], (const char *) packed, VALUES / format.values * format.packed_bytes, 0, OUTPUTS / ROWS,
             A_ROW, COLUMNS, [&](int64_t column, const Block *& from, float *& to) {
                 from = &blocks[column * A_ROW], to = &out[column * OUTPUTS];
             });
    return out;
}

std::vector<Block> blocks_of(const Kernels & kernels, const std::vector<float> & inputs) {
    std::vector<Block> out(inputs.size() / UNIT);
    kernels.quantize(inputs.data(), out.data(), (int) out.size());
    return out;
}

bool is_near(const std::vector<float> & weights, const std::vector<Block> & blocks, const std::vector<float> & outputs) {
    for (int c = 0; c < COLUMNS; c++) {
        for (int row = 0; row < OUTPUTS; row++) {
            double sum = 0, size = 0;
            for (int i = 0; i < VALUES; i++) {
                const Block & block = blocks[(c * VALUES + i) / UNIT];
                const double each = (double) weights[row * VALUES + i] * block.bytes[i % UNIT] * block.scale;
                sum += each, size += std::fabs(each);
            }
            if (!(std::fabs(outputs[c * OUTPUTS + row] - sum) <= MOST_ERROR * size)) return false;
        }
    }
    return true;
}

// What some queries get from cells in two blocks, of which the second is not full, and a sink.
constexpr int SIZE = 40, SEEN = CELLS + 3, ASKED = 7;
std::vector<float> attended(const AttentionKernels & kernels, const std::vector<float> & queries, const std::vector<uint16_t> & cache) {
    std::vector<float> values(2 * ASKED * SIZE), room(2 * CELLS * SIZE), out(ASKED * SIZE);
    State states[2][ASKED];
    const float * asked[ASKED], sink = 0.5f;
    for (int block = 0; block < 2; block++) {
        Cells cells;
        for (int c = block * CELLS; c < SEEN && cells.count < CELLS; c++) {
            cells.mask[cells.count] = 0;
            cells.keys[cells.count] = &cache[c * SIZE], cells.values[cells.count++] = &cache[(SEEN + c) * SIZE];
        }
        for (int q = 0; q < ASKED; q++) {
            asked[q] = &queries[q * SIZE];
            states[block][q] = {NOTHING, {}, &values[(block * ASKED + q) * SIZE]};
        }
        for (int q : {0, 2}) {  // few, and more
            kernels.attend(cells, {SIZE, 1, 0, 0}, asked + q, states[block] + q, q ? ASKED - 2 : 2, room.data());
        }
    }
    for (int q = 0; q < ASKED; q++) {
        kernels.merge(states[0][q], states[1][q], SIZE);
        kernels.finish(states[0][q], &sink, SIZE, &out[q * SIZE]);
    }
    return out;
}

bool is_attention(const std::vector<float> & queries, const std::vector<uint16_t> & cache, const std::vector<float> & outputs) {
    for (int q = 0; q < ASKED; q++) {
        double sum = std::exp(0.5), values[SIZE] = {};
        for (int c = 0; c < SEEN; c++) {
            double score = 0;
            for (int i = 0; i < SIZE; i++) score += (double) queries[q * SIZE + i] * llama.half(cache[c * SIZE + i]);
            sum += std::exp(score);
            for (int i = 0; i < SIZE; i++) values[i] += std::exp(score) * llama.half(cache[(SEEN + c) * SIZE + i]);
        }
        for (int i = 0; i < SIZE; i++) {
            if (!(std::fabs(outputs[q * SIZE + i] - values[i] / sum) <= MOST_ERROR)) return false;
        }
    }
    return true;
}

// What some tokens get from two of three adapters, whose matrix has sizes that are no multiples of a vector.
constexpr int INPUTS = 4 * LINE + 5, RAISED = 5 * LINE + 3, BANK = 12, TOKENS = 7;
constexpr Ranks SOME[] = {{0, 4}, {8, 12}};
std::vector<float> adapted(const AdapterKernels & kernels, const std::vector<float> & tokens, const std::vector<float> & bank) {
    std::vector<float> ranks(TOKENS * BANK), out(TOKENS * RAISED, 1.0f);
    const float * from[TOKENS], * lowered[TOKENS];
    float * to[TOKENS], * raised[TOKENS];
    for (const Ranks & some : SOME) {
        for (int t = 0; t < TOKENS; t++) from[t] = &tokens[t * INPUTS], to[t] = &ranks[t * BANK + some.first];
        const float * rows = &bank[some.first * INPUTS];
        kernels.lower(rows, INPUTS, rows, from, TOKENS, INPUTS, to);
    }
    for (int t = 0; t < TOKENS; t++) lowered[t] = &ranks[t * BANK], raised[t] = &out[t * RAISED];
    const float * rows = &bank[BANK * INPUTS];
    kernels.raise(rows, RAISED, rows, SOME, 2, lowered, TOKENS - 2, RAISED, true, raised);
    kernels.raise(rows, RAISED, rows, SOME, 2, lowered + TOKENS - 2, 2, RAISED, false, raised + TOKENS - 2);
    return out;
}

bool is_adapted(const std::vector<float> & tokens, const std::vector<float> & bank, const std::vector<float> & outputs) {
    for (int i = 0; i < TOKENS * RAISED; i++) {
        const int t = i / RAISED;
        double sum = t < TOKENS - 2;
        for (const Ranks & some : SOME) {
            for (int rank = some.first; rank < some.end; rank++) {
                double lowered = 0;
                for (int j = 0; j < INPUTS; j++) lowered += (double) tokens[t * INPUTS + j] * bank[rank * INPUTS + j];
                sum += lowered * bank[BANK * INPUTS + rank * RAISED + i % RAISED];
            }
        }
        if (!(std::fabs(outputs[i] - sum) <= MOST_ERROR)) return false;
    }
    return true;
}

}  // namespace

const char * self_test(const Kernels & kernels) {
    static char said[128];
    Random random;
    const auto inputs = random.many(COLUMNS * VALUES), plain_weights = random.many(OUTPUTS * VALUES);
    const auto blocks = blocks_of(kernels, inputs), same_blocks = blocks_of(KERNELS_PLAIN, inputs);
    if (memcmp(blocks.data(), same_blocks.data(), blocks.size() * sizeof(Block)) != 0) return "activations";
    for (const ggml_type type : TESTED) {
        const Format format = format_of(type);
        const auto * traits = llama.type_traits(type);
        snprintf(said, sizeof said, "the products of %s by %s", traits->type_name, kernels.name);
        std::vector<char> file(OUTPUTS * VALUES / format.values * format.file_bytes), packed(file.size());
        llama.quantize_chunk(type, plain_weights.data(), file.data(), 0, OUTPUTS, VALUES, nullptr);
        std::vector<float> weights(OUTPUTS * VALUES);
        traits->to_float(file.data(), weights.data(), (int64_t) weights.size());
        pack(format, file.data(), packed.data(), VALUES, OUTPUTS, 1);
        const auto outputs = product(kernels, format, packed.data(), blocks);
        const auto same = product(KERNELS_PLAIN, format, packed.data(), blocks);
        if (memcmp(outputs.data(), same.data(), outputs.size() * sizeof(float)) != 0) return said;
        if (!is_near(weights, blocks, outputs)) return said;
    }
    const auto queries = random.many(ASKED * SIZE);
    std::vector<uint16_t> cache;
    for (float value : random.many(2 * SEEN * SIZE)) cache.push_back(llama.from_float(value));
    const auto outputs = attended(kernels.attention, queries, cache), same = attended(KERNELS_PLAIN.attention, queries, cache);
    snprintf(said, sizeof said, "attention by %s", kernels.name);
    const bool is_same = memcmp(outputs.data(), same.data(), outputs.size() * sizeof(float)) == 0;
    if (!is_same || !is_attention(queries, cache, outputs)) return said;
    const auto tokens = random.many(TOKENS * INPUTS), bank = random.many(BANK * (INPUTS + RAISED));
    const auto made = adapted(kernels.adapters, tokens, bank), plain = adapted(KERNELS_PLAIN.adapters, tokens, bank);
    snprintf(said, sizeof said, "adapters by %s", kernels.name);
    const bool is_plain = memcmp(made.data(), plain.data(), made.size() * sizeof(float)) == 0;
    return is_plain && is_adapted(tokens, bank, made) ? nullptr : said;
}
