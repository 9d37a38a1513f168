// Adapters of random sizes in graphs of the form of llama.cpp's; a part of fuzz.cpp.
namespace {

// A graph as llama.cpp plans and computes it: A and B of an adapter for some rows' tokens, or for outputs only, or experts.
bool adapters_of(const Kernels & kernels, int number) {
    const int sequences = between(1, 6), in_row = between(1, 9), cells_of_stream = between(in_row, 40), adapters = between(1, 4);
    const int64_t tokens = sequences * in_row, outputs = between(1, (int) tokens), inner = between(1, 70), outer = between(1, 150);
    const bool by_expert = between(0, 1), of_outputs = between(0, 1), adds = between(0, 1);
    const int64_t experts = by_expert ? between(1, 5) : 1, used = by_expert ? between(1, (int) experts) : 1;
    const int64_t given = by_expert && between(0, 1) ? used : 1, count = of_outputs ? outputs : tokens, columns = count * used;
    std::vector<int32_t> begins;
    int rank = 0;
    for (int i = 0; i < adapters; i++) begins.push_back(rank), rank += RANKS * between(1, 5);
    std::vector<uint64_t> masks(sequences);
    for (auto & mask : masks) mask = between(0, (1 << adapters) - 1);
    std::vector<int64_t> cells(tokens);
    std::vector<int32_t> wanted(outputs), chosen(used * count);
    for (int64_t i = 0; i < tokens; i++) cells[i] = i / in_row * cells_of_stream + i % in_row;
    for (int64_t i = 0; i < outputs; i++) wanted[i] = (int32_t) (i * tokens / outputs);
    for (auto & expert : chosen) expert = between(0, (int) experts - 1);
    const auto drawn = [](int64_t size) {
        std::vector<float> out(size);
        for (float & value : out) value = (float) between(-1000, 1000) / 512;
        return out;
    };
    auto x = drawn(inner * given * count), a = drawn(experts * rank * inner), b = drawn(experts * rank * outer);
    auto lowered = std::vector<float>(rank * columns, NAN), base = drawn(outer * columns), own = base;
    const auto sums = base;

    ggml_tensor first, table, cache, written, indices, picked, ids, inputs, down, up, low, high, scaled, sum, total, chosen_by;
    for (auto * each : {&first, &table, &written, &picked}) numbered(*each, GGML_TYPE_F32, sizeof(float), 1, 1, 1, 1);
    strcpy(table.name, "token_embd.weight");
    first.op = GGML_OP_GET_ROWS, first.flags = GGML_TENSOR_FLAG_COMPUTE, first.src[0] = &table;
    numbered(cache, GGML_TYPE_F16, 2, 8, cells_of_stream, sequences, 1);
    strcpy(cache.name, "cache_k_l0");
    numbered(indices, GGML_TYPE_I64, sizeof(int64_t), tokens, 1, 1, 1);
    strcpy(indices.name, "attn_inp_k_idxs");
    indices.data = cells.data(), written.op = GGML_OP_SET_ROWS, written.view_src = &cache, written.src[1] = &indices;
    numbered(ids, GGML_TYPE_I32, sizeof(int32_t), outputs, 1, 1, 1);
    strcpy(ids.name, "out_ids");
    ids.data = wanted.data(), picked.op = GGML_OP_GET_ROWS, picked.src[0] = &first, picked.src[1] = &ids;
    numbered(chosen_by, GGML_TYPE_I32, sizeof(int32_t), used, count, 1, 1);
    chosen_by.data = chosen.data();
    numbered(inputs, GGML_TYPE_F32, sizeof(float), inner, by_expert ? given : count, by_expert ? count : 1, 1);
    numbered(down, GGML_TYPE_F32, sizeof(float), inner, rank, experts, 1);
    numbered(up, GGML_TYPE_F32, sizeof(float), rank, outer, experts, 1);
    strcpy(down.name, "x.lora_a"), strcpy(up.name, "x.lora_b");
    numbered(low, GGML_TYPE_F32, sizeof(float), rank, by_expert ? used : count, by_expert ? count : 1, 1);
    for (auto * each : {&high, &scaled, &sum, &total}) {
        numbered(*each, GGML_TYPE_F32, sizeof(float), outer, by_expert ? used : count, by_expert ? count : 1, 1);
    }
    inputs.data = x.data(), down.data = a.data(), up.data = b.data(), low.data = lowered.data(), high.data = own.data();
    scaled.data = high.data, sum.data = base.data(), total.data = adds ? base.data() : nullptr;
    low.op = high.op = by_expert ? GGML_OP_MUL_MAT_ID : GGML_OP_MUL_MAT, scaled.op = GGML_OP_SCALE, total.op = GGML_OP_ADD;
    low.src[0] = &down, low.src[1] = &inputs, high.src[0] = &up, high.src[1] = &low, low.src[2] = high.src[2] = &chosen_by;
    scaled.src[0] = &high, total.src[0] = &sum, total.src[1] = &scaled;
    const float by[] = {1, 0};
    memcpy(scaled.op_params, by, sizeof by);

    Adapted adapted;
    Witness witness;
    Sum sum_of;
    adapted.kernels = &kernels.adapters;
    RowMap::of_thread().set({masks.data(), sequences, begins.data(), adapters});
    const int most = between(1, 12), threads = between(1, most);
    size_t sizes[2] = {}, none = 0;
    witness.work_size(most, &first, none);
    if (of_outputs) witness.work_size(most, &picked, none);
    if (!adapted.work_size(most, &low, sizes[0]) || !adapted.work_size(most, &high, sizes[1])) return printf("declined\n"), false;
    sum_of.work_size(most, &scaled, none);
    if (sum_of.work_size(most, &total, none) != adds) return printf("a sum\n"), false;
    witness.work_size(most, &written, none);  // what tells the rows may come later
    computed(witness, first, 1, 0);
    std::fill(cells.begin(), cells.end(), -1), std::fill(wanted.begin(), wanted.end(), -1);  // their memory is others' now
    if (!computed(adapted, low, threads, sizes[0]) || !computed(adapted, high, threads, sizes[1])) return printf("declined\n"), false;
    if (computed(sum_of, total, 1, 0) != adds) return printf("a sum\n"), false;
    if (RowMap::of_thread().count() != 0) return printf("not mapped\n"), false;

    for (int64_t i = 0; i < columns * outer; i++) {
        const int64_t column = i / outer, token = column / used, of_all = of_outputs ? token * tokens / outputs : token;
        const uint64_t mask = masks[of_all / in_row];
        const int64_t expert = by_expert ? chosen[column] : 0, from = token * given + column % used % given;
        double raised = 0, size = 0;
        for (int adapter = 0; adapter < adapters; adapter++) {
            const int end = adapter + 1 < adapters ? begins[adapter + 1] : rank;
            for (int r = begins[adapter]; mask >> adapter & 1 && r < end; r++) {
                double each = 0;
                for (int64_t j = 0; j < inner; j++) each += (double) x[from * inner + j] * a[(expert * rank + r) * inner + j];
                each *= b[(expert * rank + r) * outer + i % outer];
                raised += each, size += std::abs(each);
            }
        }
        const float is = adds ? base[i] : own[i];
        const double expected = adds ? sums[i] + raised : raised;
        if (!(std::abs(is - expected) <= 1e-4 * (1 + size)) || (mask == 0 && (adds ? is != sums[i] : !std::signbit(is)))) {
            return printf("round %d, %s: adapters, column %d\n", number, kernels.name, (int) column), false;
        }
    }
    return true;
}

}  // namespace
