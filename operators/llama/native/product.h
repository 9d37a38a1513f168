// What is ours of llama.cpp's graphs: products of packed weights (MUL_MAT, and MUL_MAT_ID of experts), attention, routers.
#pragma once
#include <algorithm>

#include "ggml_access.h"
#include "pack.h"

// Operations of graphs that this thread had computed since it asked, whose outputs may depend on other rows.
extern thread_local int others;

constexpr int MOST_COLUMNS = 96;  // that a kernel is given at once

// Multiplies groups `first` to `last` of a matrix with `rows` rows, whose blocks and outputs `at` tells.
template <class At>
void multiply(Tile tile, const char * groups, size_t group_bytes, int64_t first, int64_t last, int blocks, int64_t rows, At at) {
    for (int64_t row = 0; row < rows; row += MOST_COLUMNS) {
        const int columns = (int) std::min<int64_t>(MOST_COLUMNS, rows - row);
        const Block * inputs[MOST_COLUMNS];
        float * outputs[MOST_COLUMNS];
        for (int c = 0; c < columns; c++) at(row + c, inputs[c], outputs[c]), outputs[c] += first * ROWS;
        tile(groups + first * group_bytes, (int) (last - first), inputs, blocks, outputs, columns);
    }
}

class Product : public ggml::cpu::tensor_traits {
  public:
    const Kernels * kernels = nullptr;  // set before the first graph
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;
    static bool computes(const ggml_tensor * op);  // whether sizes, types and strides of this operation are known
};

// What has no weights of ours by which its model could be told: it is ours in the graphs of threads that say so.
class OfCalls : public ggml::cpu::tensor_traits {
  public:
    const AttentionKernels * kernels = nullptr;  // set before the first graph
    static thread_local bool is_wanted;          // in the graphs that this thread has computed
  protected:
    bool take(const ggml_tensor * op, bool is_known);  // when a graph is planned: whether it is ours; counts it if not
};

class Attention : public OfCalls {
  public:
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;
    static bool computes(const ggml_tensor * op);
};

class Router : public OfCalls {
  public:
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;
    static bool computes(const ggml_tensor * op);
};
