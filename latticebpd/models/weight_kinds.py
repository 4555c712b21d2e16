"""What passes are computed from: the engine's weights, or PyTorch's."""

FLOAT32, INT8, FILE, TORCH = "float32", "int8", "file", "torch"
WEIGHTS = (FLOAT32, INT8, FILE, TORCH)
EXACT = frozenset({FLOAT32, TORCH})
"""Those with which texts are the float model's own, as its ``generate()`` writes them."""
