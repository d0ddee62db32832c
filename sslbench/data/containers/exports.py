"""Exports of annotation tools, and files of other programs, that are not read: their names, and ways to use them."""

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sslbench.data.containers.sniff import head, head_text, is_clutter
from sslbench.errors import UsageError

NOT_READ = "which is not read"
"""Words of the note on annotations beside images."""
_MOST_ENTRIES, _MOST_FOLDERS, _MOST_ALIKE = 2_000, 50, 3
"""Entries of a folder, folders, and files of a suffix in a folder among which an export is looked for."""
_DEEPEST = 2
_CVAT = "In CVAT: Export task dataset, format COCO 1.0 or Pascal VOC 1.1; the folder is read as it is."
_MANIFEST = "Write a COCO manifest: images, annotations (with bbox, segmentation or only category_id), categories."
_TABLE = "For classes list the images in a .csv with the columns path and label."
_BOXES = "Write a table of boxes (.csv: filename, width, height, class, xmin, ymin, xmax, ymax)."
_DATUMARO = "`datum convert -i FOLDER -f coco -o OUT` writes a COCO manifest (pip install datumaro)."
_NUMBER = r"-?\d+(\.\d*)?(e-?\d+)?"


@dataclasses.dataclass(frozen=True)
class Export:
    """Kind of file that is recognised and not read.

    Attributes:
        title: with an article.
        remedy: way to use its content.
        pattern: found in the first characters of the file; '': the suffix says it all.
        suffixes: of the file, in lower case.
    """

    title: str
    remedy: str
    pattern: str = ""
    suffixes: tuple[str, ...] = (".json",)


