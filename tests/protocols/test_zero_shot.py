"""Zero-shot classification and retrieval of texts against slow loops, the files of texts, and the towers."""

import json

import numpy as np
import pytest
import torch
from helpers.targets import image_texts, text_file
from PIL import Image
from scipy.stats import binom
from sklearn.metrics import average_precision_score, balanced_accuracy_score

from sslbench.cli.main import main
from sslbench.data.open import open_as
from sslbench.errors import DataError, UsageError, WeightsError
from sslbench.features.array import Features
from sslbench.names import list_names
from sslbench.protocols import image_text, zero_shot
from sslbench.protocols._parts.texts import recorded
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.texts import Texts

RNG = np.random.default_rng(0)
NAMES = ("cat", "dog", "sea_lion", "ant", "bee", "owl")
TEMPLATES = ("a photo of a {}.", "art of the {}.")


def cosine(a, b):
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def classified(labels, x, **settings):
    features = Features(x.astype(np.float32), labels, tuple(f"{i:03d}" for i in range(len(x))))
    return zero_shot.run(features, features, zero_shot.Settings(**settings), seed=0)


def prompt_vectors():
    """Vectors of all prompts: name -> (2, 16)."""
    vectors = {name: RNG.normal(size=(2, 16)) * RNG.uniform(0.1, 9, (2, 1)) for name in NAMES}
    words = {name: name.replace("_", " ") for name in NAMES}
    rows = {t.format(words[name]): v for name, own in vectors.items() for t, v in zip(TEMPLATES, own, strict=True)}
    return vectors, text_file(rows)


def slow_scores(x, vectors):
    """The cosine with the mean of each class's unit vectors, as CLIP's notebook has it."""
    means = [sum(v / np.linalg.norm(v) for v in vectors[name]) / 2 for name in NAMES]
    return np.array([[cosine(row, mean) for mean in means] for row in x])


def test_scores_and_metrics_are_those_of_loops_over_prompts():
    vectors, file = prompt_vectors()
    y, x = RNG.integers(0, 6, 90), RNG.normal(size=(90, 16))
    scores = slow_scores(x, vectors)
    found = classified(Classes(NAMES, y), x, text_features=file, templates=TEMPLATES)
    np.testing.assert_allclose(found.scores, 100 * scores, rtol=1e-4, atol=1e-4)
    right = [np.argsort(-row).tolist().index(label) for row, label in zip(scores, y, strict=True)]
    assert found.metrics["top1"][0] == pytest.approx(np.mean(np.array(right) == 0))
    assert found.metrics["top5"][0] == pytest.approx(np.mean(np.array(right) < 5))
    balanced = balanced_accuracy_score(y, scores.argmax(1))
    assert found.metrics["balanced_accuracy"][0] == pytest.approx(balanced) and found.headline == "top1"


def test_shuffled_classes_are_at_chance():
    """Images that are near the text of their class, whose labels are drawn anew."""
    vectors, file = prompt_vectors()
    right, inside = 0, 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = np.stack([vectors[NAMES[c]][0] for c in rng.integers(0, 6, 120)]) + 0.1 * rng.normal(size=(120, 16))
        y = rng.integers(0, 6, 120)
        found = classified(Classes(NAMES, y), x, text_features=file, templates=TEMPLATES)
        right += int((found.scores.argmax(axis=1) == y).sum())
        inside += found.metrics["top1"][1] <= 1 / 6 <= found.metrics["top1"][2]
    assert binom.ppf(1e-6, 960, 1 / 6) <= right <= binom.isf(1e-6, 960, 1 / 6) and inside >= 6


def test_several_labels_have_the_average_precision_of_scikit_learn():
    vectors, file = prompt_vectors()
    y, x = RNG.integers(0, 2, (60, 6)), RNG.normal(size=(60, 16))
    found = classified(MultiLabel(NAMES, y.astype(np.int8)), x, text_features=file, templates=TEMPLATES)
    expected = average_precision_score(y, slow_scores(x, vectors), average="macro")
    assert found.metrics["mAP_noninterpolated"][0] == pytest.approx(expected, abs=1e-6) and found.headline == "mAP"


