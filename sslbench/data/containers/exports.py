"""Exports of annotation tools, and files of other programs, that are not read: their names, and ways to use them."""

import dataclasses
import itertools
import re
from pathlib import Path

from sslbench.data.containers.sniff import head_text
from sslbench.data.containers.suffixes import is_clutter
from sslbench.errors import UsageError

NOT_READ = "which is not read"
"""Words of the note on annotations beside images."""
_MOST_FILES = 400
"""Entries of a folder, and of the folders in it, among which an export is looked for."""
_CVAT = "In CVAT: Export task dataset, format COCO 1.0 or Pascal VOC 1.1; the folder is read as it is."
_MANIFEST = "Write a COCO manifest: images, annotations (with bbox, segmentation or only category_id), categories."


@dataclasses.dataclass(frozen=True)
class Export:
    """Kind of file that is recognised and not read.

    Attributes:
        title: with an article.
        remedy: way to use its content.
        suffixes: of the file, in lower case.
        pattern: found in the first characters of the file; '': the suffix says it all.
    """

    title: str
    remedy: str
    suffixes: tuple[str, ...]
    pattern: str = ""


_COCO = re.compile(r'\s*\{.*"(images|segments_info)"\s*:\s*\[', re.DOTALL)
_JSON = (".json", ".jsonl", ".ndjson")
ANNOTATIONS = (*_JSON, ".xml")
"""Suffixes of files of annotations beside images."""
_EXPORTS = (
    Export("an export 'CVAT for video'", _CVAT, (".xml",), r"<track [^>]*\blabel="),
    Export("an export 'CVAT for images'", _CVAT, (".xml",), r"<annotations>\s*<version>|<image [^>]*\bname="),
    Export(
        "the annotation of one image by Pascal VOC",
        "Give the folder that holds these files and the images.",
        (".xml",),
        r"<annotation\b",
    ),
    Export(
        "a file of labelme",
        "labelme's examples/instance_segmentation/labelme2coco.py writes a COCO manifest of a folder of them; "
        "`pip install labelme2coco` has a converter, too.",
        (".json",),
        r'"shapes"\s*:\s*\[|"image(Path|Data)"\s*:',
    ),
    Export(
        "a project of VoTT",
        "In VoTT: Export Settings, Pascal VOC; the folder is read as it is.",
        (".json",),
        r'"assets"\s*:\s*\{',
    ),
    Export(
        "a project or annotation of VIA (VGG Image Annotator)",
        "In VIA: Annotation, Export Annotations (COCO format).",
        (".json", ".csv"),
        r'"_via_|__VIA_PROJECT|"region_attributes"|"regions"\s*:|region_shape_attributes',
    ),
    Export(
        "a file of Datumaro",
        "`datum convert -if datumaro -i FOLDER -f coco` writes a COCO manifest; CVAT also exports COCO 1.0 itself.",
        (".json",),
        r'"dm_format_version"|"categories"\s*:\s*\{\s*"(label|points|mask)"',
    ),
    Export(
        "an export of Label Studio in its own JSON",
        "In Label Studio: Export, COCO (boxes, polygons), YOLO, or CSV (classes of whole images).",
        _JSON,
        r'"(from_name|to_name|rectanglelabels|polygonlabels|brushlabels)"\s*:',
    ),
    Export(
        "an export of Labelbox",
        f"List the images with classes in a .csv with the columns path and label. For boxes: {_MANIFEST}",
        _JSON,
        r'"(data_row|DataRow ID|Labeled Data)"\s*:',
    ),
    Export(
        "a file of Supervisely",
        "In Supervisely: the app 'Export to COCO', or 'Export to Pascal VOC'.",
        (".json",),
        r'"classTitle"\s*:|"projectType"\s*:|"geometryType"\s*:|"classes"\s*:\s*\[\s*\{\s*"title"'
        r'|"size"\s*:\s*\{\s*"(height|width)"[^}]*\}\s*,\s*"objects"\s*:',
    ),
    Export(
        "a data set of FiftyOne in its own JSON",
        "dataset.export(FOLDER, dataset_type=fiftyone.types.COCODetectionDataset) writes boxes and masks, "
        "ImageClassificationDirectoryTree classes.",
        (".json",),
        r'\{\s*"samples"\s*:\s*\[|"_media_type"\s*:|\{\s*"classes"\s*:\s*\[[^]]*\]\s*,\s*"labels"\s*:\s*\{',
    ),
    Export(
        "an export of CreateML",
        f"Roboflow and other tools also write COCO. {_MANIFEST}",
        (".json",),
        r'"coordinates"\s*:\s*\{\s*"(x|y|width|height)"',
    ),
    Export(
        "an export of V7 Darwin",
        "In V7: Export, COCO.",
        (".json",),
        r'"schema_ref"\s*:|"slots"\s*:\s*\[|"darwin_json_version"',
    ),
    Export(
        "a file of labels of BDD100K or Scalabel",
        "`python -m bdd100k.label.to_coco` writes COCO.",
        (".json",),
        r'"box2d"\s*:',
    ),
    Export(
        "a list of detections in COCO's result format",
        "`sslbench score FILE --data MANIFEST` scores them against a manifest.",
        (".json",),
        r'^\s*\[\s*(?=\{[^{}]*"score"\s*:)(?=\{[^{}]*"image_id"\s*:)\{[^{}]*"category_id"\s*:',
    ),
    Export(
        "a manifest of SageMaker or Google AutoML",
        "List the images in a .csv with the columns path and label.",
        (".manifest", *_JSON),
        r'"(source-ref|imageGcsUri)"\s*:',
    ),
    Export("an Excel workbook", "Save the sheet as CSV (UTF-8).", (".xlsx", ".xls", ".xlsm", ".ods")),
    Export("a table in a form of pandas", "df.to_csv or df.to_parquet writes one that is read.", (".feather",)),
    Export(
        "a pickle",
        "Opening one may run any code. CIFAR's batches are torchvision:CIFAR10@FOLDER and torchvision:CIFAR100@FOLDER.",
        (".pkl", ".pickle", ".p"),
    ),
    Export(
        "a file of TensorFlow records",
        "Those that TFDS prepared are read by their folder (tfds:FOLDER); of others write image files or webdataset.",
        (".tfrecord", ".tfrecords", ".tfrec"),
    ),
    Export(
        "a file of MXNet or insightface",
        "insightface's rec2image.py and the like unpack it into folders of classes.",
        (".rec",),
    ),
    Export(
        "an LMDB database",
        "Write its entries as files in folders of classes, or as webdataset's tar shards.",
        (".lmdb", ".mdb"),
    ),
    Export("a file of rows", "Give the folder as hf:FOLDER.", (".parquet", ".arrow")),
    Export(
        "an array of NumPy",
        "Features are given by --features FILE.npy --labels y.npy (and --test-features, --test-labels), lists of paths "
        "as VISSL writes them by vissl:IMAGES.npy,LABELS.npy. Images, in Python: sslbench.evaluate(MODEL, "
        "{'train': (images, labels), 'test': (images, labels)}).",
        (".npy",),
    ),
    Export("a file of FFCV", "Give the images that it was made of.", (".beton",)),
    Export(
        "a MATLAB file",
        "SVHN is torchvision:SVHN@FOLDER, Flowers 102 torchvision:Flowers102@FOLDER; of others write a .csv of paths.",
        (".mat",),
    ),
    Export(
        "an HDF5 file",
        "PatchCamelyon is torchvision:PCAM@FOLDER. Of others, in Python: sslbench.evaluate(MODEL, "
        "{'train': (images, labels), 'test': (images, labels)}); features are given by --features.",
        (".h5", ".hdf5", ".he5"),
    ),
    Export("a file of weights", "Weights are given by --weights.", (".pt", ".pth", ".safetensors", ".ckpt", ".onnx")),
    Export(
        "a file of MNIST's kind",
        "torchvision:MNIST@FOLDER, torchvision:FashionMNIST@FOLDER and torchvision:KMNIST@FOLDER read them.",
        ("-ubyte", "-ubyte.gz"),
    ),
    Export(
        "a medical image or volume",
        "Write its slices as PNG or TIFF (16 bits are kept), in folders of classes or listed in a .csv.",
        (".nii", ".nii.gz", ".dcm", ".mha", ".nrrd"),
    ),
    Export("a packed file", "Unpack it, and give the folder or file.", (".7z", ".rar", ".csv.gz", ".json.gz", ".gz")),
    Export(
        "a video",
        "Extract its frames (ffmpeg -i FILE frames/%06d.png), and give their folder.",
        (".mp4", ".avi", ".mov", ".mkv", ".webm"),
    ),
    Export("a description of darknet", "Write data.yaml with train:, val: and names:, or give the folder.", (".data",)),
)


