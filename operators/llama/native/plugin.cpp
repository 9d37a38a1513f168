// A buffer type of our own among those of llama.cpp's CPU backend, and the functions that Python calls.
//
// llama.cpp asks each "extra" buffer type for each weight that it loads, and keeps those that the type takes in its
// buffers; then it has the type compute every product of them, on its own threads. Nothing is patched: the list of these
// types is a vector that libggml-cpu hands out, and ours comes to its beginning before the first model is loaded.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "adapted.h"
#include "ggml_access.h"
#include "product.h"
#include "self_test.h"

namespace {

using Extra = ggml::cpu::extra_buffer_type;
using Traits = ggml::cpu::tensor_traits;
constexpr size_t HUGE_PAGE = 2 << 20;
constexpr const Kernels * BY_SPEED[] = {&KERNELS_AVX512VNNI, &KERNELS_AVXVNNI, &KERNELS_AVX2, &KERNELS_PLAIN};

Product product;
Attention attention;
Router router;
Adapted adapted;
Witness witness;
Sum sum;

// Operations whose outputs are a row's own, in llama.cpp's kernels: a row has the same bits in any company.
bool is_of_rows(ggml_op op) {
    switch (op) {
        case GGML_OP_NONE: case GGML_OP_RESHAPE: case GGML_OP_VIEW: case GGML_OP_PERMUTE: case GGML_OP_TRANSPOSE:
        case GGML_OP_GET_ROWS: case GGML_OP_SET_ROWS: case GGML_OP_CPY: case GGML_OP_CONT: case GGML_OP_DUP:
        case GGML_OP_ADD: case GGML_OP_ADD_ID: case GGML_OP_SUB: case GGML_OP_MUL: case GGML_OP_DIV: case GGML_OP_SCALE:
        case GGML_OP_CLAMP: case GGML_OP_NORM: case GGML_OP_RMS_NORM: case GGML_OP_L2_NORM: case GGML_OP_ROPE:
        case GGML_OP_UNARY: case GGML_OP_GLU: case GGML_OP_SUM_ROWS: case GGML_OP_ARGSORT: case GGML_OP_SOFT_MAX:
        case GGML_OP_CONCAT: case GGML_OP_REPEAT: return true;
        default: return false;
    }
}

// Computes nothing, and counts.
class Other : public Traits {
    bool work_size(int, const ggml_tensor *, size_t &) override { return others++, false; }
    bool compute_forward(ggml_compute_params *, ggml_tensor *) override { return false; }
} other;

// What the thread that loads a model has asked for: which weights are taken, and what came of it. A table of tokens
// that is the last matrix, too, is there twice if that is taken.
thread_local struct {
    bool take_ours = false, take_tied = false, leave_theirs = false;
    int threads = 1, tensors = 0;
} load;

ggml_backend_buffer_type_t buffer_type();
bool is_ours(const ggml_tensor * weights) { return weights && weights->buffer && weights->buffer->buft == buffer_type(); }
bool is_question(const ggml_tensor * weights) { return weights && weights->buffer && weights->buffer->size == 0; }

class OurExtra : public Extra {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        if (!is_ours(weights)) return false;
        const bool is_tied = strcmp(weights->name, "token_embd.weight") == 0;
        if (is_question(weights) && !(load.take_ours && (load.take_tied || !is_tied))) return false;
        return Product::computes(op);
    }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op == GGML_OP_FLASH_ATTN_EXT) return &attention;
        if (Witness::is_one(op)) return &witness;
        if (Adapted::is_one(op)) return &adapted;
        if (Sum::is_one(op)) return &sum;
        if (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) {
            return is_ours(op->src[0]) ? (Traits *) &product : Router::computes(op) ? (Traits *) &router : &other;
        }
        return is_of_rows(op->op) ? nullptr : &other;
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
    load.tensors++;
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

// Goes up with each change of a bit of what the kernels compute, and is part of what identifies a run.
constexpr int VERSION = 2;

namespace {
void use(const Kernels * kernels) {
    product.kernels = kernels;
    attention.kernels = router.kernels = &kernels->attention;
    adapted.kernels = &kernels->adapters;
}
const Kernels * named(const char * name) {  // "": the fastest that this CPU has, but for plain C++
    for (const Kernels * each : BY_SPEED) {
        if (each->runs() && (*name ? !strcmp(name, each->name) : each != &KERNELS_PLAIN)) return each;
    }
    return nullptr;
}
}  // namespace

EXPORT int kernels_version() { return VERSION; }
EXPORT const char * kernels_sources() { return KERNELS_SOURCES; }
EXPORT const char * kernels_name() { return product.kernels ? product.kernels->name : ""; }
EXPORT bool kernels_runs(const char * name) { return named(name) != nullptr; }