def test_classes_of_equal_texts_are_predicted_as_the_first():
    x = np.array([[1.0, 0.1], [1.0, 0.1], [0.0, 1.0]])
    file = text_file({"crane": np.array([1.0, 0]), "ox": np.array([0, 1.0])})
    prompts = zero_shot.Prompts("t", "s", ("{}",), {"bird": "crane", "machine": "crane", "ox": "ox"})
    assert zero_shot.words_of(("bird", "machine", "ox"), prompts) == ["crane", "crane", "ox"]
    labels = Classes(("crane", "ox"), np.array([0, 0, 1]))
    assert classified(labels, x, text_features=file).metrics["top1"][0] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_shot, "prompts_of", lambda _: prompts)
        labels = Classes(("bird", "machine", "ox"), np.array([0, 1, 2]))
        found = classified(labels, x, text_features=file)
    assert found.per_class == {"bird": 1, "machine": 0, "ox": 1} and "never machine" in found.notes[1]


@pytest.mark.parametrize(
    ("classes", "names", "by_order", "words"),
    [
        (("2", "10", "3", "9", "4", "5", "6", "7", "8"), list("abcdefghi"), False, list("aibhcdefg")),
        (("1 - one", "0 - zero"), ["zero", "one"], False, ["one", "zero"]),
        (("Forest", "AnnualCrop"), ["crop", "wood"], True, ["wood", "crop"]),
        (("b_c/d",), [], False, ["b c d"]),
    ],
)
def test_names_belong_to_classes_by_number_or_sorted(classes, names, by_order, words):
    assert zero_shot.words_of(classes, zero_shot.Prompts("t", "s", ("{}",), names, by_order)) == words


@pytest.mark.parametrize("classes", [("1", "2"), ("0", "1", "3"), ("x", "y", "z"), ("1", "01", "2")])
def test_names_of_other_classes_are_refused(classes):
    with pytest.raises(UsageError, match="are of 3 classes"):
        zero_shot.words_of(classes, zero_shot.Prompts("t", "s", ("{}",), ["a", "b", "c"]))


def test_names_of_a_mapping_are_found_by_class_before_they_are_taken_as_words():
    prompts = zero_shot.Prompts("t", "s", ("{}",), {"fly": "fly swatter", "bug": "fly"})
    assert zero_shot.words_of(("fly", "bug"), prompts) == ["fly swatter", "fly"]
    assert zero_shot.words_of(("fly", "fly_swatter"), prompts) == ["fly", "fly swatter"]
    with pytest.raises(UsageError, match="the prompts of t lack 1 of 2 classes: ant"):
        zero_shot.words_of(("bug", "ant"), prompts)


def test_emotions_have_the_words_of_their_folders_and_of_their_numbers():
    """The numbers of fer2013.csv are not in the order of the folders."""
    prompts = zero_shot.prompts_of(zero_shot.Settings(prompts="fer2013"))
    assert zero_shot.words_of(("neutral", "sad", "surprise"), prompts) == ["neutral", "sad", "surprised"]
    assert zero_shot.words_of(tuple("0123456"), prompts)[4:] == ["sad", "surprised", "neutral"]


def test_given_templates_choose_the_rows_of_a_file_that_has_names_too():
    """A file with names and prompts, far from each other: the labels are right by the ones or by the others."""
    x, labels = np.eye(2), Classes(("cat", "dog"), np.array([0, 1]))
    rows = {"cat": x[1], "dog": x[0], "the cat": x[0], "the dog": x[1]}
    file = text_file(rows)
    assert classified(labels, x, text_features=file, templates=("the {}",)).metrics["top1"][0] == 1
    assert classified(labels, x, text_features=file).metrics["top1"][0] == 0
    with pytest.raises(DataError, match=r"lacks 2 of 2 classes: cat, dog \(the text 'my cat'\)"):
        classified(labels, x, text_features=file, templates=("my {}",))
    mixed = text_file({"cat": x[1], "a photo of a dog.": x[0]})
    with pytest.raises(DataError, match="lacks 1 of 2 classes"):
        classified(labels, x, text_features=mixed)


