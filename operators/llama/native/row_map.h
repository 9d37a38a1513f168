// Which row of a call the tokens of a graph are, and so which adapters they have.
//
// A graph does not say it in words. Of a token that it writes into the KV cache (SET_ROWS) it has the cell, and with a
// stream of cells for each sequence the stream is the sequence. After the last attention only tokens are left whose
// outputs are wanted (GET_ROWS by "out_ids"). llama.cpp plans each graph, operation by operation and in their order, and
// computes it right then, by the thread that planned it and others: what is planned is noted here for that thread.
// The memory of the indices belongs to others once the last operation that reads them is done, so they are read when the
// first operation of the graph is computed.
#pragma once
#include <deque>
#include <vector>

#include "adapters.h"
#include "ggml_access.h"

// What the graphs that this thread computes are to be computed with; masks nullptr: nothing.
struct Mix {
    const uint64_t * masks = nullptr;  // of each sequence: bit i is adapter i. Read when a graph is computed
    int sequences = 0;
    const int32_t * begins = nullptr;  // of each adapter: its first rank
    int adapters = 0;

    // Writes the ranks of a mask's adapters, in their order; `rank`: of the bank. Returns how many adapters, -1 for one
    // that is none.
    int ranks_of(uint64_t mask, int rank, Ranks * out) const;
};

// Rows of a matrix of activations, sorted by mask.
struct Rows {
    struct Group { uint64_t mask; int first, end; };
    std::vector<Group> groups;
    std::vector<int32_t> sorted, group;  // row numbers, and for each of them its group

    void sort(const std::vector<uint64_t> & masks);
};

class RowMap;

// An operation with adapters, of a planned graph.
struct Note {
    const ggml_tensor * op;
    RowMap * map;
    const ggml_tensor * sum;  // to which its outputs are added in place; nullptr: they are its own
    int64_t rows;
    bool is_after_outputs;
};

class RowMap {
  public:
    static RowMap & of_thread();
    Mix mix;  // with which the next graphs are planned
    void set(const Mix & next);
    int count();  // returns how many operations with adapters were not noted or are not mapped, since it was last asked

    // When a graph is planned:
    static bool begins(const ggml_tensor * op);         // whether it is the first of a graph: tokens are looked up
    void see(ggml_tensor * op);                         // an operation that says something of rows
    Note * note(const ggml_tensor * op, int64_t rows);  // an operation with adapters; nullptr outside of a graph
    Note * noted(void * extra);                         // `extra` if it is a note of this graph, else nullptr
    void refuse() { not_mapped_++; }                    // one that is not known

    // When it is computed:
    void read(const ggml_tensor * first);           // by one thread, at the first operation
    const Rows * rows_of(const Note & note) const;  // nullptr: they are not known

  private:
    bool is_mapped(const Note & note) const;
    void settle();

    const ggml_tensor * first_ = nullptr;                        // of the graph; nullptr: there is none
    const ggml_tensor * cells_ = nullptr, * outputs_ = nullptr;  // indices
    int64_t n_tokens_ = 0, n_outputs_ = 0, cells_of_stream_ = 0;
    int not_mapped_ = 0;
    bool is_known_ = false, is_read_ = false;
    std::deque<Note> notes_;  // their addresses stay; the first `n_notes_` are of this graph
    size_t n_notes_ = 0;
    Rows of_tokens_, of_outputs_;
    std::vector<uint64_t> masks_, output_masks_;
};
