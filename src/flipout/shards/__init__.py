"""Shards: weights that are DTensors (FSDP2, tensor parallel), of which each rank holds a part."""