def test_every_published_prompt_file_is_read():
    sizes = {}
    for name in list_names("prompts"):
        found = zero_shot.prompts_of(zero_shot.Settings(prompts=name))
        sizes[name] = len(found.templates), len(found.names)
    assert sizes["imagenet1k"] == (80, 1000) and sizes["flowers102"] == (1, 102) and len(sizes) > 20
    imagenet = zero_shot.prompts_of(zero_shot.Settings(prompts="imagenet1k"))
    assert zero_shot.words_of(("n02119789", "n01440764"), imagenet) == ["kit fox", "tench"]


def test_a_file_of_prompts_and_its_content_are_part_of_the_record(tmp_path):
    file = tmp_path / "own.yaml"
    rows = text_file({"cat": np.ones(2)})
    found = []
    for template in ("a {}.", "the {}."):
        file.write_text(f'title: own\nsource: me\ntemplates: ["{template}"]\n')
        found.append(zero_shot.PROTOCOL.recorded(zero_shot.Settings(prompts=str(file), text_features=rows)))
    assert found[0] != found[1] and str(tmp_path) not in str(found)
    file.write_text("title: own\nsource: me\ntemplates: ['{}']\nnames: {7: cat}\n")
    assert zero_shot.words_of(("7",), zero_shot.prompts_of(zero_shot.Settings(prompts=str(file)))) == ["cat"]
    file.write_text("title: own\nsource: me\ntemplates: [no place]\n")
    with pytest.raises(UsageError, match="there are no prompts called 'cifar11'"):
        zero_shot.prompts_of(zero_shot.Settings(prompts="cifar11"))
    with pytest.raises(UsageError, match=r"own.yaml: each of 'templates' should have one place \{\}"):
        zero_shot.prompts_of(zero_shot.Settings(prompts=str(file)))


def retrieved(texts, x, rows):
    features = Features(x.astype(np.float32), Texts(texts), tuple(f"{i:03d}" for i in range(len(x))))
    return image_text.run(features, features, image_text.Settings(text_features=text_file(rows)), seed=0)


def test_recalls_are_those_of_loops_over_images_and_texts():
    numbers = RNG.integers(1, 7, 40)
    texts = tuple(tuple(f"{i} {j}" for j in range(n)) for i, n in enumerate(numbers))
    x = RNG.normal(size=(40, 8))
    rows = {text: x[i] + 1.5 * RNG.normal(size=8) for i, own in enumerate(texts) for text in own}
    every = [(i, text) for i, own in enumerate(texts) for text in own]
    found = retrieved(texts, x, rows).metrics
    for k in (1, 5, 10):
        of_images = [
            any(i == j for j, _ in sorted(every, key=lambda each, i=i: -cosine(x[i], rows[each[1]]))[:k])
            for i in range(40)
        ]
        of_texts = [i in sorted(range(40), key=lambda j, t=t: -cosine(x[j], rows[t]))[:k] for i, t in every]
        assert found[f"text_recall@{k}"][0] == pytest.approx(np.mean(of_images))
        assert found[f"image_recall@{k}"][0] == pytest.approx(np.mean(of_texts))
    six = [found[f"{of}_recall@{k}"][0] for of in ("text", "image") for k in (1, 5, 10)]
    assert found["mean_recall"][0] == pytest.approx(np.mean(six))


def test_texts_of_one_image_are_one_unit_of_the_interval():
    x = RNG.normal(size=(60, 4))
    near = x + 0.7 * RNG.normal(size=(60, 4))
    widths = []
    for n in (1, 9):
        texts = tuple(tuple(f"{i} {j}" for j in range(n)) for i in range(60))
        _, low, high = retrieved(texts, x, {t: near[i] for i, own in enumerate(texts) for t in own}).metrics[
            "image_recall@1"
        ]
        widths.append(high - low)
    assert widths[1] > 0.8 * widths[0]  # nine equal texts say no more than one


