// Packs and multiplies matrices of random sizes, computes attention, routers and adapters, as llama.cpp's threads do, with
// room for not a byte more than is said: for sanitizers. argv: seed, rounds. Ends with 0, or says what is wrong.
//
// The team's barrier and chunks are these, not llama.cpp's, which no sanitizer sees into.
#include <pthread.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "adapted.h"
#include "product.h"

// Those of other CPUs are not linked.
extern const Kernels KERNELS_AVX512VNNI __attribute__((weak)), KERNELS_AVXVNNI __attribute__((weak)),
    KERNELS_AVX2 __attribute__((weak));

namespace {

struct Team {
    pthread_barrier_t together;
    std::atomic<int> chunk{0};
};
Team * of(ggml_threadpool * pool) { return (Team *) pool; }

std::mt19937 random_numbers;
int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_numbers); }

void numbered(ggml_tensor & tensor, ggml_type type, size_t item, int64_t a, int64_t b, int64_t c, int64_t d) {
    memset((void *) &tensor, 0, sizeof tensor);
    tensor.type = type;
    const int64_t sizes[] = {a, b, c, d};
    for (int i = 0; i < 4; i++) tensor.ne[i] = sizes[i], tensor.nb[i] = i ? tensor.nb[i - 1] * sizes[i - 1] : item;
}

// Computes a planned operation as llama.cpp does. Returns whether it is ours.
bool computed(ggml::cpu::tensor_traits & traits, ggml_tensor & op, int threads, size_t size) {
    std::unique_ptr<char[]> work(new char[size]);
    Team team;
    pthread_barrier_init(&team.together, nullptr, threads);
    std::vector<std::thread> others;
    std::atomic<bool> ours{true};
    const auto run = [&](int thread) {
        ggml_compute_params params = {};
        params.ith = thread, params.nth = threads, params.wsize = size, params.wdata = work.get();
        params.threadpool = (ggml_threadpool *) &team;
        if (!traits.compute_forward(&params, &op)) ours = false;
    };
    for (int t = 1; t < threads; t++) others.emplace_back(run, t);
    run(0);
    for (auto & other : others) other.join();
    pthread_barrier_destroy(&team.together);
    return ours;
}

// By so many threads, or fewer than were planned.
bool by_team(ggml::cpu::tensor_traits & traits, ggml_tensor & op, int threads) {
    size_t size = 0;
    return traits.work_size(threads + between(0, 8), &op, size) && computed(traits, op, threads, size);
}

constexpr ggml_type TYPES_OF[] = {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4,
                                  GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};

bool round_of(const Kernels & kernels, int number) {
    const ggml_type type = TYPES_OF[number % TYPES];
    const Format format = format_of(type);
    const bool by_expert = between(0, 1);
    const int64_t values = format.values * between(1, 640 / format.values), rows = ROWS * between(1, 12);
    const int64_t experts = by_expert ? between(1, 6) : 1, tokens = between(1, 40), used = between(1, (int) experts);
    const int64_t given = by_expert ? (between(0, 1) ? used : 1) : between(1, 3), gap = UNIT * between(0, 1);
    const size_t bytes = experts * rows * (values / format.values) * format.file_bytes;
    std::unique_ptr<char[]> file(new char[bytes]), packed(new char[bytes]);
    for (size_t i = 0; i < bytes; i++) file[i] = (char) between(0, 255);
    pack(format, file.get(), packed.get(), values, experts * rows, between(1, 8));

    ggml_tensor weights, inputs, ids, op;
    numbered(weights, type, 0, values, rows, experts, 1);
    weights.data = packed.get();
    const int64_t width = values + gap;  // rows of activations may stand apart
    std::unique_ptr<float[]> numbers(new float[width * given * tokens - gap]);
    for (int64_t i = 0; i < width * given * tokens - gap; i++) numbers[i] = (float) between(-1000, 1000) / 64;
    numbered(inputs, GGML_TYPE_F32, sizeof(float), values, given, by_expert ? tokens : 1, by_expert ? 1 : tokens);
    inputs.nb[1] = width * sizeof(float), inputs.nb[2] = inputs.nb[1] * inputs.ne[1], inputs.nb[3] = inputs.nb[2] * inputs.ne[2];
    inputs.data = numbers.get();
    std::unique_ptr<int32_t[]> chosen(new int32_t[used * tokens]);
    for (int64_t i = 0; i < used * tokens; i++) chosen[i] = between(0, (int) experts - 1);
    numbered(ids, GGML_TYPE_I32, sizeof(int32_t), used, tokens, 1, 1);
    ids.data = chosen.get();
    const int64_t columns = (by_expert ? used : given) * tokens;
    std::unique_ptr<float[]> out(new float[columns * rows]);
    numbered(op, GGML_TYPE_F32, sizeof(float), rows, by_expert ? used : given, by_expert ? tokens : 1, by_expert ? 1 : tokens);
    op.op = by_expert ? GGML_OP_MUL_MAT_ID : GGML_OP_MUL_MAT;
    op.src[0] = &weights, op.src[1] = &inputs, op.src[2] = by_expert ? &ids : nullptr;
    op.data = out.get();
    if (!Product::computes(&op)) return printf("declined\n"), false;
    Product product;
    product.kernels = &kernels;
    if (!by_team(product, op, between(1, 8))) return printf("declined\n"), false;

    // Each column alone, by plain C++.
    for (int64_t c = 0; c < columns; c++) {
        const int64_t expert = by_expert ? chosen[c] : 0, row = by_expert ? c / used * given + c % used % given : c;
        std::vector<Block> blocks(values / UNIT);
        KERNELS_PLAIN.quantize(numbers.get() + row * width, blocks.data(), (int) blocks.size());
        const Block * from = blocks.data();
        const size_t group_bytes = values / format.values * format.packed_bytes;
        for (int64_t group = 0; group < rows / ROWS; group++) {
            float expected[ROWS], * to = expected;
            KERNELS_PLAIN.tiles[format.type](packed.get() + (expert * rows / ROWS + group) * group_bytes, 1, &from,
                                             (int) blocks.size(), &to, 1);
            for (int i = 0; i < ROWS; i++) {
                const float is = out[c * rows + group * ROWS + i];
                if (memcmp(&is, &expected[i], sizeof is) != 0 && (is == is || expected[i] == expected[i])) {
                    return printf("round %d, %s: column %d, row %d\n", number, kernels.name, (int) c, (int) (group * ROWS + i)), false;
                }
            }
        }
    }
    return true;
}

