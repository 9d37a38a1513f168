// Threads share pieces: a stream, some tokens, and its heads of keys, all together where there are enough streams, since
// then cells are read as they lie in memory; and where pieces are few, segments of cells. A query's chain is the same in
// any piece.
#include "product.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr ggml_fp16_t HIDDEN = 0xfc00;  // minus infinity, in a mask
constexpr int PIECES_A_THREAD = 4;  // at least, so that no thread waits long for another
constexpr int MOST_STATES = 4 * QUERIES;  // of a piece; the second cache has room for them

struct Shape {
    int64_t size, streams, key_heads, together, heads, tokens, tiles, segments, key_heads_at_once, pieces, parts;

    // `together`: query heads of a piece that share a head of keys.
    Shape(const ggml_tensor * op, int threads) {
        const ggml_tensor * q = op->src[0], * k = op->src[1];
        size = k->ne[0], streams = q->ne[3], key_heads = k->ne[2];
        const int64_t shared = q->ne[2] / key_heads;
        together = std::min<int64_t>(shared, QUERIES), heads = (shared + together - 1) / together;
        tokens = std::min<int64_t>(QUERIES / together, q->ne[1]), tiles = (q->ne[1] + tokens - 1) / tokens;
        segments = (k->ne[1] + SEGMENT - 1) / SEGMENT, key_heads_at_once = key_heads;
        const auto count = [&] { return streams * (key_heads / key_heads_at_once) * heads * tiles; };
        const auto fits = [&] {
            const bool is_share = key_heads % key_heads_at_once == 0;
            return is_share && key_heads_at_once * together * tokens <= MOST_STATES && count() >= PIECES_A_THREAD * threads;
        };
        while (key_heads_at_once > 1 && !fits()) key_heads_at_once--;
        pieces = count();
        parts = pieces < PIECES_A_THREAD * threads ? segments : 1;
    }
    int64_t state_floats() const { return sizeof(State) / sizeof(float) + size; }
    int64_t states_floats() const { return key_heads_at_once * QUERIES * state_floats(); }
    // Of a thread: cells as floats, and the states of a segment and of all.
    int64_t thread_floats() const { return 2 * CELLS * size + 2 * states_floats(); }
    int64_t shared_floats() const { return parts > 1 ? pieces * parts * states_floats() : 0; }
};

// The queries of a piece: for each of its heads of keys `count()`, which are n_heads for each token.
struct Piece {
    const ggml_tensor * op;
    int64_t stream, first_key_head, key_heads, shared, skipped, n_heads, first_token, n_tokens;

    Piece(const ggml_tensor * op, const Shape & shape, int64_t number) : op(op) {
        key_heads = shape.key_heads_at_once, shared = op->src[0]->ne[2] / shape.key_heads;
        first_token = number % shape.tiles * shape.tokens, number /= shape.tiles;
        skipped = number % shape.heads * shape.together, number /= shape.heads;
        const int64_t of_stream = shape.key_heads / key_heads;
        first_key_head = number % of_stream * key_heads, stream = number / of_stream;
        n_heads = std::min(shape.together, shared - skipped);
        n_tokens = std::min(shape.tokens, op->src[0]->ne[1] - first_token);
    }
    int count() const { return (int) (n_heads * n_tokens); }
    // Of query `i` of head of keys `h`.
    int64_t head(int64_t h, int i) const { return (first_key_head + h) * shared + skipped + i % n_heads; }
    int64_t token(int i) const { return first_token + i / n_heads; }
    const float * query(int64_t h, int i) const {
        const ggml_tensor * q = op->src[0];
        return (const float *) ((const char *) q->data + token(i) * q->nb[1] + head(h, i) * q->nb[2] + stream * q->nb[3]);
    }
    float * output(int64_t h, int i) const {
        return (float *) op->data + ((stream * op->ne[2] + token(i)) * op->ne[1] + head(h, i)) * op->ne[0];
    }
    const char * cell(const ggml_tensor * of, int64_t i) const {
        return (const char *) of->data + i * of->nb[1] + first_key_head * of->nb[2] + stream * of->nb[3];
    }
    const ggml_fp16_t * mask(int64_t token) const {
        const ggml_tensor * m = op->src[3];
        return (const ggml_fp16_t *) ((const char *) m->data + (first_token + token) * m->nb[1] + stream % m->ne[3] * m->nb[3]);
    }
};

