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
#define FIND(library, name, function) find(library, #function, llama.name);
    EACH_OF_GGML(FIND)
    find(cpu_library, "_Z39ggml_backend_cpu_get_extra_buffer_typesv", llama.extra_buffer_types);
    return missing;
}
