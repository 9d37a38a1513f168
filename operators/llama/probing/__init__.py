"""Trials in processes that may die: of a model file before it is loaded, and of the build of llama.cpp."""
