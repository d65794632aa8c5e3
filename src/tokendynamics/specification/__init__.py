"""Simulations described by a file: what it may say, what is wrong in it, and the flow it describes.

Nothing is imported here, so that examples and error messages do not wait for PyTorch: `read_specification` is in
`.read`, `build` in `.build`, `draw` in `.figures`, `save_simulation` in `.saving`, and the examples are in `.examples`.
"""
