"""Files for other runtimes: ONNX and torch.export. Each file is run and compared with the network before it is kept."""