struct Team {
    const AttentionKernels & kernels;
    const Shape & shape;
    const Head head;
    float * const room;

    // Of a piece: QUERIES for each head of keys.
    State * states(float * memory) const {
        auto * made = (State *) memory;
        auto * values = (float *) (made + shape.key_heads_at_once * QUERIES);
        for (int64_t i = 0; i < shape.key_heads_at_once * QUERIES; i++) made[i].values = values + i * shape.size;
        return made;
    }
    template <class F> void each(const Piece & piece, F f) const {  // f(head of keys, query of it, its state)
        for (int64_t h = 0; h < piece.key_heads; h++) {
            for (int i = 0; i < piece.count(); i++) f(h, i, h * QUERIES + i);
        }
    }
    void begin(const Piece & piece, State * states) const {
        each(piece, [&](int64_t, int, int64_t at) {
            states[at].most = NOTHING;
            std::fill_n(states[at].sums, LANES, 0.0f);
            std::fill_n(states[at].values, shape.size, 0.0f);
        });
    }

    // What a token sees of a block: all with nothing added to scores, nothing, or what must be looked at.
    enum Sight { ALL, NONE, SOME };
    static Sight sight(const ggml_fp16_t * mask, int64_t cells) {
        uint64_t words[CELLS * sizeof *mask / 8], all = 0, some = ~(uint64_t) 0;
        if (cells < CELLS) return SOME;
        memcpy(words, mask, sizeof words);
        for (uint64_t word : words) all |= word, some &= word;
        return all == 0 ? ALL : all == some && all == HIDDEN * 0x0001000100010001u ? NONE : SOME;
    }
    // The cells that a token sees, with the first head of keys.
    static Cells see(const Piece & piece, const ggml_fp16_t * mask, int64_t first, int64_t last) {
        const ggml_tensor * k = piece.op->src[1], * v = piece.op->src[2];
        const char * key = piece.cell(k, first), * value = piece.cell(v, first);
        Cells seen;
        for (int64_t i = first; i < last; i++, key += k->nb[1], value += v->nb[1]) {
            if (mask[i] == HIDDEN) continue;
            seen.mask[seen.count] = mask[i] == 0 ? 0 : llama.half(mask[i]);
            seen.keys[seen.count] = key, seen.values[seen.count++] = value;
        }
        return seen;
    }

    // Tokens that see a whole block share it; the others have their own cells of it.
    void attend(const Piece & piece, int64_t segment, State * states) const {
        const ggml_tensor * k = piece.op->src[1], * v = piece.op->src[2];
        const auto to_next = [&](const ggml_tensor * of, bool is_last) {  // head, or the first one a block later
            return (ptrdiff_t) (is_last ? CELLS * of->nb[1] - (piece.key_heads - 1) * of->nb[2] : of->nb[2]);
        };
        const int64_t cells = k->ne[1], end = std::min<int64_t>((segment + 1) * SEGMENT, cells);
        for (int64_t first = segment * SEGMENT; first < end; first += CELLS) {
            const int64_t last = std::min<int64_t>(first + CELLS, end);
            const auto attend_at_once = [&](int64_t from, int64_t to) {  // tokens that see the same
                Cells seen = see(piece, piece.mask(from), first, last);
                const int count = (int) ((to - from) * piece.n_heads), skip = (int) (from * piece.n_heads);
                for (int64_t h = 0; seen.count && h < piece.key_heads; h++) {
                    const float * queries[QUERIES];
                    for (int i = 0; i < count; i++) queries[i] = piece.query(h, skip + i);
                    const bool is_last = h + 1 == piece.key_heads;
                    const Head here = {head.size, head.scale, head.cap, to_next(k, is_last), to_next(v, is_last)};
                    kernels.attend(seen, here, queries, states + h * QUERIES + skip, count, room);
                    for (int c = 0; c < seen.padded(); c++) {
                        seen.keys[c] = (const char *) seen.keys[c] + k->nb[2];
                        seen.values[c] = (const char *) seen.values[c] + v->nb[2];
                    }
                }
            };
            for (int64_t token = 0, next; token < piece.n_tokens; token = next) {
                const auto sees = [&](int64_t t) { return sight(piece.mask(t) + first, last - first); };
                const Sight its = sees(token);
                next = token + 1;
                while (its == ALL && next < piece.n_tokens && sees(next) == ALL) next++;
                if (its != NONE) attend_at_once(token, next);
            }
        }
    }
};

}  // namespace