_COCO = re.compile(
    r'\s*\{.*("segments_info"\s*:\s*\[|"images"\s*:\s*\[.*"(file_name|coco_url|assets|auxiliary)"\s*:)', re.DOTALL
)
_JSON = (".json", ".jsonl", ".ndjson")
# In this order: the first that fits is named, so wide patterns (VOC's any annotation) stand behind narrow ones.
_EXPORTS = (
    Export("an export 'CVAT for video'", _CVAT, r"<track [^>]*\blabel=", (".xml",)),
    Export("an export 'CVAT for images'", _CVAT, r"<annotations>\s*<version>|<image [^>]*\bname=", (".xml",)),
    Export("an annotation of MIT's LabelMe", _DATUMARO, r"<annotation\b[\s\S]*<(imagesize|polygon)>", (".xml",)),
    Export(
        "the annotation of one image by Pascal VOC",
        "Give the folder that holds these files and the images, unpacked.",
        r"<annotation\b",
        (".xml",),
    ),
    Export(
        "a file of labelme",
        "labelme's examples/instance_segmentation/labelme2coco.py writes a COCO manifest of a folder of them; "
        "`pip install labelme2coco` has a converter, too.",
        r'"shapes"\s*:\s*\[|"image(Path|Data)"\s*:',
    ),
    Export(
        "a project of VoTT", "In VoTT: Export Settings, Pascal VOC; the folder is read as it is.", r'"assets"\s*:\s*\{'
    ),
    Export(
        "a file of Visual Genome",
        "Give the folder that holds it beside image_data.json and the images.",
        r'"phrase"\s*:|"synsets"\s*:',
    ),
    Export(
        "a project or annotation of VIA (VGG Image Annotator)",
        "In VIA: Annotation, Export Annotations (COCO format).",
        r'"_via_|__VIA_PROJECT|"region_attributes"|"regions"\s*:|region_shape_attributes',
        (".json", ".csv"),
    ),
    Export(
        "a file of Datumaro",
        "`datum convert -if datumaro -i FOLDER -f coco` writes a COCO manifest; CVAT also exports COCO 1.0 itself.",
        r'"dm_format_version"|"categories"\s*:\s*\{\s*"(label|points|mask)"',
    ),
    Export(
        "an export of Label Studio in its own JSON",
        "In Label Studio: Export, COCO (boxes, polygons), YOLO, or CSV (classes of whole images).",
        r'"(from_name|to_name|rectanglelabels|polygonlabels|brushlabels)"\s*:',
        _JSON,
    ),
    Export(
        "an export of Labelbox",
        f"List the images with classes in a .csv with the columns path and label. For boxes: {_MANIFEST}",
        r'"(data_row|DataRow ID|Labeled Data)"\s*:',
        _JSON,
    ),
    Export(
        "a file of Supervisely",
        "In Supervisely: the app 'Export to COCO', or 'Export to Pascal VOC'.",
        r'"classTitle"\s*:|"projectType"\s*:|"geometryType"\s*:|"classes"\s*:\s*\[\s*\{\s*"title"'
        r'|"size"\s*:\s*\{\s*"(height|width)"[^}]*\}\s*,\s*"objects"\s*:',
    ),
    Export(
        "a data set of FiftyOne in its own JSON",
        "dataset.export(FOLDER, dataset_type=fiftyone.types.COCODetectionDataset) writes boxes and masks, "
        "ImageClassificationDirectoryTree classes.",
        r'\{\s*"samples"\s*:\s*\[|"_media_type"\s*:|\{\s*"classes"\s*:\s*(null|\[[^]]*\])\s*,\s*"labels"\s*:\s*\{',
    ),
    Export("an export of Hasty", "In Hasty: Export data, COCO.", r'"(label_classes|export_format_version)"\s*:'),
    Export("an export of Encord", "In Encord: Export labels, COCO.", r'"(label_hash|data_units|object_answers)"\s*:'),
    Export(
        "an export of Prodigy",
        f"{_TABLE} For boxes: {_MANIFEST} Leave out rows whose answer is not accept.",
        r'"_(task|input)_hash"\s*:',
        _JSON,
    ),
    Export("a file of RectLabel", "In RectLabel: Export, COCO JSON file.", r'"x_y_w_h"\s*:'),
    Export(
        "an export of Scale AI",
        f"{_TABLE} For boxes: {_MANIFEST}",
        r'"task_id"\s*:[\s\S]*"(params|response)"\s*:|"geometry"\s*:[\s\S]*"reference_id"\s*:',
        _JSON,
    ),
    Export(
        "a file of SuperAnnotate",
        f"{_TABLE} For boxes: {_MANIFEST}",
        r'"(className|attribute_groups)"\s*:|"metadata"\s*:[\s\S]*"instances"\s*:\s*\[',
    ),
    Export("an export of Kili", "In Kili: Export, COCO.", r'"jsonResponse"\s*:'),
    Export(
        "a file of MegaDetector",
        f"{_TABLE} For boxes: {_MANIFEST}",
        r'"detection_categories"\s*:|"images"\s*:\s*\[\s*\{[^{}]*"(file|detections)"\s*:',
    ),
    Export(
        "a list of Roboflow for models of language",
        "In Roboflow: Export, COCO (boxes) or Folder Structure (classes).",
        r'"prefix"\s*:.*"suffix"\s*:',
        (".jsonl",),
    ),
    Export("a GeoJSON file", _MANIFEST, r'"type"\s*:\s*"FeatureCollection"', (".json", ".geojson")),
    Export("a list of CrowdHuman", _MANIFEST, r'"gtboxes"\s*:', (".odgt", *_JSON)),
    Export("an annotation of KITTI", _DATUMARO, rf"\A\w+ {_NUMBER} -?\d+( {_NUMBER}){{12,13}}\s*(\n|\Z)", (".txt",)),
    Export(
        "an annotation of DOTA",
        "DOTA_devkit's DOTA2COCO.py writes a COCO manifest of the boxes around them.",
        rf"\Aimagesource:|\A({_NUMBER} ){{8}}[A-Za-z][\w-]* [012]\s*(\n|\Z)",
        (".txt",),
    ),
    Export(
        "a file of the MOT challenge",
        f"{_DATUMARO} FOLDER is the one of a sequence.",
        rf"\A\[Sequence\]|\A({_NUMBER},){{6,9}}{_NUMBER}\s*(\n|\Z)",
        (".ini", "gt.txt", "det.txt"),
    ),
    Export("a list of WIDER FACE", _DATUMARO, r"\A\S+\.(jpe?g|png)\s*\n\d+\s*\n(\d+ ){9}\d+", (".txt",)),
    Export("an annotation of ICDAR (text)", _DATUMARO, r"\A\ufeff?(-?\d+, ?){8}[^\d\s,-]", (".txt",)),
    Export("an annotation of VisDrone", _BOXES, r"\A(-?\d+,){7}-?\d+,?\s*(\n|\Z)", (".txt",)),
    Export(
        "a table of masks as run lengths",
        "Write the masks as PNG of the images' names, in masks/ beside images/.",
        r"\A[^\n]*\b(EncodedPixels|rle_mask)\b",
        (".csv",),
    ),
    Export(
        "a table with several boxes in a cell",
        f"{_TABLE} For boxes: {_BOXES}",
        r"\A[^\n]*\b(PredictionString|BoxesString)\b",
        (".csv",),
    ),
    Export("a table of VIAME", _BOXES, r"\A# ?1: ?Detection or Track-id", (".csv",)),
    Export(
        "Roboflow's list of classes of masks",
        "Put the images into images/ and each *_mask.png into masks/, under the name of its image.",
        r"\A\s*Pixel Value\s*,",
        ("_classes.csv",),
    ),
    Export(
        "a list of classes of RetinaNet",
        "In Roboflow: Export, COCO; or write the boxes beside it with a header: filename,xmin,ymin,xmax,ymax,class.",
        r"\A[^\n,]+,\s*\d+\s*(\n|\Z)",
        ("_classes.csv",),
    ),
    Export(
        "an export of CreateML",
        f"Roboflow and other tools also write COCO. {_MANIFEST}",
        r'"coordinates"\s*:\s*\{\s*"(x|y|width|height)"',
    ),
    Export(
        "an export of V7 Darwin", "In V7: Export, COCO.", r'"schema_ref"\s*:|"slots"\s*:\s*\[|"darwin_json_version"'
    ),
    Export("a file of labels of BDD100K or Scalabel", "`python -m bdd100k.label.to_coco` writes COCO.", r'"box2d"\s*:'),
    Export(
        "a list of detections in COCO's result format",
        "`sslbench score FILE --data MANIFEST` scores them against a manifest.",
        r'^\s*\[\s*(?=\{[^{}]*"score"\s*:)(?=\{[^{}]*"image_id"\s*:)\{[^{}]*"category_id"\s*:',
    ),
    Export(
        "a manifest of SageMaker or Google AutoML",
        "List the images in a .csv with the columns path and label.",
        r'"(source-ref|imageGcsUri)"\s*:',
        (".manifest", *_JSON),
    ),
    Export("an Excel workbook", "Save the sheet as CSV (UTF-8).", "", (".xlsx", ".xls", ".xlsm", ".ods")),
    Export("a table in a form of pandas", "df.to_csv or df.to_parquet writes one that is read.", "", (".feather",)),
    Export(
        "a pickle",
        "Opening one may run any code. CIFAR's batches are torchvision:CIFAR10@FOLDER and torchvision:CIFAR100@FOLDER.",
        "",
        (".pkl", ".pickle", ".p"),
    ),
    Export(
        "a file of TensorFlow records",
        "Those that TFDS prepared are read by their folder (tfds:FOLDER); of others write image files or webdataset.",
        "",
        (".tfrecord", ".tfrecords", ".tfrec"),
    ),
    Export(
        "a file of MXNet or insightface",
        "insightface's rec2image.py and the like unpack it into folders of classes.",
        "",
        (".rec",),
    ),
    Export(
        "an LMDB database",
        "Write its entries as files in folders of classes, or as webdataset's tar shards.",
        "",
        (".lmdb", ".mdb"),
    ),
    Export("a file of rows", "Give the folder as hf:FOLDER.", "", (".parquet", ".arrow")),
    Export(
        "an array of NumPy",
        "Features are given by --features FILE.npy --labels y.npy (and --test-features, --test-labels), lists of paths "
        "as VISSL writes them by vissl:IMAGES.npy,LABELS.npy. Images, in Python: sslbench.evaluate(MODEL, "
        "{'train': (images, labels), 'test': (images, labels)}).",
        "",
        (".npy",),
    ),
    Export("a file of FFCV", "Give the images that it was made of.", "", (".beton",)),
    Export(
        "a MATLAB file",
        "SVHN is torchvision:SVHN@FOLDER, Flowers 102 torchvision:Flowers102@FOLDER; of others write a .csv of paths.",
        "",
        (".mat",),
    ),
    Export(
        "an HDF5 file",
        "PatchCamelyon is torchvision:PCAM@FOLDER. Of others, in Python: sslbench.evaluate(MODEL, "
        "{'train': (images, labels), 'test': (images, labels)}); features are given by --features.",
        "",
        (".h5", ".hdf5", ".he5"),
    ),
    Export(
        "a file of weights", "Weights are given by --weights.", "", (".pt", ".pth", ".safetensors", ".ckpt", ".onnx")
    ),
    Export(
        "a file of MNIST's kind",
        "torchvision:MNIST@FOLDER, torchvision:FashionMNIST@FOLDER and torchvision:KMNIST@FOLDER read them.",
        "",
        ("-ubyte", "-ubyte.gz"),
    ),
    Export(
        "a medical image or volume",
        "Write its slices as PNG or TIFF (16 bits are kept), in folders of classes or listed in a .csv.",
        "",
        (".nii", ".nii.gz", ".dcm", ".mha", ".nrrd"),
    ),
    Export(
        "a packed file", "Unpack it, and give the folder or file.", "", (".7z", ".rar", ".csv.gz", ".json.gz", ".gz")
    ),
    Export(
        "a video",
        "Extract its frames (ffmpeg -i FILE frames/%06d.png), and give their folder.",
        "",
        (".mp4", ".avi", ".mov", ".mkv", ".webm"),
    ),
    Export(
        "a description of darknet", "Write data.yaml with train:, val: and names:, or give the folder.", "", (".data",)
    ),
)


