#include "row_map.h"

#include <algorithm>
#include <cstring>
#include <utility>

RowMap & RowMap::of_thread() {
    static thread_local RowMap map;
    return map;
}

int Mix::ranks_of(uint64_t mask, int rank, Ranks * out) const {
    if (adapters < MOST_ADAPTERS && mask >> adapters) return -1;
    int count = 0;
    for (int i = 0; i < adapters; i++) {
        if (mask >> i & 1) out[count++] = {begins[i], i + 1 < adapters ? begins[i + 1] : rank};
    }
    return count;
}

void Rows::sort(const std::vector<uint64_t> & masks) {
    groups.clear(), sorted.resize(masks.size()), group.resize(masks.size());
    for (size_t i = 0; i < masks.size(); i++) {  // neighbours mostly have the same, and masks are few
        size_t g = i ? group[i - 1] : 0;
        if (g == groups.size() || groups[g].mask != masks[i]) {
            const auto is_mine = [&](const Group & each) { return each.mask == masks[i]; };
            g = std::find_if(groups.begin(), groups.end(), is_mine) - groups.begin();
        }
        if (g == groups.size()) groups.push_back({masks[i], 0, 0});
        group[i] = (int32_t) g, groups[g].end++;
    }
    int first = 0;
    for (Group & each : groups) each.first = first, first += each.end, each.end = each.first;
    for (size_t i = 0; i < masks.size(); i++) sorted[groups[group[i]].end++] = (int32_t) i;
}

bool RowMap::begins(const ggml_tensor * op) { return op->op == GGML_OP_GET_ROWS && !strcmp(op->src[0]->name, "token_embd.weight"); }

void RowMap::set(const Mix & next) {
    settle();
    mix = next;
}

void RowMap::settle() {
    for (size_t i = 0; i < n_notes_; i++) {
        not_mapped_ += !is_mapped(notes_[i]);
        notes_[i].op = nullptr;  // whoever computes it still gets no number
    }
    n_notes_ = 0;
    first_ = cells_ = outputs_ = nullptr;
    is_known_ = is_read_ = false;
}

int RowMap::count() {
    settle();
    return std::exchange(not_mapped_, 0);
}

void RowMap::see(ggml_tensor * op) {
    if (begins(op)) {
        settle();
        const bool is_ours = mix.masks && op->flags & GGML_TENSOR_FLAG_COMPUTE;  // else other inputs are in its place
        op->extra = is_ours ? this : nullptr;                                    // for `read`
        first_ = is_ours ? op : nullptr;
        return;
    }
    if (!first_ || is_read_) return;
    const ggml_tensor * indices = op->src[1];
    if (op->op == GGML_OP_GET_ROWS) {
        if (indices->type != GGML_TYPE_I32 || strcmp(indices->name, "out_ids") != 0) return;
        outputs_ = indices, n_outputs_ = indices->ne[0];
        return;
    }
    const ggml_tensor * cache = op->view_src;
    if (!cache || strncmp(cache->name, "cache_k_l", 9) != 0 || strcmp(indices->name, "attn_inp_k_idxs") != 0) return;
    const bool has_streams = indices->type == GGML_TYPE_I64 && cache->ne[2] == mix.sequences;  // of their own
    is_known_ = has_streams && (!cells_ || (is_known_ && indices->ne[0] == n_tokens_));  // all layers have the same tokens
    if (!cells_) cells_ = indices, n_tokens_ = indices->ne[0], cells_of_stream_ = cache->ne[1];
}

Note * RowMap::note(const ggml_tensor * op, int64_t rows) {
    if (!first_ || is_read_) return not_mapped_++, nullptr;
    if (n_notes_ == notes_.size()) notes_.emplace_back();
    notes_[n_notes_] = {op, this, nullptr, rows, outputs_ != nullptr};
    return &notes_[n_notes_++];
}

Note * RowMap::noted(void * extra) {
    for (size_t i = n_notes_; i-- > 0;) {
        if (&notes_[i] == extra) return &notes_[i];
    }
    return nullptr;
}

bool RowMap::is_mapped(const Note & note) const {
    return is_known_ && (note.rows == n_tokens_ || (note.is_after_outputs && note.rows == n_outputs_));
}

void RowMap::read(const ggml_tensor * first) {
    if (first != first_) return;
    is_read_ = true;
    masks_.clear(), output_masks_.clear();
    for (int64_t i = 0; is_known_ && i < n_tokens_; i++) {
        const int64_t sequence = ((const int64_t *) cells_->data)[i] / cells_of_stream_;
        is_known_ = sequence >= 0 && sequence < mix.sequences;
        if (is_known_) masks_.push_back(mix.masks[sequence]);
    }
    for (int64_t i = 0; is_known_ && outputs_ && i < n_outputs_; i++) {
        const int32_t token = ((const int32_t *) outputs_->data)[i];
        is_known_ = token >= 0 && token < n_tokens_;
        if (is_known_) output_masks_.push_back(masks_[token]);
    }
    if (is_known_) of_tokens_.sort(masks_), of_outputs_.sort(output_masks_);
}

const Rows * RowMap::rows_of(const Note & note) const {
    return !is_read_ || !is_mapped(note) ? nullptr : note.rows == n_tokens_ ? &of_tokens_ : &of_outputs_;
}
