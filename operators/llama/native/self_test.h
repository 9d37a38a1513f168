#pragma once
#include "packed.h"

// Multiplies random weights of every type by `kernels`, and attends to random cells. Returns what is wrong, or nullptr:
// bits other than those of plain C++, or numbers other than those of llama.cpp's own values in double precision.
const char * self_test(const Kernels & kernels);
