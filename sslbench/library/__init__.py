"""The YAML library: benchmarks, presets and recipes that users read, copy and change."""