// Attention of rows in a cache that has what is no number wherever nobody looks.
bool attention_of(const Kernels & kernels, int number) {
    const int64_t size = LANES * between(1, 10), keys = between(1, 8), heads = keys * between(1, 40 / (int) keys);
    const int64_t streams = between(1, 3), tokens = between(1, 50), cells = tokens + between(0, between(0, 1) ? 100 : 1200);
    std::unique_ptr<float[]> queries(new float[streams * tokens * heads * size]), out(new float[streams * tokens * heads * size]);
    std::unique_ptr<ggml_fp16_t[]> cache[2], mask(new ggml_fp16_t[streams * tokens * cells]);
    for (int64_t i = 0; i < streams * tokens * heads * size; i++) queries[i] = (float) between(-1000, 1000) / 256;
    constexpr ggml_fp16_t NAN_16 = 0x7e00, NONE = 0xfc00;
    for (auto & part : cache) {
        part.reset(new ggml_fp16_t[streams * cells * keys * size]);
        std::fill_n(part.get(), streams * cells * keys * size, NAN_16);
    }
    std::fill_n(mask.get(), streams * tokens * cells, NONE);
    for (int64_t s = 0; s < streams; s++) {
        const int64_t seen = between((int) tokens, (int) cells), window = between(0, 1) ? cells : between(1, 90);
        for (int64_t i = s * cells * keys * size; i < (s * cells + seen) * keys * size; i++) {
            for (auto & part : cache) part[i] = (ggml_fp16_t) (between(0, 1) << 15 | between(0x3000, 0x4200));
        }
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t c = std::max<int64_t>(0, seen - tokens + t + 1 - window); c < seen - tokens + t + 1; c++) {
                mask[(s * tokens + t) * cells + c] = 0;
            }
        }
    }
    ggml_tensor q, k, v, m, op;
    numbered(q, GGML_TYPE_F32, sizeof(float), size, tokens, heads, streams);
    q.nb[2] = size * sizeof(float), q.nb[1] = q.nb[2] * heads, q.nb[3] = q.nb[1] * tokens;
    numbered(k, GGML_TYPE_F16, sizeof(ggml_fp16_t), size, cells, keys, streams);
    k.nb[2] = size * sizeof(ggml_fp16_t), k.nb[1] = k.nb[2] * keys, k.nb[3] = k.nb[1] * cells;
    v = k;
    numbered(m, GGML_TYPE_F16, sizeof(ggml_fp16_t), cells, tokens, 1, streams);
    numbered(op, GGML_TYPE_F32, sizeof(float), size, heads, tokens, streams);
    q.data = queries.get(), k.data = cache[0].get(), v.data = cache[1].get(), m.data = mask.get(), op.data = out.get();
    const float settings[] = {0.2f, 0, between(0, 1) ? 20.0f : 0};
    memcpy(op.op_params, settings, sizeof settings);
    op.op = GGML_OP_FLASH_ATTN_EXT, op.src[0] = &q, op.src[1] = &k, op.src[2] = &v, op.src[3] = &m;
    Attention attention, plain;
    attention.kernels = &kernels.attention, plain.kernels = &KERNELS_PLAIN.attention;
    if (!by_team(attention, op, between(1, 8))) return printf("declined\n"), false;

    // Some tokens alone, by plain C++.
    for (int i = 0; i < 3; i++) {
        const int64_t s = between(0, (int) streams - 1), t = between(0, (int) tokens - 1);
        std::unique_ptr<float[]> expected(new float[heads * size]);
        ggml_tensor q1 = q, k1 = k, v1 = v, m1 = m, op1 = op;
        for (auto * each : {&q1, &k1, &v1, &m1, &op1}) each->ne[3] = 1;
        q1.ne[1] = m1.ne[1] = op1.ne[2] = 1;
        q1.data = (char *) q.data + s * q.nb[3] + t * q.nb[1], m1.data = (char *) m.data + s * m.nb[3] + t * m.nb[1];
        k1.data = (char *) k.data + s * k.nb[3], v1.data = (char *) v.data + s * v.nb[3], op1.data = expected.get();
        op1.src[0] = &q1, op1.src[1] = &k1, op1.src[2] = &v1, op1.src[3] = &m1;
        if (!by_team(plain, op1, 1)) return printf("declined\n"), false;
        if (memcmp(expected.get(), &out[(s * tokens + t) * heads * size], heads * size * sizeof(float)) != 0) {
            return printf("round %d, %s: token %d of %d\n", number, kernels.name, (int) t, (int) s), false;
        }
        for (int64_t j = 0; j < heads * size; j++) {
            if (!(expected[j] == expected[j])) return printf("round %d: what nobody sees is seen\n", number), false;
        }
    }
    return true;
}

