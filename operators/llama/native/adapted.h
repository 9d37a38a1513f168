// Operations with adapters of a bank: MUL_MAT, and MUL_MAT_ID of experts, whose weights are named *.lora_a or *.lora_b.
#pragma once
#include "product.h"
#include "row_map.h"

// They are ours in the graphs of threads that say which row has which adapters; each token is multiplied with those of
// its row alone. Where its row is not known it gets NaN: nobody else can read a bank.
class Adapted : public ggml::cpu::tensor_traits {
  public:
    const AdapterKernels * kernels = nullptr;  // set before the first graph
    static bool is_one(const ggml_tensor * op);    // whether it has an adapter's weights
    static bool computes(const ggml_tensor * op, const Mix & mix);
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;
};

// Scales the products with adapters by 1, and adds them to those of the matrix: done with the products already, if llama.cpp
// adds in place. What is left to do are reads and writes, which prompts wait for.
class Sum : public ggml::cpu::tensor_traits {
  public:
    static bool is_one(const ggml_tensor * op);
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;
};

// Computes nothing: shows the operations that say which rows a graph's tokens are.
class Witness : public ggml::cpu::tensor_traits {
  public:
    static bool is_one(const ggml_tensor * op) { return op->op == GGML_OP_SET_ROWS || op->op == GGML_OP_GET_ROWS; }
    bool work_size(int, const ggml_tensor * op, size_t &) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;
};