thread_local bool OfCalls::is_wanted = false;
thread_local int others = 0;

bool OfCalls::take(const ggml_tensor * op, bool is_known) {
    const bool ours = is_wanted && is_known;
    const_cast<ggml_tensor *>(op)->extra = ours ? this : nullptr;  // for compute_forward, on the other threads
    others += !ours;
    return ours;
}

bool Attention::computes(const ggml_tensor * op) {
    if (op->op != GGML_OP_FLASH_ATTN_EXT || !op->src[3]) return false;
    const ggml_tensor * q = op->src[0], * k = op->src[1], * v = op->src[2], * mask = op->src[3];
    const auto is_cache = [q](const ggml_tensor * of) {
        return of->type == GGML_TYPE_F16 && of->nb[0] == sizeof(ggml_fp16_t) && of->ne[0] == q->ne[0] &&
               q->ne[2] % of->ne[2] == 0 && of->ne[3] == q->ne[3] && (!of->buffer || llama.buft_is_host(of->buffer->buft));
    };
    float bias;
    memcpy(&bias, (const float *) op->op_params + 1, sizeof bias);
    return bias == 0 && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && q->ne[0] % LANES == 0 && is_cache(k) &&
           is_cache(v) && k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && mask->type == GGML_TYPE_F16 && mask->ne[2] == 1;
}

bool Attention::work_size(int threads, const ggml_tensor * op, size_t & size) {
    if (!take(op, computes(op))) return false;
    size = 0;
    for (int team = 1; team <= threads; team++) {  // OpenMP may give fewer than it is asked for
        const Shape shape(op, team);
        size = std::max(size, (team * shape.thread_floats() + shape.shared_floats()) * sizeof(float) + 64);
    }
    return true;
}

bool Attention::compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    if (op->extra != this) return false;
    const Shape shape(op, params->nth);
    float * const memory = (float *) (((uintptr_t) params->wdata + 63) & ~(uintptr_t) 63);
    float * const mine = memory + params->ith * shape.thread_floats();
    float * const shared = memory + params->nth * shape.thread_floats();
    float scale, cap;
    memcpy(&scale, (const float *) op->op_params + 0, sizeof scale);
    memcpy(&cap, (const float *) op->op_params + 2, sizeof cap);
    const Team team{*kernels, shape, {(int) shape.size, cap == 0 ? scale : scale / cap, cap, 0, 0}, mine};
    State * const states = team.states(mine + 2 * CELLS * shape.size);
    State * const later = team.states(mine + 2 * CELLS * shape.size + shape.states_floats());
    const auto finish = [&](const Piece & piece) {
        team.each(piece, [&](int64_t h, int i, int64_t at) {
            const float * sink = op->src[4] ? (const float *) op->src[4]->data + piece.head(h, i) : nullptr;
            kernels->finish(states[at], sink, (int) shape.size, piece.output(h, i));
        });
    };
    const auto add = [&](const Piece & piece, const State * found) {
        team.each(piece, [&](int64_t, int, int64_t at) { kernels->merge(states[at], found[at], (int) shape.size); });
    };
    const auto start = [&] {
        if (params->ith == 0) llama.chunk_set(params->threadpool, params->nth);
        llama.barrier(params->threadpool);
    };
    start();
    for (int64_t c = params->ith; c < shape.pieces * shape.parts; c = llama.chunk_add(params->threadpool, 1)) {
        const Piece piece(op, shape, c / shape.parts);
        if (shape.parts > 1) {
            State * const found = team.states(shared + c * shape.states_floats());
            team.begin(piece, found);
            team.attend(piece, c % shape.parts, found);
            continue;
        }
        team.begin(piece, states);
        for (int64_t segment = 0; segment < shape.segments; segment++) {
            team.begin(piece, later);
            team.attend(piece, segment, later);
            add(piece, later);
        }
        finish(piece);
    }
    if (shape.parts == 1) return true;
    llama.barrier(params->threadpool);
    start();
    for (int64_t c = params->ith; c < shape.pieces; c = llama.chunk_add(params->threadpool, 1)) {
        const Piece piece(op, shape, c);
        team.begin(piece, states);
        for (int64_t part = 0; part < shape.parts; part++) {
            add(piece, team.states(shared + (c * shape.parts + part) * shape.states_floats()));
        }
        finish(piece);
    }
    return true;
}
