// Threads share pieces: some tokens with the same adapters, and some ranks of these (A) or some outputs (B). Each thread
// reads weights as they lie in memory, which is what few tokens wait for.
#include "adapted.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "batches.h"

namespace {

constexpr int MOST_TOKENS = 32, OUTPUTS = 64;  // of a piece
constexpr int OF_TOKEN = 4;  // what a piece costs beside its tokens, and a token beside its ranks

bool ends_with(const char * name, const char * end) {
    const size_t length = strlen(name), of_end = strlen(end);
    return length > of_end && strcmp(name + length - of_end, end) == 0;
}
bool is_b(const ggml_tensor * weights) { return ends_with(weights->name, ".lora_b"); }

// Tokens with the same adapters, at most so many as are computed together.
struct Block {
    const float * matrix;  // the first rank of the bank
    Ranks ranks[MOST_ADAPTERS];
    int adapters, tokens;  // adapters -1: not known
    const float * inputs[MOST_TOKENS];
    float * outputs[MOST_TOKENS];
};

// RANKS ranks of a block (A), or some outputs of it (B): from `first` on.
struct Piece {
    const Block * block = nullptr;
    int first = 0, width = 0;
};

// A thread's share of an operation.
class Share {
  public:
    Share(const AdapterKernels & kernels, const Note & note, const Rows & rows, const Batches & batches)
        : kernels_(kernels), mix_(note.map->mix), rows_(rows), batches_(batches), weights_(note.op->src[0]),
          out_(note.sum ? note.sum : note.op), adds_(note.sum != nullptr), is_b_(is_b(weights_)),
          size_(is_b_ ? weights_->ne[1] : weights_->ne[0]) {}

    void compute(int64_t thread, int64_t threads) {
        int64_t total = 0, done = 0;
        each_block([&](Block & block, int) { total += pieces_of(block) * cost_of(block); });
        each_block([&](Block & block, int first) {
            const int64_t pieces = pieces_of(block), cost = cost_of(block);
            bool is_mine = false;
            for (int64_t i = 0; i < pieces; i++, done += cost) {
                if (done * threads / total != thread) continue;
                for (int t = 0; !is_mine && t < block.tokens; t++) {
                    batches_.find(rows_, out_, first + t, block.inputs[t], block.outputs[t]);
                }
                is_mine = true;
                follow(piece_of(block, (int) i));
            }
            if (is_mine) current_ = !current_;
        });
        follow(waiting_);
    }

  private:
    template <class F> void each_block(F f) {
        batches_.each(rows_, [&](const Batch & batch) {
            for (int first = batch.first; first < batch.end; first += MOST_TOKENS) {
                Block & block = blocks_[current_];
                const int bank = (int) weights_->ne[is_b_ ? 0 : 1];
                block.adapters = mix_.ranks_of(batch.mask, bank, block.ranks);
                block.matrix = (const float *) ((const char *) weights_->data + batch.expert * weights_->nb[2]);
                block.tokens = std::min(MOST_TOKENS, batch.end - first);
                f(block, first);
            }
        });
    }
    static int ranks_of(const Block & block) {
        int ranks = 0;
        for (int i = 0; i < block.adapters; i++) ranks += block.ranks[i].end - block.ranks[i].first;
        return ranks;
    }
    int64_t pieces_of(const Block & block) const {
        if (!is_b_) return ranks_of(block) / RANKS;
        return adds_ && block.adapters == 0 ? 0 : (size_ + OUTPUTS - 1) / OUTPUTS;
    }
    int64_t cost_of(const Block & block) const {
        return (block.tokens + OF_TOKEN) * (is_b_ ? ranks_of(block) + OF_TOKEN : RANKS);
    }
    Piece piece_of(const Block & block, int number) const {
        if (is_b_) return {&block, number * OUTPUTS, (int) std::min<int64_t>(OUTPUTS, size_ - number * OUTPUTS)};
        int i = 0, skip = number * RANKS;
        for (; skip >= block.ranks[i].end - block.ranks[i].first; i++) skip -= block.ranks[i].end - block.ranks[i].first;
        return {&block, block.ranks[i].first + skip, RANKS};
    }
    // Computes the piece before this one, while the weights of this one are fetched.
    void follow(const Piece & next) {
        if (waiting_.block) is_b_ ? raise(waiting_, next) : lower(waiting_, next);
        waiting_ = next;
    }
    void lower(const Piece & piece, const Piece & next) const {
        float * outputs[MOST_TOKENS];
        for (int t = 0; t < piece.block->tokens; t++) outputs[t] = piece.block->outputs[t] + piece.first;
        kernels_.lower(piece.block->matrix + piece.first * size_, size_, next.block->matrix + next.first * size_,
                       piece.block->inputs, piece.block->tokens, (int) size_, outputs);
    }
    void raise(const Piece & piece, const Piece & next) const {
        const Block & block = *piece.block;
        float * outputs[MOST_TOKENS];
        for (int t = 0; t < block.tokens; t++) outputs[t] = block.outputs[t] + piece.first;
        if (block.adapters < 0) {
            for (int t = 0; t < block.tokens; t++) std::fill_n(outputs[t], piece.width, NAN);
            return;
        }
        const bool both = block.adapters > 0 && next.block->adapters > 0;  // fetches the ranks of the next piece's first one
        const int64_t later = both ? next.block->ranks[0].first - block.ranks[0].first : 0;
        kernels_.raise(block.matrix + piece.first, size_, next.block->matrix + next.first + later * size_, block.ranks,
                       block.adapters, block.inputs, block.tokens, piece.width, adds_, outputs);
    }