def test_shuffled_texts_are_at_the_stated_chance():
    part, found = image_texts(300, 5), []
    rows = {text: RNG.normal(size=6) for own in part.target.texts for text in own}
    found = retrieved(part.target.texts, part.x, rows)
    assert found.chance["image_recall@10"] == pytest.approx(10 / 300)
    for name, chance in found.chance.items():
        assert abs(found.metrics[name][0] - chance) < 0.05, name
    assert {each.part for each in found.neighbours} == {"texts"} and len(found.neighbours[0].found) == 6


def save(path, side=40):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 255, (side, side + 6, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three images, of which one has no text, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        save(tmp_path / "photos" / f"{name}.png")
    return tmp_path / "photos"


ENTRIES = [{"id": i, "file_name": f"{name}.png"} for i, name in enumerate("abc")]
CAPTIONS = [
    {"image_id": 0, "caption": " one  a"},
    {"image_id": 2, "caption": "one c"},
    {"image_id": 0, "caption": "two a"},
]
SENTENCES = [
    {"filename": "a.png", "split": "test", "sentences": [{"raw": "one a"}, {"raw": "two a"}]},
    {"filename": "b.png", "split": "restval", "sentences": [{"raw": "one b"}]},
    {"filename": "c.png", "split": "test", "sentences": [{"raw": "one c"}]},
]
LAYOUTS = {
    "coco.json": json.dumps({"images": ENTRIES, "annotations": CAPTIONS}),
    "kw.kwcoco.json": json.dumps(
        {"images": [{**e, "captions": c} for e, c in zip(ENTRIES, (["one a", "two a"], [], ["one c"]), strict=True)]}
    ),
    "dataset_flickr.json": json.dumps({"images": SENTENCES}),
    "table.csv": "path,caption\na.png,one a\nc.png,one c\na.png,two a\n",
    "table.tsv": "title\tfilepath\none a\ta.png\ntwo a\ta.png\none c\tc.png\n",
    "list.jsonl": "\n".join(
        json.dumps({"image": f"{text[-1]}.png", "text": text}) for text in ("one a", "two a", "one c")
    ),
    "": "",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_texts_of_its_images(folder, name):
    (folder / (name or "a.txt")).write_text(LAYOUTS[name] or "one a\n\ntwo a\n")
    if not name:
        (folder / "c.txt").write_text("one c")
    place = f"{folder / name}?caption=title" if name == "table.tsv" else str(folder / name)
    found = open_as(place, Texts)
    source = found.get("test") or found["all"]
    assert source.ids == ("a.png", "c.png") and source.target.texts == (("one a", "two a"), ("one c",))
    assert [source.images.path(i)[-5:] for i in range(2)] == ["a.png", "c.png"]
    first = open_as(f"{place}{'&' if '?' in place else '?'}most=1", Texts)
    assert next(s for s in first.values() if len(s) == 2).target.texts == (("one a",), ("one c",))
    assert source.fingerprint() != source.select([0]).fingerprint()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", "[", "is not JSON"),
        ("x.json", '{"images": 3}', "is no file of captions"),
        ("x.json", '{"images": [{"file_name": "a.png"}]}', "is no file of captions"),
        ("x.json", '{"images": [], "annotations": []}', "has no image with a text"),
        ("x.json", json.dumps({"images": [*ENTRIES, ENTRIES[0]]}), "1 image with the id of another"),
        ("x.json", json.dumps({"images": [*ENTRIES, {**ENTRIES[0], "id": 9}]}), "the image a.png more than once"),
        ("x.json", json.dumps({"images": [SENTENCES[0], SENTENCES[0]]}), "the image a.png more than once"),
        ("x.json", json.dumps({"images": ENTRIES, "annotations": [{"image_id": 5, "caption": "x"}]}), "of the id 5"),
        ("x.json", json.dumps({"images": [{**ENTRIES[0], "caption": {"a": 1}}]}), "is no file of captions"),
        ("x.csv", "path,label\na.png,cat\n", "has no column 'caption'"),
        ("x.csv", "path,caption\na.png,\n", "the text is missing"),
        ("x.csv", "path,caption\nz.png,hello\n", "z.png"),
    ],
)
def test_files_without_texts_are_one_message(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises((DataError, UsageError), match=message):
        open_as(str(folder / name), Texts)


def test_embeddings_that_do_not_fit_are_one_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = Classes(("cat", "dog"), np.array([0, 1]))

    def refused(message, file):
        with pytest.raises((DataError, UsageError), match=message):
            classified(labels, np.eye(2), text_features=str(file))

    refused(r"lacks 1 of 2 classes: dog\nDid you mean 'dogs'", text_file({"cat": np.ones(2), "dogs": np.ones(2)}))
    refused("2 numbers, the texts 3", text_file({"cat": np.ones(3), "dog": np.ones(3)}))
    refused("zeros or not finite: dog", text_file({"cat": np.ones(2), "dog": np.zeros(2)}))
    refused("there is no file none.npz", "none.npz")
    refused("is a folder, not a file", tmp_path)
    np.save("x.npy", np.eye(2, dtype=np.float32))
    refused("there is no x.txt beside it", "x.npy")
    (tmp_path / "x.txt").write_text("cat\n")
    refused("2 embeddings and 1 names", "x.npy")
    (tmp_path / "x.safetensors").write_text("no")
    refused("cannot be read as safetensors", "x.safetensors")
    with pytest.raises(UsageError, match="text_features has no effect beside text_tower"):
        zero_shot.Settings(text_features="a", text_tower="b")
    with pytest.raises(UsageError, match="'no' has 0 places"):
        zero_shot.Settings(templates=("no",))


def test_every_form_of_the_file_gives_the_same(tmp_path):
    from safetensors.numpy import save_file

    x, labels = RNG.normal(size=(9, 4)), Classes(("cat", "dog"), np.arange(9) % 2)
    cat, dog = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(1, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", embeddings=np.concatenate([cat, dog]), texts=["cat"] * 3 + ["dog"])
    np.save(tmp_path / "y.npy", np.concatenate([cat, dog]))
    (tmp_path / "y.txt").write_text("cat\ncat\ncat\ndog\n")
    save_file({"cat": cat, "dog": dog[0]}, tmp_path / "z.safetensors")
    files = [str(tmp_path / name) for name in ("x.npz", "y.npy", "z.safetensors")]
    first, *others = (classified(labels, x, text_features=file) for file in files)
    assert all(np.array_equal(first.scores, other.scores) for other in others)
    assert len({recorded(zero_shot.Settings(text_features=file))["texts"] for file in files}) == 1


def run(*words):
    with pytest.raises(SystemExit) as end:
        main([*map(str, words), "--store", "store", "--workers", "0", "--device", "cpu"])
    return end.value.code


def test_a_network_of_images_alone_has_no_text_tower(folder, capsys):
    (folder / "captions.csv").write_text(LAYOUTS["table.csv"])
    torch.save({}, "empty.pt")
    words = ("eval", "image-text", "--data", folder / "captions.csv")
    assert run(*words, "--weights", "random", "--backbone", "resnet18w0.125") == 2
    assert "'random' has no text tower\n  Give embeddings of the texts, text_features=FILE" in capsys.readouterr().err
    from sslbench.backbones.text_towers import read_text_tower

    with pytest.raises(WeightsError, match="has no text tower: its network takes images only\nEncode the texts"):
        read_text_tower("empty.pt")


def test_texts_of_another_width_are_refused_before_an_image_is_encoded(folder, capsys):
    for name in ("cat/a.png", "cat/b.png", "dog/c.png", "dog/d.png"):
        save(folder.parent / "classes" / name)
    words = ("eval", "zero-shot", "--weights", "random", "--backbone", "resnet18w0.125", "--data", "classes")
    assert run(*words, f"text_features={text_file({'cat': np.ones(3), 'dog': np.eye(3)[0]})}") == 2
    assert "the features have 64 numbers, the texts 3\n" in capsys.readouterr().err
    assert not (folder.parent / "store").exists()


CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 64, "layers": 1, "width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


def test_both_towers_of_open_clip_give_the_scores_of_open_clip(folder, capsys):
    open_clip = pytest.importorskip("open_clip")
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = open_clip.CLIP(**CLIP).eval()
    clip = folder.parent / "clip"
    clip.mkdir()
    save_file(model.state_dict(), clip / "open_clip_model.safetensors")
    settings = {"mean": [0.5] * 3, "std": [0.5] * 3}
    (clip / "open_clip_config.json").write_text(json.dumps({"model_cfg": CLIP, "preprocess_cfg": settings}))
    for name in ("cat/a.png", "dog/b.png", "dog/c.png"):
        save(folder.parent / "classes" / name, 64)
    assert run("eval", "zero-shot", "--weights", clip, "--data", "classes", "--no-floors", "-o", "out") == 0
    (file,) = (folder.parent / "out" / "zero-shot").glob("*.scores.npz")
    transform = open_clip.image_transform(64, is_train=False, mean=(0.5,) * 3, std=(0.5,) * 3)
    images = torch.stack([transform(Image.open(f)) for f in sorted((folder.parent / "classes").rglob("*.png"))])
    tokens = open_clip.SimpleTokenizer(context_length=77)([f"a photo of a {name}." for name in ("cat", "dog")])
    with torch.no_grad():
        both = [model.encode_image(images, normalize=True), model.encode_text(tokens, normalize=True)]
    with np.load(file) as record:
        np.testing.assert_allclose(record["scores"], 100 * (both[0] @ both[1].T).numpy(), atol=0.02)
    tensors = model.state_dict()
    del tensors["transformer.resblocks.1.ln_1.weight"]
    save_file(tensors, clip / "open_clip_model.safetensors")
    assert run("eval", "zero-shot", "--weights", clip, "--data", "classes", "-o", "out") == 1
    assert "transformer.resblocks.1.ln_1.weight" in capsys.readouterr().err


def test_the_digest_of_a_tower_tells_its_tokeniser_and_configuration(tmp_path):
    """Other numbers of the same words, and another end of a text, give other embeddings of the same tensors."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    from sslbench.backbones.text_towers import read_text_tower

    tower = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "num_hidden_layers": 1}
    config = transformers.CLIPConfig(
        projection_dim=8,
        text_config={**tower, "vocab_size": 9, "eos_token_id": 3, "pad_token_id": 0},
        vision_config={**tower, "image_size": 32, "patch_size": 16},
    )
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    found = []
    for words, eos in ((("cat", "dog"), 3), (("dog", "cat"), 3), (("cat", "dog"), 4)):
        tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, words[0]: 1, words[1]: 2, "big": 3}, unk_token="[PAD]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        marks = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[PAD]"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(marks))
        content = json.loads((tmp_path / "config.json").read_text())
        content["text_config"]["eos_token_id"] = eos
        (tmp_path / "config.json").write_text(json.dumps(content))
        read = read_text_tower(str(tmp_path))
        found.append((read.sha256, read.encode(["dog big cat"], "cpu").tobytes()))
    assert len({digest for digest, _ in found}) == 3 == len({x for _, x in found})


def test_a_folder_of_transformers_without_tokeniser_says_so(tmp_path):
    transformers = pytest.importorskip("transformers")
    from sslbench.backbones.text_towers import read_text_tower

    tower = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "num_hidden_layers": 1}
    config = transformers.CLIPConfig(
        projection_dim=8,
        text_config={**tower, "vocab_size": 99},
        vision_config={**tower, "image_size": 32, "patch_size": 16},
    )
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=r"has no tokeniser: none of tokenizer.json.*\nCopy tokenizer.json") as error:
        read_text_tower(str(tmp_path))
    assert "text_features=FILE" in error.value.remedy
