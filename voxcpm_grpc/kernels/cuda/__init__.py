"""CUDA C++: its compiler, and sources for any model. Sources of a family lie in its own folder."""
