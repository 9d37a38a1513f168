"""Compilers, the build of llama.cpp, its peers and the doctor."""
