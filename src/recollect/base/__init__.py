"""What every other package builds on: types, trees of tensors, devices, files, processes."""