// A router of experts.
bool router_of(const Kernels & kernels, int number) {
    const int64_t size = LANES * between(1, 40), rows = between(1, 30), tokens = between(1, 40);
    std::unique_ptr<float[]> numbers(new float[rows * size]), inputs(new float[tokens * size]), out(new float[tokens * rows]);
    for (int64_t i = 0; i < rows * size; i++) numbers[i] = (float) between(-1000, 1000) / 256;
    for (int64_t i = 0; i < tokens * size; i++) inputs[i] = (float) between(-1000, 1000) / 256;
    ggml_tensor weights, given, op;
    numbered(weights, GGML_TYPE_F32, sizeof(float), size, rows, 1, 1);
    strcpy(weights.name, "blk.0.ffn_gate_inp.weight");
    numbered(given, GGML_TYPE_F32, sizeof(float), size, tokens, 1, 1);
    numbered(op, GGML_TYPE_F32, sizeof(float), rows, tokens, 1, 1);
    weights.data = numbers.get(), given.data = inputs.get(), op.data = out.get();
    op.op = GGML_OP_MUL_MAT, op.src[0] = &weights, op.src[1] = &given;
    Router router;
    router.kernels = &kernels.attention;
    if (!by_team(router, op, between(1, 8))) return printf("declined\n"), false;
    for (int64_t i = 0; i < tokens * rows; i++) {
        double sum = 0, most = 0;
        for (int64_t j = 0; j < size; j++) {
            const double each = (double) numbers[i % rows * size + j] * inputs[i / rows * size + j];
            sum += each, most += each < 0 ? -each : each;
        }
        if (!(std::abs(out[i] - sum) <= 1e-5 * most)) return printf("round %d, %s: router\n", number, kernels.name), false;
    }
    return true;
}

}  // namespace

#include "fuzz_adapters.h"

int main(int, char ** arguments) {
    random_numbers.seed(atoi(arguments[1]));
    llama.barrier = [](ggml_threadpool * pool) { pthread_barrier_wait(&of(pool)->together); };
    llama.chunk_set = [](ggml_threadpool * pool, int value) { of(pool)->chunk = value; };
    llama.chunk_add = [](ggml_threadpool * pool, int value) { return of(pool)->chunk.fetch_add(value); };
    llama.buft_is_host = [](ggml_backend_buffer_type_t) { return true; };
    OfCalls::is_wanted = true;
    for (const Kernels * kernels : {&KERNELS_PLAIN, &KERNELS_AVX2, &KERNELS_AVXVNNI, &KERNELS_AVX512VNNI}) {
        if (!kernels || !kernels->runs()) continue;
        for (int i = 0; i < atoi(arguments[2]); i++) {
            if (!round_of(*kernels, i) || !attention_of(*kernels, i) || !router_of(*kernels, i) || !adapters_of(*kernels, i)) return 1;
        }
        printf("%s: %s rounds\n", kernels->name, arguments[2]);
    }
}