def export_of(path: Path) -> Export | None:
    """Return the kind of a file that is an export; None for any other."""
    name = path.name.lower()
    of_suffix = [export for export in _EXPORTS if name.endswith(export.suffixes)]
    if not of_suffix or not path.is_file():
        return None
    text = head_text(str(path)) if any(export.pattern for export in of_suffix) else ""
    if _COCO.match(text):
        return None
    return next((export for export in of_suffix if not export.pattern or re.search(export.pattern, text)), None)


def export_in(folder: Path, *, without_images: bool = False) -> tuple[Path, Export] | None:
    """Return a file in a folder, or in one of the folders in it, that is an export, and its kind; None without any.

    Args:
        folder: folder to search.
        without_images: files of any kind; otherwise only annotations of images that lie there.
    """
    for pattern in ("*", "*/*", "*/*/*"):
        for path in itertools.islice(folder.glob(pattern), _MOST_FILES):
            if (without_images or path.suffix.lower() in ANNOTATIONS) and not is_clutter(path.name):
                export = export_of(path)
                if export is not None:
                    return path, export
    return None


def refuse_export(spec: str, *, unknown: bool = False) -> None:
    """Refuse a file that is an export of another tool.

    Args:
        spec: the location.
        unknown: no format recognises it, so that its suffix suffices.

    Raises:
        UsageError: it is one; the message says how its content can be used.
    """
    export = export_of(Path(spec))
    if export is not None and (unknown or export.pattern):
        raise UsageError(f"'{spec}' is {export.title}, which sslbench does not read", export.remedy)
