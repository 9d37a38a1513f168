// All threads of llama.cpp's team turn activations into blocks, wait for each other, and take chunks of rows of weights.
#include "product.h"

#include <algorithm>

namespace {

constexpr int64_t MOST_GROUPS = 8;   // of a chunk: its weights stay in the second cache for all columns
constexpr int CHUNKS_A_THREAD = 4;   // at least, so that no thread waits long for another

struct Pair { int32_t slot, token; };  // of the experts that a token is sent to

// Where things lie in the work memory: blocks of all rows, then for MUL_MAT_ID where each expert's pairs begin, and they.
struct Work {
    Block * blocks;
    int32_t * begins;
    Pair * pairs;
    size_t bytes;

    Work(const ggml_tensor * op, void * memory) {
        const ggml_tensor * weights = op->src[0], * inputs = op->src[1], * ids = op->src[2];
        const int64_t rows = inputs->ne[1] * inputs->ne[2] * inputs->ne[3];
        uintptr_t at = ((uintptr_t) memory + 63) & ~(uintptr_t) 63;
        blocks = (Block *) at, at += rows * (inputs->ne[0] / UNIT) * sizeof(Block);
        begins = (int32_t *) at, at += op->op == GGML_OP_MUL_MAT_ID ? (weights->ne[2] + 1) * sizeof(int32_t) : 0;
        pairs = (Pair *) at, at += op->op == GGML_OP_MUL_MAT_ID ? ids->ne[0] * ids->ne[1] * sizeof(Pair) : 0;
        bytes = at - (uintptr_t) memory + 64;
    }
};

const char * row_of(const ggml_tensor * inputs, int64_t row) {
    const int64_t i = row % inputs->ne[1], j = row / inputs->ne[1] % inputs->ne[2], k = row / inputs->ne[1] / inputs->ne[2];
    return (const char *) inputs->data + i * inputs->nb[1] + j * inputs->nb[2] + k * inputs->nb[3];
}

// Turns this thread's share of the activations into blocks.
void quantize_share(const Kernels & kernels, const ggml_tensor * inputs, Block * blocks, int thread, int threads) {
    const int64_t a_row = inputs->ne[0] / UNIT, all = a_row * inputs->ne[1] * inputs->ne[2] * inputs->ne[3];
    const int64_t last = all * (thread + 1) / threads;
    for (int64_t at = all * thread / threads; at < last;) {
        const int64_t in_row = at % a_row, count = std::min(a_row - in_row, last - at);
        kernels.quantize((const float *) row_of(inputs, at / a_row) + in_row * UNIT, blocks + at, (int) count);
        at += count;
    }
}

// Sorts what the router chose by expert.
void sort_pairs(const ggml_tensor * ids, int64_t experts, const Work & work) {
    const auto expert = [ids](int64_t slot, int64_t token) {
        return *(const int32_t *) ((const char *) ids->data + slot * ids->nb[0] + token * ids->nb[1]);
    };
    std::fill(work.begins, work.begins + experts + 1, 0);
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t s = 0; s < ids->ne[0]; s++) work.begins[expert(s, t)]++;
    }
    for (int64_t e = 1; e <= experts; e++) work.begins[e] += work.begins[e - 1];
    for (int64_t t = ids->ne[1]; t-- > 0;) {
        for (int64_t s = ids->ne[0]; s-- > 0;) work.pairs[--work.begins[expert(s, t)]] = {(int32_t) s, (int32_t) t};
    }
}

}  // namespace

bool Product::computes(const ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0], * inputs = op->src[1];
    if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) return false;
    if (!can_be_packed(format_of(weights->type), weights->ne[0], weights->ne[1]) || weights->ne[3] != 1) return false;
    if (op->op == GGML_OP_MUL_MAT ? weights->ne[2] != 1 : inputs->ne[3] != 1) return false;
    const bool is_part = weights->view_src && (weights->view_offs != 0 || weights->view_src->ne[1] != weights->ne[1]);
    return !is_part && inputs->type == GGML_TYPE_F32 && inputs->nb[0] == sizeof(float) &&
           (!inputs->buffer || llama.buft_is_host(inputs->buffer->buft));
}

bool Product::work_size(int, const ggml_tensor * op, size_t & size) {
    size = Work(op, nullptr).bytes;
    return true;
}

bool Product::compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0], * inputs = op->src[1];
    const Format format = format_of(weights->type);
    const Work work(op, params->wdata);
    const bool by_expert = op->op == GGML_OP_MUL_MAT_ID;
    quantize_share(*kernels, inputs, work.blocks, params->ith, params->nth);
    if (params->ith == 0) {
        if (by_expert) sort_pairs(op->src[2], weights->ne[2], work);
        llama.chunk_set(params->threadpool, params->nth);
    }
    llama.barrier(params->threadpool);

    const int64_t groups = weights->ne[1] / ROWS, a_row = weights->ne[0] / UNIT;
    const int64_t balanced = std::min(MOST_GROUPS, groups / (CHUNKS_A_THREAD * params->nth)) / 2 * 2;  // pairs are faster
    const int64_t in_chunk = std::max<int64_t>(balanced, groups < 2 * params->nth ? 1 : 2);
    const int64_t chunks = (groups + in_chunk - 1) / in_chunk;
    const size_t group_bytes = weights->ne[0] / format.values * format.packed_bytes;
    const Tile tile = kernels->tiles[format.type];
    for (int64_t c = params->ith; c < chunks * weights->ne[2]; c = llama.chunk_add(params->threadpool, 1)) {
        const int64_t expert = c / chunks, first = c % chunks * in_chunk, last = std::min(first + in_chunk, groups);
        const char * matrix = (const char *) weights->data + expert * groups * group_bytes;
        if (!by_expert) {
            const int64_t rows = inputs->ne[1] * inputs->ne[2] * inputs->ne[3];
            multiply(tile, matrix, group_bytes, first, last, (int) a_row, rows,
                     [&](int64_t row, const Block *& from, float *& to) {
                         from = work.blocks + row * a_row;
                         to = (float *) op->data + row * op->ne[0];
                     });
            continue;
        }
        const Pair * pairs = work.pairs + work.begins[expert];
        multiply(tile, matrix, group_bytes, first, last, (int) a_row, work.begins[expert + 1] - work.begins[expert],
                 [&](int64_t i, const Block *& from, float *& to) {
                     const Pair pair = pairs[i];
                     from = work.blocks + (pair.token * inputs->ne[1] + pair.slot % inputs->ne[1]) * a_row;
                     to = (float *) ((char *) op->data + pair.slot * op->nb[1] + pair.token * op->nb[2]);
                 });
    }
    return true;
}
