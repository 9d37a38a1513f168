// GPUs for tests: devices with memory of their own, of a limited size and not readable by the host, which compute with
// ggml's CPU backend. ggml loads it into any build (GGML_BACKEND_PATH). No asynchronous calls, events or pinned memory.
//
//   FAKE_GPU_COUNT=2         devices, named Fake0, Fake1 ...; of none the driver is told to be missing
//   FAKE_GPU_MB=1024         MiB of each: a number, or a list of which the last stands for those that follow
//   FAKE_GPU_DESCRIPTION=..  what they are
//   FAKE_GPU_TYPE=igpu       they share the machine's memory
//   FAKE_GPU_VISIBLE_DEVICES=1,0   which there are and in which order, numbered anew (as CUDA_VISIBLE_DEVICES)
//   FAKE_GPU_NO_OP=NAME      an operation that they do not support
//   FAKE_GPU_FAIL_AT=n       the n-th graph of a device fails; FAKE_GPU_ABORT_AT=n ends the process,
//   FAKE_GPU_ABORT_ONCE=FILE only the first of several: that one makes FILE
//   FAKE_GPU_LOG=FILE        FILE.PID holds the Counts of each device, as they are at any time
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {

struct Counts {
    int64_t graphs, nodes, up, down, used, most;  // graphs and their operations; bytes copied, held, and held at most
};

struct Gpu {
    std::string name, description;
    enum ggml_backend_dev_type type;
    size_t total;
    Counts * counts;
    ggml_backend_device device;
    ggml_backend_buffer_type memory;
};

std::vector<std::unique_ptr<Gpu>> gpus;
ggml_backend_reg registry;

std::string setting(const char * name, const char * otherwise) {
    const char * value = getenv(name);
    return value && *value ? value : otherwise;
}

long number(const char * name) { return std::stol(setting(name, "0")); }

std::vector<std::string> list(const std::string & text) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

Gpu & gpu_of(ggml_backend_dev_t device) { return *static_cast<Gpu *>(device->context); }
Gpu & gpu_of(ggml_backend_buffer_t buffer) { return *static_cast<Gpu *>(buffer->buft->context); }
ggml_backend_dev_t cpu() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

// Memory. What a buffer's context points to is its bytes.

char * at(const ggml_tensor * tensor, size_t offset) { return static_cast<char *>(tensor->data) + offset; }

const ggml_backend_buffer_i BUFFER = [] {
    ggml_backend_buffer_i calls = {};
    calls.free_buffer = [](ggml_backend_buffer_t buffer) {
        gpu_of(buffer).counts->used -= buffer->size;
        free(buffer->context);
    };
    calls.get_base = [](ggml_backend_buffer_t buffer) { return buffer->context; };
    calls.memset_tensor = [](ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
        memset(at(tensor, offset), value, size);
    };
    calls.set_tensor = [](ggml_backend_buffer_t buffer, ggml_tensor * to, const void * data, size_t offset, size_t size) {
        gpu_of(buffer).counts->up += size;
        memcpy(at(to, offset), data, size);
    };
    calls.get_tensor = [](ggml_backend_buffer_t buffer, const ggml_tensor * from, void * data, size_t offset, size_t size) {
        gpu_of(buffer).counts->down += size;
        memcpy(data, at(from, offset), size);
    };
    calls.clear = [](ggml_backend_buffer_t buffer, uint8_t value) { memset(buffer->context, value, buffer->size); };
    return calls;
}();

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    Gpu & gpu = *static_cast<Gpu *>(type->context);
    if (gpu.counts->used + size > gpu.total) return nullptr;
    void * bytes = aligned_alloc(64, (size / 64 + 1) * 64);
    if (!bytes) return nullptr;
    gpu.counts->used += size;
    gpu.counts->most = std::max(gpu.counts->most, gpu.counts->used);
    return ggml_backend_buffer_init(type, BUFFER, bytes, size);
}

// Computing. A stream's context is a CPU backend of its own.

ggml_backend_t cpu_of(ggml_backend_t stream) { return static_cast<ggml_backend_t>(stream->context); }

bool is_first() {
    const std::string file = setting("FAKE_GPU_ABORT_ONCE", "");
    return file.empty() || open(file.c_str(), O_CREAT | O_EXCL, 0644) >= 0;
}

ggml_status compute(ggml_backend_t stream, ggml_cgraph * graph) {
    static const long fails = number("FAKE_GPU_FAIL_AT"), aborts = number("FAKE_GPU_ABORT_AT");
    Counts & counts = *gpu_of(stream->device).counts;
    counts.nodes += ggml_graph_n_nodes(graph);
    if (++counts.graphs == aborts && is_first()) GGML_ABORT("%s: an error of the device", gpu_of(stream->device).name.c_str());
    return counts.graphs == fails ? GGML_STATUS_FAILED : ggml_backend_graph_compute(cpu_of(stream), graph);
}

ggml_backend_t open_stream(ggml_backend_dev_t device, const char *) {
    static ggml_guid guid = { 'f', 'a', 'k', 'e', ' ', 'g', 'p', 'u' };
    ggml_backend_i calls = {};
    calls.get_name = [](ggml_backend_t stream) { return gpu_of(stream->device).name.c_str(); };
    calls.free = [](ggml_backend_t stream) {
        ggml_backend_free(cpu_of(stream));
        delete stream;
    };
    calls.graph_compute = compute;
    return new ggml_backend{ &guid, calls, device, ggml_backend_dev_init(cpu(), nullptr) };
}

