// Routers of experts: matrices in F32, of which llama.cpp has one kernel for up to three tokens and another for more. A row
// of weights and a token have one chain of operations here, that of a score of attention.
#include "product.h"

#include <cstring>

namespace {
constexpr int64_t TOKENS = 16, ROWS_AT_ONCE = 4;  // of a piece
}

bool Router::computes(const ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0], * inputs = op->src[1];
    const auto is_plain = [](const ggml_tensor * of) {
        return of->type == GGML_TYPE_F32 && of->nb[0] == sizeof(float) && of->ne[2] == 1 && of->ne[3] == 1 &&
               (!of->buffer || llama.buft_is_host(of->buffer->buft));
    };
    return op->op == GGML_OP_MUL_MAT && strstr(weights->name, ".ffn_gate_inp.") && is_plain(weights) && is_plain(inputs) &&
           weights->ne[0] % LANES == 0;
}

bool Router::work_size(int, const ggml_tensor * op, size_t & size) {
    size = 0;
    return take(op, computes(op));
}

bool Router::compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    if (op->extra != this) return false;
    const ggml_tensor * weights = op->src[0], * inputs = op->src[1];
    const int64_t n_rows = weights->ne[1], n_tokens = inputs->ne[1], blocks = (n_rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    const int64_t pieces = blocks * ((n_tokens + TOKENS - 1) / TOKENS);
    for (int64_t piece = params->ith; piece < pieces; piece += params->nth) {
        const int64_t row = piece % blocks * ROWS_AT_ONCE, token = piece / blocks * TOKENS;
        const int count = (int) std::min(TOKENS, n_tokens - token);
        const float * rows[ROWS_AT_ONCE], * queries[TOKENS];
        float made[TOKENS][ROWS_AT_ONCE], * outputs[TOKENS];
        for (int64_t i = 0; i < ROWS_AT_ONCE; i++) {
            rows[i] = (const float *) ((const char *) weights->data + std::min(row + i, n_rows - 1) * weights->nb[1]);
        }
        for (int i = 0; i < count; i++) {
            queries[i] = (const float *) ((const char *) inputs->data + (token + i) * inputs->nb[1]), outputs[i] = made[i];
        }
        kernels->multiply(rows, queries, count, (int) weights->ne[0], outputs);
        for (int i = 0; i < count; i++) {
            auto * to = (float *) ((char *) op->data + (token + i) * op->nb[1]) + row;
            memcpy(to, made[i], std::min(ROWS_AT_ONCE, n_rows - row) * sizeof(float));
        }
    }
    return true;
}
