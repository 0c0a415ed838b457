"""Acceleration on the CPU: sparse layers, folded batch norms, and the measurements that decide between them."""
