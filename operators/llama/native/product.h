// The products of packed weights as operations of llama.cpp's graphs: MUL_MAT, and MUL_MAT_ID of experts.
#pragma once
#include "ggml_access.h"
#include "pack.h"

class Product : public ggml::cpu::tensor_traits {
  public:
    const Kernels * kernels = nullptr;  // set before the first graph
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override;
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override;
    static bool computes(const ggml_tensor * op);  // whether sizes, types and strides of this operation are known
};
