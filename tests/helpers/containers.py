"""Writes one set of images into every kind of container that sslbench reads: independent of its readers."""

import base64
import io
import json
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def png(seed, size=(6, 5)):
    """An encoded picture of random pixels, another one for every seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def pictures(n=12):
    """Name -> (encoded image, class), in an order that is not that of the names."""
    rows = [(f"{CLASSES[i % 3]}/{(i * 7) % n:02d}.png", png(i), CLASSES[i % 3]) for i in range(n)]
    return {name: (content, label) for name, content, label in rows}


def write_folder(root, samples):
    for name, (content, _) in samples.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return str(root)


def write_csv(root, samples):
    write_folder(root, samples)
    rows = [f"{name},{label}" for name, (_, label) in samples.items()]
    (root / "t.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    return str(root / "t.csv")


def write_txt(root, samples):
    write_folder(root, samples)
    (root / "t.txt").write_text("".join(f"{name} {label}\n" for name, (_, label) in samples.items()))
    return str(root / "t.txt")


def write_records(root, samples):
    write_folder(root, samples)
    records = [{"file_name": name, "label": label} for name, (_, label) in samples.items()]
    (root / "t.json").write_text(json.dumps(records))
    return str(root / "t.json")


def write_coco(root, samples):
    write_folder(root, samples)
    images = [{"id": i, "file_name": name} for i, name in enumerate(samples, 1)]
    annotations = [
        {"id": i, "image_id": i, "category_id": CLASSES.index(label) + 1, "bbox": [0, 0, 1, 1]}
        for i, (_, label) in enumerate(samples.values(), 1)
    ]
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)]
    (root / "m.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return str(root / "m.json")


def write_voc(root, samples, splits=("train", "val", "test"), year="VOC2007"):
    """Every third image goes to the same split; the values are 1 and -1."""
    base = root / "VOCdevkit" / year
    (base / "ImageSets" / "Main").mkdir(parents=True)
    write_folder(base / "JPEGImages", samples)
    names = list(samples)
    for k, split in enumerate(splits):
        for label in CLASSES:
            rows = [f"{name[:-4]} {1 if samples[name][1] == label else -1:2d}" for name in names[k :: len(splits)]]
            (base / "ImageSets" / "Main" / f"{label}_{split}.txt").write_text("\n".join(rows) + "\n")
    return str(root / "VOCdevkit")


def write_vissl(root, samples):
    write_folder(root, samples)
    np.save(root / "images.npy", np.array(list(samples)))
    np.save(root / "labels.npy", np.array([CLASSES.index(label) for _, label in samples.values()]))
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return f"vissl:{root}/images.npy,{root}/labels.npy"


def add_to_tar(tar, name, content, **fields):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in fields.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(content))


def write_tar(root, samples):
    """Class folders and nothing else."""
    with tarfile.open(root / "t.tar", "w") as tar:
        for name, (content, _) in samples.items():
            add_to_tar(tar, name, content)
    return str(root / "t.tar")


def write_shards(root, samples, shards=3, part="cls", text=str):
    """webdataset's way: a member with the label beside every image."""
    names = list(samples)
    for k in range(shards):
        with tarfile.open(root / f"s-{k:04d}.tar", "w") as tar:
            for name in names[k::shards]:
                add_to_tar(tar, name, samples[name][0])
                add_to_tar(tar, f"{name.rpartition('.')[0]}.{part}", text(samples[name][1]).encode())
    return f"{root}/s-{{0000..{shards - 1:04d}}}.tar"


def write_zip(root, samples):
    with zipfile.ZipFile(root / "t.zip", "w") as archive:
        for i, (name, (content, _)) in enumerate(samples.items()):
            archive.writestr(name, content, zipfile.ZIP_DEFLATED if i % 2 else zipfile.ZIP_STORED)
    return str(root / "t.zip")


def write_tsv(root, samples):
    rows = [f"{name}\t{base64.b64encode(content).decode()}\t{label}" for name, (content, label) in samples.items()]
    (root / "rows.tsv").write_text("\n".join(rows) + "\n")
    return str(root / "rows.tsv")


def varint(value):
    """A number of protocol buffers, seven bits a byte."""
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def field(number, content):
    """A field of protocol buffers whose value has a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(features):
    """A serialised tf.train.Example; features are bytes or lists of integers."""
    entries = b""
    for key, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        else:
            feature = field(3, field(1, b"".join(map(varint, value))))
        entries += field(1, field(1, key.encode()) + field(2, feature))
    return field(1, entries)


def crc32c(data):
    """CRC-32C bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def framed(record):
    """A record of a TFRecord file."""

    def masked(data):
        crc = crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


IMAGE = {"pythonClassName": "tensorflow_datasets.core.features.image_feature.Image", "image": {}}
LABEL = {"pythonClassName": "tensorflow_datasets.core.features.class_label_feature.ClassLabel", "classLabel": {}}
TEXT = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}


def write_tfds(root, samples, *, splits=None, with_names=True, form="tfrecord", shards=2, records=None):
    """A prepared TFDS data set; `splits`: name -> names of samples. `records(path, list)` writes another form."""
    folder = root / "insects" / "1.0.0"
    folder.mkdir(parents=True)
    listed = []
    for split, names in (splits or {"train": list(samples)}).items():
        parts = np.array_split(np.array(names), shards)
        for i, part in enumerate(parts):
            found = []
            for name in part.tolist():
                content, label = samples[name]
                features = {"image": content, "label": [CLASSES.index(label)]}
                found.append(example(features | ({"file_name": name.encode()} if with_names else {})))
            path = folder / f"insects-{split}.{form}-{i:05d}-of-{shards:05d}"
            path.write_bytes(b"".join(map(framed, found))) if records is None else records(path, found)
        listed.append({"name": split, "shardLengths": [str(len(part)) for part in parts]})
    features = {"image": IMAGE, "label": LABEL} | ({"file_name": TEXT} if with_names else {})
    (folder / "dataset_info.json").write_text(json.dumps({"name": "insects", "fileFormat": form, "splits": listed}))
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    (folder / "label.labels.txt").write_text("\n".join(CLASSES) + "\n")
    return f"tfds:{folder}"


FEATURES = {"image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"}}


def hf_table(samples, with_names=True):
    """The table that `datasets` makes: {bytes, path} and a class number, with what it declares in the metadata."""
    import pyarrow as pa

    rows = [{"bytes": content, "path": name if with_names else None} for name, (content, _) in samples.items()]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = pa.array([CLASSES.index(label) for _, label in samples.values()], pa.int64())
    table = pa.table({"image": pa.array(rows, kind), "label": labels})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def write_parquet(root, samples, with_names=True):
    import pyarrow.parquet

    (root / "data").mkdir(parents=True)
    names = list(samples)
    for k in range(2):
        part = {name: samples[name] for name in names[k::2]}
        path = root / "data" / f"train-{k:05d}-of-00002.parquet"
        pyarrow.parquet.write_table(hf_table(part, with_names), path, row_group_size=4)
    return f"hf:{root}"


def write_saved(root, samples):
    """What save_to_disk writes."""
    import pyarrow as pa

    root.mkdir(parents=True, exist_ok=True)
    table = hf_table(samples)
    with pa.OSFile(str(root / "data-00000-of-00001.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table, max_chunksize=5)
    (root / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (root / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return str(root)
