// A buffer type of our own among those of llama.cpp's CPU backend, and the functions that Python calls.
//
// llama.cpp asks each "extra" buffer type for each weight that it loads, and keeps those that the type takes in its
// buffers; then it has the type compute every product of them, on its own threads. Nothing is patched: the list of these
// types is a vector that libggml-cpu hands out, and ours comes to its beginning before the first model is loaded.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "ggml_access.h"
#include "product.h"
#include "self_test.h"

namespace {

using Extra = ggml::cpu::extra_buffer_type;
constexpr size_t HUGE_PAGE = 2 << 20;
constexpr int KERNELS = 3;
constexpr const Kernels * BY_SPEED[KERNELS] = {&KERNELS_AVX512VNNI, &KERNELS_AVXVNNI, &KERNELS_AVX2};

Product product;

// What the thread that loads a model has asked for: which weights are taken, and what came of it.
thread_local struct {
    bool take_ours = false, leave_theirs = true;
    int threads = 1, tensors = 0;
    uint64_t bytes = 0;
} load;

ggml_backend_buffer_type_t buffer_type();
bool is_ours(const ggml_tensor * weights) { return weights && weights->buffer && weights->buffer->buft == buffer_type(); }
bool is_question(const ggml_tensor * weights) { return weights && weights->buffer && weights->buffer->size == 0; }

class OurExtra : public Extra {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        if (!is_ours(op->src[0]) || (is_question(op->src[0]) && !load.take_ours)) return false;
        return Product::computes(op);
    }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        return (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) && is_ours(op->src[0]) ? &product : nullptr;
    }
};

// Another type of the list, which takes no weights while a model is loaded that is to have llama.cpp's plain kernels.
class Gate : public Extra {
  public:
    explicit Gate(Extra * behind) : behind_(behind) {}
  private:
    Extra * const behind_;
    bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) override {
        return !(is_question(op->src[0]) && load.leave_theirs) && behind_->supports_op(device, op);
    }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override { return behind_->get_tensor_traits(op); }
};

void free_buffer(ggml_backend_buffer_t buffer) { free(buffer->context); }
void * base_of(ggml_backend_buffer_t buffer) { return buffer->context; }
void clear(ggml_backend_buffer_t buffer, uint8_t value) { memset(buffer->context, value, buffer->size); }
void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    const int64_t rows = tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
    const Format format = format_of(tensor->type);
    if (offset != 0 || size != rows * (tensor->ne[0] / format.values) * format.file_bytes) abort();  // a part of one
    pack(format, data, tensor->data, tensor->ne[0], rows, load.threads);
    load.tensors++, load.bytes += size;
}
constexpr ggml_backend_buffer_i BUFFER = {free_buffer, base_of, nullptr, nullptr, set_tensor, nullptr,
                                          nullptr,     nullptr, nullptr, clear,   nullptr};

const char * name_of(ggml_backend_buffer_type_t) { return "PACKED"; }
size_t alignment(ggml_backend_buffer_type_t) { return VECTOR; }
ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    void * memory = aligned_alloc(HUGE_PAGE, (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (!memory) return nullptr;
    madvise(memory, size, MADV_HUGEPAGE);
    return llama.buffer_init(type, BUFFER, memory, size);
}

ggml_backend_buffer_type_t buffer_type() {
    static OurExtra extra;
    static ggml_backend_buffer_type type = {
        {name_of, allocate, alignment, nullptr, nullptr, nullptr}, llama.reg_dev_get(llama.cpu_reg(), 0), &extra};
    return &type;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const char * kernels_sources() { return KERNELS_SOURCES; }
EXPORT const char * kernels_name() { return product.kernels ? product.kernels->name : ""; }

// Tests the kernels and puts them into llama.cpp's list; once a process, before its first model. `base`, `cpu`: the
// loaded libraries. `wanted`: kernels by name, or "" for the fastest that this CPU has. Returns nullptr, or why not.
EXPORT const char * kernels_plug_in(const char * base, const char * cpu, const char * wanted) {
    static char said[256];
    if (const char * missing = find_ggml(base, cpu)) {
        snprintf(said, sizeof said, "llama.cpp has no %s", missing);
        return said;
    }
    if (strcmp(llama.version(), KERNELS_GGML_VERSION) != 0 || strcmp(llama.commit(), KERNELS_GGML_COMMIT) != 0) {
        snprintf(said, sizeof said, "they were compiled for ggml %s (%s), and this is %s (%s)", KERNELS_GGML_VERSION,
                 KERNELS_GGML_COMMIT, llama.version(), llama.commit());
        return said;
    }
    const Kernels * chosen = nullptr;
    for (const Kernels * each : BY_SPEED) {
        if (!chosen && each->runs() && (!*wanted || !strcmp(wanted, each->name))) chosen = each;
    }
    if (!chosen) return "this CPU has no AVX2";
    if (const char * wrong = self_test(*chosen)) {
        snprintf(said, sizeof said, "they failed their test: %s are wrong", wrong);
        return said;
    }
    product.kernels = chosen;
    auto & types = llama.extra_buffer_types();
    for (auto * type : types) {
        if (type && type->context) type->context = new Gate((Extra *) type->context);
    }
    types.insert(types.begin(), buffer_type());
    return nullptr;
}

// Says what the models that this thread loads from now on get: packed weights or not, llama.cpp's repacked ones or not.
EXPORT void kernels_choose(bool ours, bool theirs, int threads) {
    load = {};
    load.take_ours = ours, load.leave_theirs = !theirs, load.threads = threads;
}
EXPORT int kernels_loaded_tensors() { return load.tensors; }
EXPORT uint64_t kernels_loaded_bytes() { return load.bytes; }
