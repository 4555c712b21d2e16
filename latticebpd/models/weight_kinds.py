"""What passes are computed from: the CPU engine's weights, or PyTorch's."""

FLOAT32, INT8, GGUF, TORCH = "float32", "int8", "gguf", "torch"
WEIGHTS = (FLOAT32, INT8, GGUF, TORCH)
EXACT = frozenset({FLOAT32, TORCH})
"""Those with which texts are the float model's own, as its ``generate()`` writes them."""
