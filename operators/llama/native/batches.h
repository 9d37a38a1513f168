// The tokens of an operation with adapters, by what they are multiplied with.
#pragma once
#include <algorithm>

#include "row_map.h"

// Tokens (of MUL_MAT_ID: choices of a router) from `first` to `end` - 1, with the same adapters and the same expert.
struct Batch { uint64_t mask; int64_t expert; int first, end; };

class Batches {
  public:
    static size_t bytes(const ggml_tensor * op, int64_t most_groups) { return Batches(op, most_groups, nullptr).bytes_; }
    // `memory`: for MUL_MAT_ID, `bytes` of it.
    Batches(const ggml_tensor * op, int64_t most_groups, void * memory) : op_(op) {
        if (!by_expert()) return;
        uintptr_t at = ((uintptr_t) memory + 7) & ~(uintptr_t) 7;
        pairs_ = (Pair *) at, at += op->src[2]->ne[0] * op->src[2]->ne[1] * sizeof(Pair);
        begins_ = (int32_t *) at, at += (op->src[0]->ne[2] * most_groups + 1) * sizeof(int32_t);
        bytes_ = at - (uintptr_t) memory + 8;
    }
    bool by_expert() const { return op_->op == GGML_OP_MUL_MAT_ID; }

    // Sorts what the router chose, for all threads.
    void sort(const Rows & rows) const {
        const ggml_tensor * ids = op_->src[2];
        const int64_t groups = (int64_t) rows.groups.size(), all = groups * op_->src[0]->ne[2];
        const auto place = [&](int64_t slot, int64_t token) {
            const char * expert = (const char *) ids->data + slot * ids->nb[0] + token * ids->nb[1];
            return *(const int32_t *) expert * groups + rows.group[token];
        };
        std::fill(begins_, begins_ + all + 1, 0);
        for (int64_t t = 0; t < ids->ne[1]; t++) {
            for (int64_t s = 0; s < ids->ne[0]; s++) begins_[place(s, t)]++;
        }
        for (int64_t i = 1; i <= all; i++) begins_[i] += begins_[i - 1];
        for (int64_t t = ids->ne[1]; t-- > 0;) {
            for (int64_t s = ids->ne[0]; s-- > 0;) pairs_[--begins_[place(s, t)]] = {(int32_t) s, (int32_t) t};
        }
    }
    // Calls f(batch) for each.
    template <class F> void each(const Rows & rows, F f) const {
        const int64_t groups = (int64_t) rows.groups.size();
        if (!by_expert()) {
            for (const auto & group : rows.groups) f(Batch{group.mask, 0, group.first, group.end});
            return;
        }
        for (int64_t i = 0; i < groups * op_->src[0]->ne[2]; i++) {
            if (begins_[i] < begins_[i + 1]) f(Batch{rows.groups[i % groups].mask, i / groups, begins_[i], begins_[i + 1]});
        }
    }
    // Says where the numbers of token `i` of a batch are, those of its outputs in `out`, which has the sizes of the operation.
    void find(const Rows & rows, const ggml_tensor * out, int i, const float *& from, float *& to) const {
        const ggml_tensor * inputs = op_->src[1];
        if (by_expert()) {
            const Pair pair = pairs_[i];
            from = at(inputs, pair.slot % inputs->ne[1], pair.token, 0), to = at(out, pair.slot, pair.token, 0);
            return;
        }
        const int64_t row = rows.sorted[i], a = row % op_->ne[1], rest = row / op_->ne[1];
        const int64_t b = rest % op_->ne[2], c = rest / op_->ne[2];
        from = at(inputs, a, b, c), to = at(out, a, b, c);
    }

  private:
    struct Pair { int32_t slot, token; };
    static float * at(const ggml_tensor * of, int64_t a, int64_t b, int64_t c) {
        return (float *) ((char *) of->data + a * of->nb[1] + b * of->nb[2] + c * of->nb[3]);
    }
    const ggml_tensor * const op_;
    Pair * pairs_ = nullptr;
    int32_t * begins_ = nullptr;  // of each expert's pairs of each group
    size_t bytes_ = 0;
};
