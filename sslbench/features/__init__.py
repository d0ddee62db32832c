"""Feature extraction and the feature store; import of features computed elsewhere.

`extract.extract` returns the features of a source for some layers of a backbone, and encodes only what is not stored:

1. `extract.store_key` hashes all that the features depend on: weights, images, preprocessing, precision, dtype.
2. `store.open_entry` finds the `Entry` of that key: a folder with one `LAYER.npy` (N, D) per layer, whose row i is line
i
   of `index.csv`, and `meta.json`, the key in clear text.
3. For layers that are missing, `extract.Job` decodes and encodes the images in batches, each once for all layers. A
layer
   grows in `LAYER.npy.partial`, which has its final size from the start; `LAYER.npy.progress` has the state and
   checksum of every row. Process r of w encodes the rows r, r + w, ...; a killed run continues with the pending rows.
4. When all rows are done, the first process verifies their checksums, writes `index.csv` and `meta.json`, and renames
   `.partial` to `.npy`, so a `.npy` is always complete.

Memory holds the batches in flight and a few bytes per image, never the features: they are written as they are computed
and memory-mapped afterwards. A layer of 1.28 million images x 2,048 takes 10.5 GB on disk as float32, 5.2 GB as
float16, and 6.4 MB for `.progress`. The time is that of decoding and encoding: 21 minutes at 1,000 images a second, 3.6
hours at 100. A second call reads the index and the digests of changed files only.
"""