// Tests the kernels and puts them into llama.cpp's list; once a process, before its first model. `base`, `cpu`: the
// loaded libraries. `wanted`: kernels by name, or "". Returns nullptr, or why not.
EXPORT const char * kernels_plug_in(const char * base, const char * cpu, const char * wanted) {
    static char said[512];
    if (const char * missing = find_ggml(base, cpu)) {
        snprintf(said, sizeof said, "llama.cpp has no %s", missing);
        return said;
    }
    if (strcmp(llama.version(), KERNELS_GGML_VERSION) != 0 || strcmp(llama.commit(), KERNELS_GGML_COMMIT) != 0) {
        snprintf(said, sizeof said, "they were compiled for ggml %s (%s), and this is %s (%s)", KERNELS_GGML_VERSION,
                 KERNELS_GGML_COMMIT, llama.version(), llama.commit());
        return said;
    }
    const Kernels * chosen = named(wanted);
    if (!chosen) return "this CPU has no AVX2";
    if (const char * wrong = self_test(*chosen)) {
        snprintf(said, sizeof said, "they failed their test: %s gives wrong numbers", wrong);
        return said;
    }
    use(chosen);
    auto & types = llama.extra_buffer_types();
    for (auto * type : types) {
        if (type && type->context) type->context = new Gate((Extra *) type->context);
    }
    types.insert(types.begin(), buffer_type());
    return nullptr;
}

// Says what the models that this thread loads from now on get: packed weights, a packed copy of tied ones, and llama.cpp's
// repacked ones. `threads` pack.
EXPORT void kernels_choose(bool ours, bool tied, bool theirs, int threads) {
    load = {};
    load.take_ours = ours, load.take_tied = tied, load.leave_theirs = !theirs, load.threads = threads;
}
EXPORT int kernels_loaded_tensors() { return load.tensors; }

// Says whether attention in the graphs that this thread computes from now on is ours.
EXPORT void kernels_attend(bool ours) { OfCalls::is_wanted = ours; }
// Returns how many operations this thread had computed, since it last asked, whose outputs may depend on other rows.
EXPORT int kernels_others() { return std::exchange(others, 0); }

// Says what adapters the rows have in the graphs that this thread computes from now on, of the bank that is set on the
// context (docs/kernels.md). `masks`: of each sequence, bit i for adapter i; read whenever a graph is computed, so they may
// change between calls, in place; nullptr: adapters are llama.cpp's. `begins`: of each adapter, its first rank in the bank.
EXPORT void kernels_mix(const uint64_t * masks, int sequences, const int32_t * begins, int adapters) {
    RowMap::of_thread().set({masks, sequences, begins, adapters});
}
// Returns how many operations with adapters this thread had planned, since it last asked and while it mixed, that are not
// known or not mapped to rows: their outputs are NaN. A call that proves a context has several tokens in each of two
// sequences, and fewer outputs, of another number than there are sequences.
EXPORT int kernels_unmixed() { return RowMap::of_thread().count(); }

// For tests: has kernels compute by name. false: this CPU has no such.
EXPORT bool kernels_use(const char * name) {
    const Kernels * wanted = named(name);
    if (wanted) use(wanted);
    return wanted != nullptr;
}

// For tests and measurements: packs a matrix, and multiplies it on one thread. `type` is ggml's. false: such a matrix
// cannot be packed, or this CPU has no such kernels. `inputs`: `columns` times `values`; `outputs`: as often `rows`.
EXPORT bool kernels_pack(int type, const void * file, void * packed, int64_t values, int64_t rows, int threads) {
    const Format format = format_of(type);
    if (!can_be_packed(format, values, rows)) return false;
    pack(format, file, packed, values, rows, threads);
    return true;
}
EXPORT bool kernels_multiply(const char * name, int type, const void * packed, int64_t values, int64_t rows,
                             const float * inputs, int columns, float * outputs) {
    const Kernels * kernels = named(name);
    const Format format = format_of(type);
    if (!kernels || !can_be_packed(format, values, rows)) return false;
    const int64_t a_row = values / UNIT;
    std::vector<Block> blocks(columns * a_row);
    kernels->quantize(inputs, blocks.data(), (int) blocks.size());
    multiply(kernels->tiles[format.type], (const char *) packed, values / format.values * format.packed_bytes, 0, rows / ROWS,
             (int) a_row, columns, [&](int64_t column, const Block *& from, float *& to) {
                 from = blocks.data() + column * a_row, to = outputs + column * rows;
             });
    return true;
}
