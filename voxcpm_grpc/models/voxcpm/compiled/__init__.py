"""Parts of a model on a CPU that PyTorch's compiler has compiled: their files, their definitions, the compilation."""
