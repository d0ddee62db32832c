"""Feature extraction and the feature store; import of features computed elsewhere.

`extract.extract` returns the features of a source for some layers of a backbone, and encodes only what is not stored:

1. `extract.store_key` hashes all that the features depend on: weights, images, preprocessing, precision, dtype.
2. `store.open_entry` finds the entry of that key: a folder with one `LAYER.npy` (N, D) per layer.
3. `job.ExtractionJob` decodes and encodes the images once for all missing layers. A layer grows in `LAYER.npy.partial`
   of the final size; `LAYER.npy.progress` has the state and checksum of every row. Of w processes each encodes a share
   of the rows; a killed run continues with the pending ones.
4. When all rows are done, the first process verifies their checksums, writes `index.csv` and `meta.json`, and renames
   `.partial` to `.npy`, so a `.npy` is always complete.

Memory holds the batches in flight and a few bytes per image, never the features. A layer of 1.28 million images x 2,048
takes 10.5 GB on disk as float32, 5.2 GB as float16, and 6.4 MB for `.progress`.
"""
