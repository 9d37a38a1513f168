"""Compilers, the builds of llama.cpp and of its programs, and the doctor."""
