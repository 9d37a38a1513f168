#include "ggml_access.h"

#include <dlfcn.h>

Ggml llama;

// Their tables hold the destructors, which libggml-cpu defines for itself.
ggml::cpu::tensor_traits::~tensor_traits() {}
ggml::cpu::extra_buffer_type::~extra_buffer_type() {}

const char * find_ggml(const char * base, const char * cpu) {
    void * const base_library = dlopen(base, RTLD_NOW | RTLD_NOLOAD);
    void * const cpu_library = dlopen(cpu, RTLD_NOW | RTLD_NOLOAD);
    if (!base_library || !cpu_library) return base_library ? cpu : base;
    const char * missing = nullptr;
    const auto find = [&missing](void * library, const char * name, auto & function) {
        function = (std::decay_t<decltype(function)>) dlsym(library, name);
        if (!function && !missing) missing = name;
    };
    find(base_library, "ggml_backend_buffer_init", llama.buffer_init);
    find(base_library, "ggml_backend_buft_is_host", llama.buft_is_host);
    find(base_library, "ggml_backend_reg_dev_get", llama.reg_dev_get);
    find(base_library, "ggml_get_type_traits", llama.type_traits);
    find(base_library, "ggml_quantize_chunk", llama.quantize_chunk);
    find(base_library, "ggml_version", llama.version);
    find(base_library, "ggml_commit", llama.commit);
    find(cpu_library, "ggml_backend_cpu_reg", llama.cpu_reg);
    find(cpu_library, "ggml_barrier", llama.barrier);
    find(cpu_library, "ggml_threadpool_chunk_set", llama.chunk_set);
    find(cpu_library, "ggml_threadpool_chunk_add", llama.chunk_add);
    find(cpu_library, "_Z39ggml_backend_cpu_get_extra_buffer_typesv", llama.extra_buffer_types);
    return missing;
}