# First bytes of pickles.
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
_SUFFIXES = tuple({suffix for export in _EXPORTS if export.pattern for suffix in export.suffixes})


def annotates(name: str) -> bool:
    """Return whether files of the suffix of a name may be annotations of images beside them."""
    return name.lower().endswith(_SUFFIXES)


def is_manifest(path: Path) -> bool:
    """Return whether a file begins like a COCO manifest."""
    return path.suffix.lower() == ".json" and _COCO.match(head_text(str(path))) is not None


def export_by(name: str, head: Callable[[], str]) -> Export | None:
    """Return the kind of export that a file is by its name and first characters; None for any other file."""
    of_suffix = [export for export in _EXPORTS if name.lower().endswith(export.suffixes)]
    text = head() if any(export.pattern for export in of_suffix) else ""
    if _COCO.match(text):
        return None
    return next((export for export in of_suffix if not export.pattern or re.search(export.pattern, text)), None)


def export_of(path: Path) -> Export | None:
    """Return the kind of a file that is an export; None for any other. CIFAR's pickles have no suffix."""
    if not path.is_file():
        return None
    name = path.name + ".pkl" * (not path.suffix and head(str(path))[:2] in _PICKLES)
    return export_by(name, lambda: head_text(str(path)))


def export_in(folder: Path, *, without_images: bool = False) -> tuple[Path, Export] | None:
    """Return an export in a folder, or in a folder in it, and its kind; None without any.

    Only annotations of images that lie there count, unless it is `without_images`.
    """
    for path in some_files(folder):
        if without_images or annotates(path.name):
            export = export_of(path)
            if export is not None and (without_images or export.pattern):
                return path, export
    return None


def some_files(folder: Path) -> Iterator[Path]:
    """Yield some files of each suffix in a folder, in the folders in it, and in those in these, in order."""
    waiting = [(folder, 0)]
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        # Level by level, so that the limit of folders leaves out the deepest.
        top, depth = waiting.pop(0)
        seen: collections.Counter[str] = collections.Counter()
        with os.scandir(top) as entries:
            # Only so many, since a folder of images may have millions.
            found = sorted((e.name, e.is_dir()) for e in itertools.islice(entries, _MOST_ENTRIES))
        for name, is_folder in found:
            if is_clutter(name):
                continue
            suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122
            seen[suffix] += 1
            if is_folder and depth < _DEEPEST:
                waiting.append((top / name, depth + 1))
            elif not is_folder and seen[suffix] <= _MOST_ALIKE:
                yield top / name


def refuse_export(spec: str, *, unknown: bool = False) -> None:
    """Refuse a file that is an export of another tool; if no format recognises it (`unknown`), its suffix suffices."""
    export = export_of(Path(spec))
    if export is not None and (unknown or export.pattern):
        raise UsageError(f"'{spec}' is {export.title}, which sslbench does not read", export.remedy)