void set_threads(ggml_backend_t stream, int threads) { ggml_backend_cpu_set_n_threads(cpu_of(stream), threads); }

// Devices

void tell_memory(ggml_backend_dev_t device, size_t * free, size_t * total) {
    *total = gpu_of(device).total;
    *free = *total - gpu_of(device).counts->used;
}

bool supports(ggml_backend_dev_t, const ggml_tensor * operation) {
    static const std::string unknown = setting("FAKE_GPU_NO_OP", "");
    return unknown != ggml_op_name(operation->op) && ggml_backend_dev_supports_op(cpu(), operation);
}

bool takes_over(ggml_backend_dev_t, const ggml_tensor * operation) {  // products of many rows, as ggml's CUDA backend
    return (operation->op == GGML_OP_MUL_MAT && operation->ne[1] >= 32)
        || (operation->op == GGML_OP_MUL_MAT_ID && operation->ne[2] >= 32);
}

ggml_backend_device_i device_calls() {
    ggml_backend_device_i calls = {};
    calls.get_name = [](ggml_backend_dev_t device) { return gpu_of(device).name.c_str(); };
    calls.get_description = [](ggml_backend_dev_t device) { return gpu_of(device).description.c_str(); };
    calls.get_memory = tell_memory;
    calls.get_type = [](ggml_backend_dev_t device) { return gpu_of(device).type; };
    calls.get_props = [](ggml_backend_dev_t device, ggml_backend_dev_props * properties) {
        Gpu & gpu = gpu_of(device);
        *properties = {};
        properties->name = gpu.name.c_str();
        properties->description = gpu.description.c_str();
        properties->type = gpu.type;
        tell_memory(device, &properties->memory_free, &properties->memory_total);
    };
    calls.init_backend = open_stream;
    calls.get_buffer_type = [](ggml_backend_dev_t device) { return &gpu_of(device).memory; };
    calls.supports_op = supports;
    calls.supports_buft = [](ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
        return type == &gpu_of(device).memory;
    };
    calls.offload_op = takes_over;
    return calls;
}

ggml_backend_buffer_type_i memory_calls() {
    ggml_backend_buffer_type_i calls = {};
    calls.get_name = [](ggml_backend_buffer_type_t type) { return static_cast<Gpu *>(type->context)->name.c_str(); };
    calls.alloc_buffer = allocate;
    calls.get_alignment = [](ggml_backend_buffer_type_t) { return size_t(64); };
    return calls;
}

Counts * shared_counts(size_t count) {
    const std::string file = setting("FAKE_GPU_LOG", "");
    if (file.empty() || !count) return new Counts[count]();
    const int opened = open((file + "." + std::to_string(getpid())).c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (opened < 0 || ftruncate(opened, count * sizeof(Counts))) abort();
    void * mapped = mmap(nullptr, count * sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    close(opened);
    return mapped == MAP_FAILED ? (abort(), nullptr) : static_cast<Counts *>(mapped);
}

void find_gpus() {
    const std::vector<std::string> sizes = list(setting("FAKE_GPU_MB", "1024"));
    std::string all;
    for (long i = 0, count = std::stol(setting("FAKE_GPU_COUNT", "2")); i < count; i++) all += std::to_string(i) + ",";
    const char * chosen = getenv("FAKE_GPU_VISIBLE_DEVICES");  // empty: none
    const std::vector<std::string> numbers = list(chosen ? chosen : all);
    if (numbers.empty()) GGML_LOG_ERROR("fake_init: failed to initialize: there is no driver\n");
    Counts * counts = shared_counts(numbers.size());
    for (const std::string & each : numbers) {
        auto gpu = std::make_unique<Gpu>();
        gpu->name = "Fake" + std::to_string(gpus.size());
        gpu->description = setting("FAKE_GPU_DESCRIPTION", "a GPU for tests");
        gpu->type = setting("FAKE_GPU_TYPE", "gpu") == "igpu" ? GGML_BACKEND_DEVICE_TYPE_IGPU : GGML_BACKEND_DEVICE_TYPE_GPU;
        gpu->total = std::stod(sizes[std::min(std::stoul(each), sizes.size() - 1)]) * (1 << 20);
        gpu->counts = counts + gpus.size();
        gpu->device = { device_calls(), &registry, gpu.get() };
        gpu->memory = { memory_calls(), &gpu->device, gpu.get() };
        gpus.push_back(std::move(gpu));
    }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
    ggml_backend_reg_i calls = {};
    calls.get_name = [](ggml_backend_reg_t) { return "Fake"; };
    calls.get_device_count = [](ggml_backend_reg_t) { return gpus.size(); };
    calls.get_device = [](ggml_backend_reg_t, size_t i) { return &gpus[i]->device; };
    calls.get_proc_address = [](ggml_backend_reg_t, const char * name) {
        return strcmp(name, "ggml_backend_set_n_threads") ? nullptr : reinterpret_cast<void *>(set_threads);
    };
    registry = { GGML_BACKEND_API_VERSION, calls, nullptr };
    if (gpus.empty()) find_gpus();
    return &registry;
}