    const AdapterKernels & kernels_;
    const Mix & mix_;
    const Rows & rows_;
    const Batches & batches_;
    const ggml_tensor * const weights_, * const out_;
    const bool adds_, is_b_;
    const int64_t size_;  // inputs of A, outputs of B, which lies transposed: floats from a rank to the next
    Block blocks_[2];     // one of them is that of the piece that waits
    bool current_ = false;
    Piece waiting_;
};

void fill_with_nan(const ggml_tensor * op, int64_t thread, int64_t threads) {
    float * const out = (float *) op->data;
    const int64_t all = op->ne[0] * op->ne[1] * op->ne[2] * op->ne[3];
    std::fill(out + all * thread / threads, out + all * (thread + 1) / threads, NAN);
}

}  // namespace

bool Adapted::is_one(const ggml_tensor * op) {
    return (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) && (is_b(op->src[0]) || ends_with(op->src[0]->name, ".lora_a"));
}

bool Adapted::computes(const ggml_tensor * op, const Mix & mix) {
    const ggml_tensor * weights = op->src[0], * inputs = op->src[1];
    const auto is_plain = [](const ggml_tensor * of) {
        return of->type == GGML_TYPE_F32 && of->nb[0] == sizeof(float) && (!of->buffer || llama.buft_is_host(of->buffer->buft));
    };
    const bool by_expert = op->op == GGML_OP_MUL_MAT_ID;
    const bool is_whole = weights->nb[1] == weights->ne[0] * sizeof(float) && weights->nb[2] == weights->ne[1] * weights->nb[1];
    const int64_t rank = weights->ne[is_b(weights) ? 0 : 1];
    bool is_bank = mix.adapters > 0 && mix.adapters <= MOST_ADAPTERS && mix.begins[0] == 0;
    for (int i = 0; is_bank && i < mix.adapters; i++) {
        const int64_t end = i + 1 < mix.adapters ? mix.begins[i + 1] : rank;
        is_bank = mix.begins[i] < end && (end - mix.begins[i]) % RANKS == 0;
    }
    return is_bank && is_plain(weights) && is_plain(inputs) && is_plain(op) && is_whole && weights->ne[3] == 1 &&
           (by_expert ? inputs->ne[3] == 1 : weights->ne[2] == 1);
}

bool Adapted::work_size(int, const ggml_tensor * op, size_t & size) {
    RowMap & map = RowMap::of_thread();
    auto & extra = const_cast<ggml_tensor *>(op)->extra;  // for compute_forward, on the other threads
    extra = nullptr;
    if (!map.mix.masks) return others++, false;
    extra = this;
    size = 0;
    if (!computes(op, map.mix)) return map.refuse(), true;
    const bool by_expert = op->op == GGML_OP_MUL_MAT_ID;
    const ggml_tensor * inputs = op->src[1];
    const int64_t tokens = by_expert ? op->src[2]->ne[1] : inputs->ne[1] * inputs->ne[2] * inputs->ne[3];
    size = Batches::bytes(op, std::min<int64_t>(tokens, map.mix.sequences));
    if (tokens == 0) return true;
    if (Note * note = map.note(op, tokens)) extra = note;
    return true;
}

bool Adapted::compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    if (!op->extra) return false;
    const Note * note = op->extra == this ? nullptr : (const Note *) op->extra;
    const Rows * rows = note && note->op == op ? note->map->rows_of(*note) : nullptr;
    if (!rows) return fill_with_nan(note && note->op == op && note->sum ? note->sum : op, params->ith, params->nth), true;
    const Batches batches(op, std::min<int64_t>(note->rows, note->map->mix.sequences), params->wdata);
    if (batches.by_expert()) {
        if (params->ith == 0) batches.sort(*rows);
        llama.barrier(params->threadpool);
    }
    Share(*kernels, *note, *rows, batches).compute(params->ith, params->nth);
    return true;
}

bool Witness::work_size(int, const ggml_tensor * op, size_t &) {
    RowMap::of_thread().see(const_cast<ggml_tensor *>(op));
    return false;
}

bool Witness::compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    if (params->ith == 0 && op->extra && RowMap::begins(op)) ((RowMap *) op->extra)->read(op);
    return false;
}

bool Sum::is_one(const ggml_tensor * op) {
    const bool is_scaled = op->op == GGML_OP_SCALE && op->src[0] && op->src[0]->src[0];
    if (is_scaled) return Adapted::is_one(op->src[0]) && is_b(op->src[0]->src[0]);
    return op->op == GGML_OP_ADD && op->src[1]->op == GGML_OP_SCALE && is_one(op->src[1]);
}

bool Sum::work_size(int, const ggml_tensor * op, size_t & size) {
    auto & extra = const_cast<ggml_tensor *>(op)->extra;
    extra = nullptr;
    if (op->op == GGML_OP_SCALE) return false;
    ggml_tensor * const scaled = op->src[1];
    const ggml_tensor * const b = scaled->src[0], * const sum = op->src[0];
    float by[2];  // and what is added
    memcpy(by, scaled->op_params, sizeof by);
    Note * const note = RowMap::of_thread().noted(b->extra);
    // In place: then nobody else reads the sum, which is there before its adapters are computed.
    const bool is_in_place = op->data && op->data == sum->data && sum->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F32;
    if (!note || !is_in_place || by[0] != 1 || by[1] != 0) return false;
    for (int i = 0; i < 4; i++) {
        if (sum->ne[i] != b->ne[i] || sum->nb[i] != b->nb[i]) return false;
    }
    note->sum = sum;
    extra = scaled->extra = note;
    size = 0;
    return true;
}

bool Sum::compute_forward(ggml_compute_params *, ggml_tensor * op) {
    const auto * note = (const Note *) op->extra;
    return note && note->op == (op->op == GGML_OP_ADD ? op->src[1] : op)->src[0];
}
