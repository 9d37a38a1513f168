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

struct Ggml {
    decltype(&ggml_backend_buffer_init) buffer_init;
    decltype(&ggml_backend_buft_is_host) buft_is_host;
    decltype(&ggml_backend_reg_dev_get) reg_dev_get;
    decltype(&ggml_get_type_traits) type_traits;
    decltype(&ggml_quantize_chunk) quantize_chunk;
    decltype(&ggml_version) version;
    decltype(&ggml_commit) commit;
    decltype(&ggml_backend_cpu_reg) cpu_reg;
    decltype(&ggml_barrier) barrier;
    decltype(&ggml_threadpool_chunk_set) chunk_set;
    decltype(&ggml_threadpool_chunk_add) chunk_add;
    decltype(&ggml_backend_cpu_get_extra_buffer_types) extra_buffer_types;
};
extern Ggml llama;

// Looks all up; `base`, `cpu`: paths of loaded libraries. Returns the name of what is not there, or nullptr.
const char * find_ggml(const char * base, const char * cpu);
