// llama.cpp's functions that the kernels call. They are looked up in the libraries that the process has loaded and not
// linked: a build for all CPUs has several libggml-cpu, one of which ggml has opened itself.
#pragma once
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "traits.h"

// Of which library, the name here, the function.
#define EACH_OF_GGML(F)                                                \
    F(base_library, buffer_init, ggml_backend_buffer_init)             \
    F(base_library, buft_is_host, ggml_backend_buft_is_host)           \
    F(base_library, reg_dev_get, ggml_backend_reg_dev_get)             \
    F(base_library, type_traits, ggml_get_type_traits)                 \
    F(base_library, quantize_chunk, ggml_quantize_chunk)               \
    F(base_library, half, ggml_fp16_to_fp32)                           \
    F(base_library, from_float, ggml_fp32_to_fp16)                     \
    F(base_library, version, ggml_version)                             \
    F(base_library, commit, ggml_commit)                               \
    F(cpu_library, cpu_reg, ggml_backend_cpu_reg)                      \
    F(cpu_library, barrier, ggml_barrier)                              \
    F(cpu_library, chunk_set, ggml_threadpool_chunk_set)               \
    F(cpu_library, chunk_add, ggml_threadpool_chunk_add)

struct Ggml {
#define MEMBER(library, name, function) decltype(&function) name;
    EACH_OF_GGML(MEMBER)
    decltype(&ggml_backend_cpu_get_extra_buffer_types) extra_buffer_types;
};
extern Ggml llama;

// Looks all up; `base`, `cpu`: paths of loaded libraries. Returns the name of what is not there, or nullptr.
const char * find_ggml(const char * base, const char * cpu);
