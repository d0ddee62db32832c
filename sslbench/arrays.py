"""Array types shared by signatures."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.floating]  # float32 or float64, as stored
IntArray = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]
Int16Array = npt.NDArray[np.int16]
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
